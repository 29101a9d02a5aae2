//! Finds a demux that a control process left on an interface, where its clients hold it, and makes sure
//! that it is the very one that would be attached now: the same instructions, the same settings.

use std::os::fd::AsFd;

use aya::maps::{Map, MapData, MapInfo};
use aya::programs::ProgramInfo;

use super::demux::{
    Demux, Found, Setup, load, not_loaded, on_interface, program, program_of, taken,
};
use super::holders;
use crate::error::OpenError;
use crate::link::XdpMode;
use crate::sys::bpf;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The map that the compiler puts constants into, which the settings are.
const CONSTANTS: &str = ".rodata";

/// [`Demux::take_over`].
pub(super) fn find(setup: Setup, asked: Option<XdpMode>) -> Result<Option<Demux>, OpenError> {
    let interface = setup.interface.index;
    let look = || on_interface(interface).map_err(|error| not_loaded(error.into()));
    let found = match look()? {
        None => return Ok(None),
        // Beside somebody else's program there is room at traffic control.
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
    let doing = format!("taking over the demux on `{}`", setup.name);
    let refused = |source: Error| OpenError::Refused { doing, source };
    let refused = |why: Error| {
        let holders = holders::named(&holders::of_program(id));
        refused(format!("{why}; end the processes that use it: {holders}").into())
    };
    if asked.is_some_and(|asked| asked != mode) {
        let mode = mode.name();
        return Err(refused(format!("it runs in {mode} mode").into()));
    }
    let maps = maps_of(&running).map_err(not_loaded)?;
    compare(&setup, &running, &maps).map_err(refused)?;
    let link = bpf::link_of_program(id).map_err(|error| not_loaded(error.into()))?;
    let Some(link) = link else {
        return Err(taken(&setup));
    };
    Demux::from_running(setup, link, |name| map(&maps, name))
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

/// The same code, told by the kernel's digest of the instructions, and the same constants.
fn compare(setup: &Setup, running: &ProgramInfo, maps: &[MapInfo]) -> Result<(), Error> {
    let mut own = setup.load()?;
    let constants = |map: &Map| {
        let Map::Array(data) = map else {
            return Err(Error::from("its constants are no array"));
        };
        Ok(bpf::lookup(data.fd().as_fd(), 0)?)
    };
    let ours = constants(own.map(CONSTANTS).ok_or("the demux has no constants")?)?;
    let program = program(&mut own, program_of(setup.mode))?;
    load(program)?;
    if program.info()?.tag() != running.tag() {
        return Err("it is of another version of Tautline".into());
    }
    if ours != constants(&map(maps, CONSTANTS)?)? {
        return Err(
            "it is a single process's own or a control process's of another user, or has another MAC address, IPv4 \
             address or EtherType"
                .into(),
        );
    }
    Ok(())
}
