//! The bpf() calls that the loader library does not offer.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// `enum bpf_cmd` of linux/bpf.h.
const MAP_LOOKUP_ELEMENT: libc::c_long = 1;
const MAP_UPDATE_ELEMENT: libc::c_long = 2;
const MAP_DELETE_ELEMENT: libc::c_long = 3;
const OBJECT_PIN: libc::c_long = 6;
const OBJECT_GET: libc::c_long = 7;
const OBJECT_INFO: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;
const LINK_BY_ID: libc::c_long = 30;
const LINK_NEXT_ID: libc::c_long = 31;
const LINK_DETACH: libc::c_long = 34;

/// `BPF_F_INNER_MAP`: maps of different size fit one map of maps.
pub(crate) const INNER_MAP: u32 = 1 << 12;
/// `BPF_MAP_TYPE_ARRAY`.
const MAP_TYPE_ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
const MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;

/// `BPF_TCX_INGRESS`, a kind of attachment.
const ATTACH_TCX_INGRESS: u32 = 46;
/// `BPF_LINK_TYPE_XDP`, `BPF_LINK_TYPE_TCX`: links that hold a program on an interface.
const LINK_TYPES: [u32; 2] = [6, 11];

/// The parts of `union bpf_attr` (`linux/bpf.h`) that are used here.
#[repr(C, align(8))]
struct ElementAttributes {
    map_fd: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C, align(8))]
struct PinAttributes {
    path: u64,
    object_fd: u32,
    flags: u32,
}

#[repr(C)]
struct IdAttributes {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct LinkAttributes {
    program_fd: u32,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct DetachAttributes {
    link_fd: u32,
}

#[repr(C, align(8))]
struct InfoAttributes {
    object_fd: u32,
    info_bytes: u32,
    info: u64,
}

/// The head of `struct bpf_link_info`, with room for what differs between kinds of link.
#[repr(C, align(8))]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    _padding: u32,
    /// Of the kinds in [`LINK_TYPES`]; 0 once the link is detached.
    interface_index: u32,
    _attach_type: u32,
    _rest: [u64; 7],
}

/// The head of `struct bpf_map_info`.
#[repr(C, align(8))]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    _id: u32,
    key_bytes: u32,
    value_bytes: u32,
}

/// One bpf() call.
///
/// # Safety
/// `A` must be laid out as `union bpf_attr` for `command`, up to the last field that the command writes, for some write
/// it whatever size they are told. What its addresses point to must be readable, or writable where the command writes,
/// for the sizes that the command takes.
unsafe fn call<A>(command: libc::c_long, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: `attributes` is readable and writable for its size; the caller guarantees the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    super::check(result as libc::c_int)
}

/// Sizes of an array. `ErrorKind::InvalidInput` if the map is none: an element of one with a value for each CPU, say,
/// is longer than its size says.
fn array_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut info = MapInfo::default();
    // SAFETY: `MapInfo` is the head of what the kernel tells of a map.
    unsafe { object_info(map, &mut info) }?;
    match info.kind {
        MAP_TYPE_ARRAY | MAP_TYPE_ARRAY_OF_MAPS if info.key_bytes == 4 => Ok(info),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Reads one element of an array; of a map of maps, the id of the map that is there.
/// `ErrorKind::NotFound` where a map of maps has none.
pub(crate) fn lookup(map: BorrowedFd<'_>, key: u32) -> io::Result<Vec<u8>> {
    let info = array_info(map)?;
    let mut value = vec![0; info.value_bytes as usize];
    let mut attributes = ElementAttributes {
        map_fd: map.as_raw_fd() as u32,
        _padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: value.as_mut_ptr() as u64,
        flags: 0,
    };
    // SAFETY: the layout is that of the element commands; `key` and `value` have the sizes that the kernel has just
    // told for this array, and live through the call.
    unsafe { call(MAP_LOOKUP_ELEMENT, &mut attributes) }?;
    Ok(value)
}

/// Writes one element of an array whose elements are as long as `value`.
/// `ErrorKind::InvalidInput` if they are not.
pub(crate) fn update(map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    if array_info(map)?.value_bytes as usize != value.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut attributes = ElementAttributes {
        map_fd: map.as_raw_fd() as u32,
        _padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: the layout is that of the element commands; `key` and `value` have the sizes that the kernel has just
    // told for this array, and live through the call.
    unsafe { call(MAP_UPDATE_ELEMENT, &mut attributes) }.map(drop)
}

/// Empties one element of a map of maps.
pub(crate) fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let mut attributes = ElementAttributes {
        map_fd: map.as_raw_fd() as u32,
        _padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: the layout is that of the element commands; `key` lives through the call and has the
    // map's key size, four bytes.
    unsafe { call(MAP_DELETE_ELEMENT, &mut attributes) }.map(drop)
}

/// Attaches a program to what arrives at an interface, at traffic control, behind those that are there. The link holds
/// it there.
pub(crate) fn attach_tcx(program: BorrowedFd<'_>, interface_index: u32) -> io::Result<OwnedFd> {
    let mut attributes = LinkAttributes {
        program_fd: program.as_raw_fd() as u32,
        interface_index,
        attach_type: ATTACH_TCX_INGRESS,
        flags: 0,
    };
    // SAFETY: the layout is that of the command; there are no addresses in it. The descriptor that it returns is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(LINK_CREATE, &mut attributes)?)) }
}

/// Pins an object.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinAttributes {
        path: path.as_ptr() as u64,
        object_fd: object.as_raw_fd() as u32,
        flags: 0,
    };
    // SAFETY: the layout is that of the command; `path` ends with a zero and lives through the call.
    unsafe { call(OBJECT_PIN, &mut attributes) }.map(drop)
}

/// An object that was pinned.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinAttributes {
        path: path.as_ptr() as u64,
        object_fd: 0,
        flags: 0,
    };
    // SAFETY: the layout is that of the command; `path` ends with a zero and lives through the call. The descriptor
    // that it returns is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(OBJECT_GET, &mut attributes)?)) }
}

/// The number of the program that a link holds.
pub(crate) fn program_of_link(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(link_info(link)?.program_id)
}

/// Takes the program of a link off an interface, whichever process still holds the link, which has no effect then.
/// Needs Linux
/// 5.9.
///
/// # Errors
/// `ErrorKind::InvalidInput` if the link is not on this interface; the kernel's.
pub(crate) fn detach(link: BorrowedFd<'_>, interface_index: u32) -> io::Result<()> {
    let info = link_info(link)?;
    if !LINK_TYPES.contains(&info.kind) || info.interface_index != interface_index {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut attributes = DetachAttributes {
        link_fd: link.as_raw_fd() as u32,
    };
    // SAFETY: the layout is that of the command; there are no addresses in it.
    unsafe { call(LINK_DETACH, &mut attributes) }.map(drop)
}

/// The link that holds a program on its interface, if a link does.
pub(crate) fn link_of_program(program_id: u32) -> io::Result<Option<OwnedFd>> {
    let mut id = 0;
    while let Some(next) = next_link(id)? {
        id = next;
        let link = match link_by_id(id) {
            Ok(link) => link,
            // It has gone since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let info = link_info(link.as_fd())?;
        if LINK_TYPES.contains(&info.kind) && info.program_id == program_id {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn next_link(id: u32) -> io::Result<Option<u32>> {
    let mut attributes = IdAttributes {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the layout is that of the id commands; there are no addresses in it.
    match unsafe { call(LINK_NEXT_ID, &mut attributes) } {
        Ok(_) => Ok(Some(attributes.next_id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attributes = IdAttributes {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the layout is that of the id commands; there are no addresses in it. The descriptor
    // that it returns is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(LINK_BY_ID, &mut attributes)?)) }
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    // SAFETY: `LinkInfo` is the head of what the kernel tells of a link.
    unsafe { object_info(link, &mut info) }?;
    Ok(info)
}

/// Asks the kernel about an object; it fills as much as there is room for.
///
/// # Safety
/// `I` must be a structure of integers, laid out as the head of the kernel's for this kind of object.
unsafe fn object_info<I>(object: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let mut attributes = InfoAttributes {
        object_fd: object.as_raw_fd() as u32,
        info_bytes: size_of::<I>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: the layout is that of the command; `info` is writable for the size given with it, and
    // holds whatever bits the kernel puts there, as the caller guarantees.
    unsafe { call(OBJECT_INFO, &mut attributes) }.map(drop)
}

#[cfg(test)]
mod tests {
    use aya::maps::MapData;
    use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_ARRAY};

    use super::*;

    #[test]
    fn only_arrays_are_read_and_written() {
        let map = |kind| {
            let definition = aya_obj::Map::new_from_params(kind as u32, 4, 8, 1, 0);
            MapData::create(definition, "taut_test", None)
        };
        let per_cpu = match map(BPF_MAP_TYPE_PERCPU_ARRAY) {
            Ok(map) => map,
            Err(error) => return println!("SKIPPED: no maps here: {error}"),
        };
        let refused = |error: io::Error| error.kind() == io::ErrorKind::InvalidInput;
        assert!(lookup(per_cpu.fd().as_fd(), 0).is_err_and(refused));
        assert!(update(per_cpu.fd().as_fd(), 0, &[0; 8]).is_err_and(refused));
        let array = map(BPF_MAP_TYPE_ARRAY).unwrap();
        update(array.fd().as_fd(), 0, &[7; 8]).unwrap();
        assert_eq!(lookup(array.fd().as_fd(), 0).unwrap(), [7; 8]);
    }
}
