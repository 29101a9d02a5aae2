//! Finds a demux that a control process left on an interface, where its clients hold it, and makes sure
//! that it is the very one that would be attached now: the same instructions, the same settings.

use std::ops::Range;
use std::os::fd::AsFd;

use aya::maps::{Map, MapData, MapInfo};
use aya::programs::ProgramInfo;

use super::demux::{
    Demux, Found, Setup, load, not_loaded, on_interface, program, program_of, taken,
};
use super::program_users;
use crate::error::OpenError;
use crate::link::XdpMode;
use crate::sys::bpf;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The map that the compiler puts constants into: the settings, in every version at its beginning.
const CONSTANTS: &str = ".rodata";

/// Maps that a demux has in every version.
const MARKS: [&str; 2] = ["ports", "node_counters"];

/// [`Demux::take_over`].
pub(super) fn find(setup: Setup, asked: Option<XdpMode>) -> Result<Option<Demux>, OpenError> {
    let own = setup.clone();
    let look = || on_interface(&own).map_err(|error| not_loaded(error.into()));
    let found = match look()? {
        None => return Ok(None),
        // Alongside another program there is room at traffic control.
        Some(found) if found.mode.is_none() && asked.is_none_or(|asked| asked == XdpMode::Tc) => {
            return Ok(None);
        }
        Some(found) => found,
    };
    match take(setup, asked, &found) {
        // The last holder has just died, and the kernel has removed the demux during the look.
        Err(_) if look()?.is_none() => Ok(None),
        result => result.map(Some),
    }
}

/// Takes the program with this number, if it is what would be attached.
fn take(setup: Setup, asked: Option<XdpMode>, found: &Found) -> Result<Demux, OpenError> {
    let id = found.id;
    let (Some(running), Some(mode)) = (running(id), found.mode) else {
        return Err(taken(&setup));
    };
    let setup = Setup { mode, ..setup };
    let is_another = |why: String| OpenError::OtherDemux {
        interface: setup.name.clone(),
        why,
        holders: program_users::of_program(id),
    };
    if asked.is_some_and(|asked| asked != mode) {
        return Err(is_another(format!("it runs in {} mode", mode.name())));
    }
    let maps = maps_of(&running).map_err(not_loaded)?;
    compare(&setup, &running, &maps).map_err(|why| is_another(why.to_string()))?;
    let link = bpf::link_of_program(id).map_err(|error| not_loaded(error.into()))?;
    let Some(link) = link else {
        return Err(taken(&setup));
    };
    let demux = Demux::from_running(setup.clone(), link, |name| map(&maps, name));
    demux.map_err(|why| is_another(why.to_string()))
}

/// [`Demux::detach_left`].
pub(super) fn detach(setup: &Setup) -> Result<(), OpenError> {
    let interface = setup.interface.index;
    let kernel = |error: std::io::Error| not_loaded(error.into());
    let found = on_interface(setup).map_err(kernel)?;
    let Some(found) = found.filter(|found| found.mode.is_some()) else {
        return Ok(());
    };
    let maps = running(found.id).map(|running| maps_of(&running));
    let maps = maps.transpose().map_err(not_loaded)?.unwrap_or_default();
    let link = bpf::link_of_program(found.id).map_err(kernel)?;
    match link {
        Some(link) if is_shared(&maps) => bpf::detach(link.as_fd(), interface).map_err(kernel),
        _ => Err(taken(setup)),
    }
}

/// Whether a demux with these maps is that of a control process.
fn is_shared(maps: &[MapInfo]) -> bool {
    let has = |name: &str| maps.iter().any(|map| map.name_as_str() == Some(name));
    let constants = map(maps, CONSTANTS).and_then(|map| constants(&map));
    let owner = constants
        .ok()
        .and_then(|constants| constants.get(OWNER)?.try_into().ok());
    MARKS.into_iter().all(has) && owner.is_some_and(|owner: [u8; 4]| owner != [0; 4])
}

fn running(id: u32) -> Option<ProgramInfo> {
    aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
}

fn maps_of(program: &ProgramInfo) -> Result<Vec<MapInfo>, Error> {
    let ids = program.map_ids()?.unwrap_or_default();
    ids.into_iter()
        .map(|id| Ok(MapInfo::from_id(id)?))
        .collect()
}

fn map(maps: &[MapInfo], name: &str) -> Result<Map, Error> {
    let found = maps
        .iter()
        .find(|map| map.name_as_str() == Some(name))
        .ok_or_else(|| format!("it has no map `{name}`"))?;
    Ok(Map::from_map_data(MapData::from_id(found.id())?)?)
}

/// Content of the map of constants.
fn constants(map: &Map) -> Result<Vec<u8>, Error> {
    let Map::Array(data) = map else {
        return Err("its constants are not in an array".into());
    };
    Ok(bpf::lookup(data.fd().as_fd(), 0)?)
}

/// The same code, told by the kernel's digest of the instructions, and the same constants.
fn compare(setup: &Setup, running: &ProgramInfo, maps: &[MapInfo]) -> Result<(), Error> {
    let mut own = setup.load()?;
    let ours = constants(own.map(CONSTANTS).ok_or("the demux has no constants")?)?;
    let program = program(&mut own, program_of(setup.mode))?;
    load(program)?;
    if program.info()?.tag() != running.tag() {
        return Err("it is of another version of Tautline".into());
    }
    let theirs = constants(&map(maps, CONSTANTS)?)?;
    if ours != theirs {
        return Err(difference(&ours, &theirs).into());
    }
    Ok(())
}

/// Parts of `struct tl_config` of `bpf/tautline.h` that a person knows.
const SETTINGS: [(&str, Range<usize>); 5] = [
    ("has another MAC address", 0..6),
    ("has another EtherType", 6..8),
    ("has another IPv4 address", 8..12),
    ("is a control process's of another user", OWNER),
    ("has another VLAN", 20..22),
];
/// 0 for a single process's own, else a number for each user who runs control processes.
const OWNER: Range<usize> = 12..16;

/// Settings of another demux that are not ours.
fn difference(ours: &[u8], theirs: &[u8]) -> String {
    let differs = |(_, at): &&(_, Range<usize>)| ours.get(at.clone()) != theirs.get(at.clone());
    let is_single = theirs.get(OWNER) == Some(&[0; 4]);
    let name = |(name, at): &(&'static str, _)| match *at == OWNER && is_single {
        true => "is a single process's own",
        false => name,
    };
    let names: Vec<_> = SETTINGS.iter().filter(differs).map(name).collect();
    match names[..] {
        [] => "it has other settings".to_owned(),
        _ => format!("it {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::demux::CONFIG_BYTES;
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let ours = [1u8; CONFIG_BYTES];
        let changed = |places: &[usize]| {
            let mut theirs = ours;
            places.iter().for_each(|place| theirs[*place] = 9);
            difference(&ours, &theirs)
        };
        assert_eq!(changed(&[5]), "it has another MAC address");
        assert_eq!(
            changed(&[8, 21]),
            "it has another IPv4 address, has another VLAN"
        );
        assert_eq!(changed(&[13]), "it is a control process's of another user");
        // The rest is no setting that a person knows.
        assert_eq!(changed(&[23]), "it has other settings");
        let mut single = ours;
        single[OWNER].fill(0);
        assert_eq!(difference(&ours, &single), "it is a single process's own");
    }
}
