//! The taps through which the clients of a control process send, and the program that decides what may pass
//! (`bpf/send.bpf.c`).
//!
//! Each tap lies in a network namespace that no process is in and that has nothing else in it. Its index is that of
//! its port's place in the demux, by which the program finds the port's permit. Namespace, taps and program live as
//! long as a process has a descriptor of them: a client sends on when the control process has died.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{DevMap, Map, MapData, MapInfo};
use aya::programs::Xdp;
use tautline_proto::wire::PortKey;

use super::demux::{Setup, not_loaded};
use crate::error::OpenError;
use crate::sys::namespace::PrivateNamespace;
use crate::sys::{bpf, tap};

const PROGRAM: &str = "tautline_send";
const PERMITS: &str = "senders";

/// `TL_SENDER_INTERFACE` of `bpf/tautline.h`. Above the indexes that the kernel gives to interfaces of its own
/// in a fresh namespace.
const FIRST_INDEX: u32 = 0x1_0000;

/// `TL_SEND_PORT` and those after it, of `bpf/tautline.h`.
const SEND_PORT: u8 = 1;
const SEND_DATAGRAMS: u8 = 2;
const SEND_RAW: u8 = 3;
const SEND_RAW_OF_ANY: u8 = 4;

/// `struct tl_sender`.
const SENDER_BYTES: usize = 24;
/// In place 0, which no port has: which demux the taps belong to.
const DEMUX: usize = 12;
const REFUSED: usize = 16;

/// Frames that one tap lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// Port that they are from.
    pub(crate) key: PortKey,
    /// Whether raw ones may be from any address, or from the interface's alone.
    pub(crate) any_source_address: bool,
    /// A bit for each.
    pub(crate) priorities: u8,
}

impl Permit {
    fn to_bytes(self) -> [u8; SENDER_BYTES] {
        let form = match self.key {
            PortKey::Message(_) => SEND_PORT,
            PortKey::Udp(_) => SEND_DATAGRAMS,
            PortKey::Raw(_) if self.any_source_address => SEND_RAW_OF_ANY,
            PortKey::Raw(_) => SEND_RAW,
        };
        let mut bytes = [0; SENDER_BYTES];
        bytes[0] = form;
        bytes[1] = self.priorities;
        bytes[2..4].copy_from_slice(&self.key.number().to_be_bytes());
        bytes
    }
}

/// Program, permits and namespace of the taps of a control process.
#[derive(Debug)]
pub(crate) struct Taps {
    namespace: PrivateNamespace,
    program: Arc<OwnedFd>,
    /// Permissions of each place.
    permits: OwnedFd,
    /// The same of predecessors, whose clients have their taps yet. Found when this process begins.
    former: Vec<OwnedFd>,
}

impl Taps {
    /// Loads the program, for the clients of this demux.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(crate) fn new(setup: &Setup, demux: u32) -> Result<Self, OpenError> {
        let former = permits_of(demux);
        let mut ebpf = setup.load_object(tautline_bpf::SEND)?;
        let program: &mut Xdp = ebpf
            .program_mut(PROGRAM)
            .ok_or_else(|| not_loaded("the program for sending is not in its object".into()))?
            .try_into()
            .map_err(|error: aya::programs::ProgramError| not_loaded(error.into()))?;
        program.load().map_err(|error| not_loaded(error.into()))?;
        let loaded = |error: io::Error| not_loaded(error.into());
        let program = program
            .fd()
            .map_err(|error| not_loaded(error.into()))?
            .as_fd()
            .try_clone_to_owned()
            .map_err(loaded)?;
        let (permits, way_out) = (take_map(&mut ebpf, PERMITS), take_map(&mut ebpf, "way_out"));
        let permits = match permits? {
            Map::Array(data) => data.fd().as_fd().try_clone_to_owned().map_err(loaded)?,
            _ => return Err(not_loaded("`senders` is no array".into())),
        };
        let mut mark = [0; SENDER_BYTES];
        mark[DEMUX..REFUSED].copy_from_slice(&demux.to_ne_bytes());
        bpf::update(permits.as_fd(), 0, &mark).map_err(loaded)?;
        // The program keeps its maps.
        DevMap::try_from(way_out?)
            .map_err(|error| not_loaded(error.into()))?
            .set(0, setup.interface.index, None, 0)
            .map_err(|error| not_loaded(error.into()))?;
        let refused = |source: io::Error| OpenError::Refused {
            doing: "making a network namespace for what clients send".to_owned(),
            source: source.into(),
        };
        Ok(Self {
            namespace: PrivateNamespace::new().map_err(refused)?,
            program: Arc::new(program),
            permits,
            former,
        })
    }

    /// Makes the tap of a place. One that a client still has is taken from it.
    ///
    /// # Errors
    /// The kernel's; `ErrorKind::NotFound` if it has no taps.
    pub(crate) fn open(&self, place: u32, permit: Permit) -> io::Result<OwnedFd> {
        self.close(place)?;
        bpf::update(self.permits.as_fd(), place, &permit.to_bytes())?;
        let index = FIRST_INDEX + place;
        let program = Arc::clone(&self.program);
        let made = self
            .namespace
            .inside(move || tap::create(index, program.as_fd()));
        made.inspect_err(|_| {
            let _nothing_there = self.close(place);
        })
    }

    /// Takes the tap of a place from its client: nothing is sent through it any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close(&self, place: u32) -> io::Result<()> {
        for permits in self.former.iter().chain([&self.permits]) {
            bpf::update(permits.as_fd(), place, &[0; SENDER_BYTES])?;
        }
        self.namespace
            .inside(move || tap::delete(FIRST_INDEX + place))
    }

    /// Runs something on the thread that makes taps, which has privileges of its own.
    pub(crate) fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.namespace.inside(work)
    }

    /// Frames that a tap's owner was not allowed to send.
    pub(crate) fn refused(&self, place: u32) -> u64 {
        let sender = bpf::lookup(self.permits.as_fd(), place).unwrap_or_default();
        let count = sender
            .get(REFUSED..SENDER_BYTES)
            .and_then(|bytes| bytes.try_into().ok());
        count.map_or(0, u64::from_ne_bytes)
    }
}

/// Permits of predecessors' taps: those processes are gone, and their program runs as long as a tap is there.
fn permits_of(demux: u32) -> Vec<OwnedFd> {
    let programs = aya::programs::loaded_programs().filter_map(Result::ok);
    let senders = programs.filter(|program| program.name_as_str() == Some(PROGRAM));
    let maps = senders.filter_map(|program| program.map_ids().ok().flatten());
    let permits = maps.flatten().filter_map(|id| {
        let info = MapInfo::from_id(id).ok()?;
        let data = MapData::from_id(id).ok()?;
        (info.name_as_str() == Some(PERMITS)).then_some(())?;
        let permits = data.fd().as_fd().try_clone_to_owned().ok()?;
        let mark = bpf::lookup(permits.as_fd(), 0).ok()?;
        (mark.get(DEMUX..REFUSED)? == demux.to_ne_bytes()).then_some(permits)
    });
    permits.collect()
}

fn take_map(ebpf: &mut Ebpf, name: &str) -> Result<Map, OpenError> {
    ebpf.take_map(name)
        .ok_or_else(|| not_loaded(format!("it has no map `{name}`").into()))
}
