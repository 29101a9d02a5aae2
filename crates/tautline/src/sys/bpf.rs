//! The bpf() calls that the loader library does not offer.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// `enum bpf_cmd` of linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEMENT: libc::c_long = 1;
const MAP_UPDATE_ELEMENT: libc::c_long = 2;
const MAP_DELETE_ELEMENT: libc::c_long = 3;
const PROGRAM_LOAD: libc::c_long = 5;
const OBJECT_PIN: libc::c_long = 6;
const OBJECT_GET: libc::c_long = 7;
const OBJECT_INFO: libc::c_long = 15;
const PROGRAM_QUERY: libc::c_long = 16;
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

/// `BPF_PROG_TYPE_XDP`.
const PROGRAM_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`.
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// `BPF_XDP`, a kind of attachment.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`: generic mode, which every interface has.
const XDP_GENERIC: u32 = 1 << 1;

/// `BPF_TCX_INGRESS`, a kind of attachment.
const ATTACH_TCX_INGRESS: u32 = 46;
/// Programs of one hook at traffic control (`BPF_MPROG_MAX`); the kernel takes no more.
const TCX_PROGRAMS_MAX: usize = 64;

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

/// Up to the flags; the kernel takes what follows for zero.
#[repr(C)]
struct CreateAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
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

/// Whole: the kernel writes the revision at its end, whatever size it is told.
#[repr(C, align(8))]
#[derive(Default)]
struct QueryAttributes {
    interface_index: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    _padding: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// Up to the flags; the kernel takes what follows for zero.
#[repr(C, align(8))]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
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

/// An XDP program that passes every frame, with one feature that a kernel may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trivial {
    /// None.
    Pass,
    /// Frames in several buffers.
    Frags,
    /// A compare-and-swap, on the stack.
    CompareExchange,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination and source: the order of the halves is that of the machine's bytes.
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        let registers = if cfg!(target_endian = "little") {
            source << 4 | destination
        } else {
            destination << 4 | source
        };
        Self {
            code,
            registers,
            offset,
            immediate,
        }
    }
}

/// Loads one, to see whether the kernel takes it.
pub(crate) fn load_trivial(which: Trivial) -> io::Result<OwnedFd> {
    /// Frame pointer: the stack ends there.
    const R10: u8 = 10;
    const PASS: [Instruction; 2] = [
        Instruction::new(0xb7, 0, 0, 0, 2), // r0 = XDP_PASS
        Instruction::new(0x95, 0, 0, 0, 0), // exit
    ];
    const COMPARE_EXCHANGE: [Instruction; 6] = [
        Instruction::new(0x7a, R10, 0, -8, 0), // *(u64 *)(r10 - 8) = 0
        Instruction::new(0xb7, 0, 0, 0, 0),    // r0 = 0
        Instruction::new(0xb7, 1, 0, 0, 1),    // r1 = 1
        Instruction::new(0xdb, R10, 1, -8, 0xf1), // r0 = cmpxchg(r10 - 8, r0, r1)
        PASS[0],
        PASS[1],
    ];
    let instructions: &[Instruction] = match which {
        Trivial::CompareExchange => &COMPARE_EXCHANGE,
        Trivial::Pass | Trivial::Frags => &PASS,
    };
    let mut attributes = LoadAttributes {
        kind: PROGRAM_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        flags: match which {
            Trivial::Frags => XDP_HAS_FRAGS,
            Trivial::Pass | Trivial::CompareExchange => 0,
        },
        ..LoadAttributes::default()
    };
    // SAFETY: the layout is that of the command; instructions and licence live through the call, and there are
    // as many instructions as is said. The descriptor that it returns is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(PROGRAM_LOAD, &mut attributes)?)) }
}

/// Makes an array of one element that fits a map of maps whatever its size.
pub(crate) fn inner_map() -> io::Result<OwnedFd> {
    let mut attributes = CreateAttributes {
        kind: MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: 8,
        entries: 1,
        flags: INNER_MAP,
    };
    // SAFETY: the layout is that of the command; there are no addresses in it. The descriptor that it returns is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(call(MAP_CREATE, &mut attributes)?)) }
}

/// Attaches a program by a link, to the loopback interface of a network namespace that ends with this call. Needs
/// CAP_SYS_ADMIN.
pub(crate) fn try_link() -> io::Result<()> {
    let attempt = || {
        // SAFETY: a call without pointers; the namespace becomes that of this thread alone, which ends with it.
        super::check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        let program = load_trivial(Trivial::Pass)?;
        let mut attributes = LinkAttributes {
            program_fd: program.as_raw_fd() as u32,
            interface_index: 1, // loopback, the first interface of every namespace
            attach_type: ATTACH_XDP,
            flags: XDP_GENERIC,
        };
        // SAFETY: the layout is that of the command; there are no addresses in it. The descriptor that it returns
        // is ours.
        unsafe { Ok(OwnedFd::from_raw_fd(call(LINK_CREATE, &mut attributes)?)) }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, attempt)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .map(|_link: OwnedFd| ())
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

/// Programs at traffic control on the way in to an interface, the first that sees a frame first. Those of `tc` filters
/// are not among them.
///
/// # Errors
/// The kernel's: EINVAL where it has no such hook (before Linux 6.6), for which [`programs_at_tc`] says that there are
/// none.
pub(crate) fn tcx_programs(interface_index: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0u32; TCX_PROGRAMS_MAX];
    let mut attributes = QueryAttributes {
        interface_index,
        attach_type: ATTACH_TCX_INGRESS,
        program_ids: ids.as_mut_ptr() as u64,
        count: TCX_PROGRAMS_MAX as u32,
        ..QueryAttributes::default()
    };
    // SAFETY: the layout is that of the command, up to the last that it writes; `ids` has room for as many as are
    // asked for and lives through the call, which writes the count of those that there are.
    unsafe { call(PROGRAM_QUERY, &mut attributes) }?;
    ids.truncate(attributes.count as usize);
    Ok(ids)
}

/// The same, with none where this kernel has no such hook.
pub(crate) fn programs_at_tc(interface_index: u32) -> io::Result<Vec<u32>> {
    match tcx_programs(interface_index) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Vec::new()),
        programs => programs,
    }
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
    use super::*;

    #[test]
    fn a_query_writes_nothing_behind_its_attributes() {
        const GUARD: u64 = 0x5a5a_5a5a_5a5a_5a5a;
        #[repr(C)]
        struct Guarded {
            attributes: QueryAttributes,
            behind: [u64; 16],
        }
        let mut guarded = Guarded {
            attributes: QueryAttributes {
                interface_index: 1, // loopback, the first interface of every namespace
                attach_type: ATTACH_TCX_INGRESS,
                revision: GUARD,
                ..QueryAttributes::default()
            },
            behind: [GUARD; 16],
        };
        // SAFETY: laid out as the command has it, up to the last field that it writes; no programs are asked for.
        if let Err(error) = unsafe { call(PROGRAM_QUERY, &mut guarded.attributes) } {
            println!("SKIPPED: no programs at traffic control to ask for: {error}");
            return;
        }
        assert_eq!(guarded.behind, [GUARD; 16]);
        assert_ne!(guarded.attributes.revision, GUARD, "the last field");
    }

    #[test]
    fn only_arrays_are_read_and_written() {
        /// `BPF_MAP_TYPE_PERCPU_ARRAY`.
        const ARRAY_PER_CPU: u32 = 6;
        let mut attributes = CreateAttributes {
            kind: ARRAY_PER_CPU,
            key_bytes: 4,
            value_bytes: 8,
            entries: 1,
            flags: 0,
        };
        // SAFETY: the layout is that of the command; there are no addresses in it.
        let map = match unsafe { call(MAP_CREATE, &mut attributes) } {
            // SAFETY: just made, and ours.
            Ok(map) => unsafe { OwnedFd::from_raw_fd(map) },
            Err(error) => return println!("SKIPPED: no maps here: {error}"),
        };
        let refused = |error: io::Error| error.kind() == io::ErrorKind::InvalidInput;
        assert!(lookup(map.as_fd(), 0).is_err_and(refused));
        assert!(update(map.as_fd(), 0, &[0; 8]).is_err_and(refused));
        let array = inner_map().unwrap();
        update(array.as_fd(), 0, &[7; 8]).unwrap();
        assert_eq!(lookup(array.as_fd(), 0).unwrap(), [7; 8]);
    }
}
