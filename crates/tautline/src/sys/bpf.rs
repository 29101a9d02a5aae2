//! The bpf() calls that the loader library does not offer, with its declarations of linux/bpf.h.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::bpf_attach_type::BPF_TCX_INGRESS;
use aya_obj::generated::bpf_cmd::{self, *};
use aya_obj::generated::bpf_link_type::{BPF_LINK_TYPE_TCX, BPF_LINK_TYPE_XDP};
use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_ARRAY_OF_MAPS};
use aya_obj::generated::{bpf_attr, bpf_link_info, bpf_map_info};

/// `BPF_F_INNER_MAP`: maps of different size fit one map of maps.
pub(crate) const INNER_MAP: u32 = 1 << 12;

/// Kinds of links that hold a program on an interface.
const LINK_TYPES: [u32; 2] = [BPF_LINK_TYPE_XDP as u32, BPF_LINK_TYPE_TCX as u32];

/// The attributes of a call, to be filled in.
fn attributes() -> bpf_attr {
    // SAFETY: structures of integers, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

/// One bpf() call.
///
/// # Safety
/// What the addresses in `attributes` point to must be readable, or writable where the command writes, for the sizes
/// that the command takes.
unsafe fn call(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<libc::c_int> {
    // SAFETY: `attributes` is readable and writable for its size; the caller guarantees the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attributes),
            size_of::<bpf_attr>(),
        )
    };
    super::check(result as libc::c_int)
}

/// A bpf() call that returns a descriptor.
///
/// # Safety
/// As of [`call`]; the command must be one that opens something.
unsafe fn open(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees it; the descriptor is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(command, attributes)?)) }
}

/// Asks the kernel about an object; it fills as much as there is room for.
///
/// # Safety
/// `I` must be the kernel's structure for this kind of object, which is one of integers.
unsafe fn object_info<I>(object: BorrowedFd<'_>) -> io::Result<I> {
    // SAFETY: the caller guarantees that zeroes are valid.
    let mut info: I = unsafe { std::mem::zeroed() };
    let mut attributes = attributes();
    attributes.info.bpf_fd = object.as_raw_fd() as u32;
    attributes.info.info_len = size_of::<I>() as u32;
    attributes.info.info = std::ptr::from_mut(&mut info) as u64;
    // SAFETY: `info` is writable for the size given with it, and holds whatever bits the kernel puts there, as the
    // caller guarantees.
    unsafe { call(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

/// Bytes of an element of an array. `ErrorKind::InvalidInput` if the map is none: an element of one with a value for
/// each CPU, say, is longer than its size says.
fn element_bytes(map: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: the structure is that of maps.
    let info: bpf_map_info = unsafe { object_info(map) }?;
    let is_array =
        [BPF_MAP_TYPE_ARRAY as u32, BPF_MAP_TYPE_ARRAY_OF_MAPS as u32].contains(&info.type_);
    match is_array && info.key_size == 4 {
        true => Ok(info.value_size as usize),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Attributes of the commands for an element.
fn of_element(map: BorrowedFd<'_>, key: &u32, value: u64) -> bpf_attr {
    let mut attributes = attributes();
    attributes.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    attributes.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
    attributes.__bindgen_anon_2.__bindgen_anon_1.value = value;
    attributes
}

/// Reads one element of an array; of a map of maps, the id of the map that is there.
/// `ErrorKind::NotFound` where a map of maps has none.
pub(crate) fn lookup(map: BorrowedFd<'_>, key: u32) -> io::Result<Vec<u8>> {
    let mut value = vec![0; element_bytes(map)?];
    let mut attributes = of_element(map, &key, value.as_mut_ptr() as u64);
    // SAFETY: `key` and `value` have the sizes that the kernel has just told for this array, and live through the call.
    unsafe { call(BPF_MAP_LOOKUP_ELEM, &mut attributes) }?;
    Ok(value)
}

/// Writes one element of an array whose elements are as long as `value`. `ErrorKind::InvalidInput` if they are not.
pub(crate) fn update(map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    if element_bytes(map)? != value.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut attributes = of_element(map, &key, value.as_ptr() as u64);
    // SAFETY: `key` and `value` have the sizes that the kernel has just told for this array, and live through the call.
    unsafe { call(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Empties one element of a map of maps.
pub(crate) fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let mut attributes = of_element(map, &key, 0);
    // SAFETY: `key` lives through the call and has the map's key size, four bytes.
    unsafe { call(BPF_MAP_DELETE_ELEM, &mut attributes) }.map(drop)
}

/// Attaches a program to what arrives at an interface, at traffic control, behind those that are there. The link holds
/// it there.
pub(crate) fn attach_tcx(program: BorrowedFd<'_>, interface_index: u32) -> io::Result<OwnedFd> {
    let mut attributes = attributes();
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attributes.link_create.__bindgen_anon_2.target_ifindex = interface_index;
    attributes.link_create.attach_type = BPF_TCX_INGRESS as u32;
    // SAFETY: there are no addresses in it.
    unsafe { open(BPF_LINK_CREATE, &mut attributes) }
}

/// Attributes of the commands for pins. The path must outlive them.
fn of_pin(path: &CString) -> bpf_attr {
    let mut attributes = attributes();
    attributes.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attributes
}

/// Pins an object.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = of_pin(&path);
    attributes.__bindgen_anon_4.bpf_fd = object.as_raw_fd() as u32;
    // SAFETY: `path` ends with a zero and lives through the call.
    unsafe { call(BPF_OBJ_PIN, &mut attributes) }.map(drop)
}

/// An object that was pinned.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends with a zero and lives through the call.
    unsafe { open(BPF_OBJ_GET, &mut of_pin(&path)) }
}

/// The number of the program that a link holds.
pub(crate) fn program_of_link(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(link_info(link)?.prog_id)
}

/// Takes the program of a link off an interface, whichever process still holds the link, which has no effect then.
/// Needs Linux 5.9.
///
/// # Errors
/// `ErrorKind::InvalidInput` if the link is not on this interface; the kernel's.
pub(crate) fn detach(link: BorrowedFd<'_>, interface_index: u32) -> io::Result<()> {
    let info = link_info(link)?;
    // SAFETY: of these kinds of links the interface's index comes first, 0 once the link is detached.
    let is_on = |index| unsafe { info.__bindgen_anon_1.xdp.ifindex } == index;
    if !LINK_TYPES.contains(&info.type_) || !is_on(interface_index) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut attributes = attributes();
    attributes.link_detach.link_fd = link.as_raw_fd() as u32;
    // SAFETY: there are no addresses in it.
    unsafe { call(BPF_LINK_DETACH, &mut attributes) }.map(drop)
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
        if LINK_TYPES.contains(&info.type_) && info.prog_id == program_id {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn next_link(id: u32) -> io::Result<Option<u32>> {
    let mut attributes = attributes();
    attributes.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
    // SAFETY: there are no addresses in it.
    match unsafe { call(BPF_LINK_GET_NEXT_ID, &mut attributes) } {
        // SAFETY: the command wrote this field; any bits are a valid integer.
        Ok(_) => Ok(Some(unsafe { attributes.__bindgen_anon_6.next_id })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attributes = attributes();
    attributes.__bindgen_anon_6.__bindgen_anon_1.link_id = id;
    // SAFETY: there are no addresses in it.
    unsafe { open(BPF_LINK_GET_FD_BY_ID, &mut attributes) }
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<bpf_link_info> {
    // SAFETY: the structure is that of links.
    unsafe { object_info(link) }
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
