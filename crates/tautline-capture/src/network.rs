//! Frames of one interface, from the places where they pass: the demux, which takes ours before Linux sees them, and
//! senders past the queueing discipline, both in a ring; and Linux itself, in a packet socket.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tautline::status::programs_on;
use tautline_state::netlink::{DUMP, Request, Route, attribute, word};

use crate::batch::{Batch, Origin, Way};
use crate::error::CaptureError;
use crate::ring::{self, Ring};
use crate::sent_frames::ShownFrames;
use crate::sys::{self, PacketSocket};

/// Time between two looks at which programs there are, a quarter of the time that rings are asked to copy for. Lower:
/// the look, a walk over all programs of the machine, takes time. Higher: more frames of a node that opens are not
/// seen.
const REFRESH: Duration = Duration::from_millis(250);

/// Bytes that are kept of a frame that Linux handles; it may be one that a network card will cut.
const FRAME_BYTES_MAX: usize = 65_536;

/// Frames that are taken from one ring in one look, twice its size. The limit bounds a look at a ring that is
/// written meanwhile.
const RING_FRAMES_MAX: u64 = 2 * tautline_shm::tap::SLOTS;

/// Frames that are taken from the packet socket in one look, so that a flood does not keep the ring waiting.
const SOCKET_FRAMES_MAX: usize = 4096;

// linux/rtnetlink.h and linux/if_link.h
const RTM_GETLINK: u16 = 18;
const LINK_HEAD_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;

/// Copies the frames of one interface.
#[derive(Debug)]
pub(crate) struct NetworkTap {
    /// Name in the kernel, not necessarily UTF-8.
    interface: OsString,
    /// Name for display.
    name: String,
    /// Whether whatever is sent comes back, so that it passes twice.
    is_loopback: bool,
    /// That of the nodes.
    ethertype: u16,
    socket: PacketSocket,
    /// Rings of the programs of this interface, by the programs' numbers.
    rings: HashMap<u32, Ring>,
    refreshed: Instant,
    /// By the packet socket, and by rings that are gone.
    lost: u64,
    notes: Vec<String>,
    told: HashSet<String>,
    _shown: Arc<ShownFrames>,
    buffer: Vec<u8>,
    epoch_offset: u64,
}

impl NetworkTap {
    /// Begins to copy the frames of an interface. `ethertype` is that of the nodes.
    pub(crate) fn open(interface: impl AsRef<OsStr>, ethertype: u16) -> Result<Self, CaptureError> {
        let interface = interface.as_ref();
        let name = interface.to_string_lossy().into_owned();
        let found = find(interface).map_err(CaptureError::of("look at the interface"))?;
        let (index, flags) = found.ok_or_else(|| CaptureError::NoInterface(name.clone()))?;
        let socket = PacketSocket::open(index, ethertype);
        let socket = socket.map_err(CaptureError::of("open a packet socket"))?;
        ring::may_look()?;
        let mut tap = Self {
            interface: interface.to_owned(),
            is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
            name,
            ethertype,
            socket,
            rings: HashMap::new(),
            refreshed: Instant::now(),
            lost: 0,
            notes: Vec::new(),
            told: HashSet::new(),
            _shown: ShownFrames::ask().map_err(CaptureError::of("start a thread"))?,
            buffer: vec![0; FRAME_BYTES_MAX],
            epoch_offset: sys::epoch_offset(),
        };
        tap.refresh();
        Ok(tap)
    }

    /// Name of the interface.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sentences about what is not seen, each once.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Frames that were lost so far because they were not read in time.
    pub(crate) fn lost(&mut self) -> u64 {
        self.lost += self.socket.lost();
        let in_rings = self.rings.values().map(Ring::lost);
        in_rings.fold(self.lost, u64::saturating_add)
    }

    /// Copies the frames that have passed since the last look. Never waits.
    pub(crate) fn look(&mut self, origin: Origin, batch: &mut Batch) -> Result<(), CaptureError> {
        for ring in self.rings.values_mut() {
            let mut lost = 0;
            for _ in 0..RING_FRAMES_MAX {
                let Some(copied) = ring.next(&mut self.buffer) else {
                    break;
                };
                lost += copied.lost;
                let was_seen = ring.is_behind_sockets() && copied.way == Way::Received;
                if was_seen && sys::is_kept_by_socket(&self.buffer, self.ethertype) {
                    continue;
                }
                if self.is_loopback && copied.way == Way::Sent {
                    continue;
                }
                batch.push(
                    origin,
                    copied.time_ns.saturating_add(self.epoch_offset),
                    copied.way,
                    copied.length,
                    &[&self.buffer],
                    std::mem::take(&mut lost),
                );
            }
        }
        self.look_at_socket(origin, batch)?;
        if self.refreshed.elapsed() >= REFRESH {
            self.refresh();
        }
        Ok(())
    }

    fn look_at_socket(&mut self, origin: Origin, batch: &mut Batch) -> Result<(), CaptureError> {
        self.buffer.resize(FRAME_BYTES_MAX, 0);
        for _ in 0..SOCKET_FRAMES_MAX {
            let seen = self.socket.receive(&mut self.buffer);
            let Some(seen) = seen.map_err(CaptureError::of("read from the packet socket"))? else {
                break;
            };
            if self.is_loopback && seen.way == Way::Sent {
                continue;
            }
            let bytes = &self.buffer[..seen.length.min(FRAME_BYTES_MAX)];
            batch.push(origin, seen.time_ns, seen.way, seen.length, &[bytes], 0);
        }
        Ok(())
    }

    /// Finds the programs that have come since the last look, and asks all for copies.
    fn refresh(&mut self) {
        self.refreshed = Instant::now();
        // The clock of the files is set while one runs.
        self.epoch_offset = sys::epoch_offset();
        let name = self.interface.to_str();
        let programs = name.and_then(|name| programs_on(name).ok());
        let programs = programs.unwrap_or_default();
        let mut there: Vec<_> = programs.into_iter().filter_map(ring::receiver).collect();
        there.extend(
            there
                .iter()
                .flat_map(ring::client_sends)
                .collect::<Vec<_>>(),
        );
        let gone: Vec<u32> = self
            .rings
            .keys()
            .filter(|id| there.iter().all(|program| program.id() != **id))
            .copied()
            .collect();
        for id in gone {
            let lost = self.rings.remove(&id).map_or(0, |ring| ring.lost());
            self.lost = self.lost.saturating_add(lost);
        }
        for program in there {
            if let Some(ring) = self.rings.get(&program.id()) {
                ring.ask();
                continue;
            }
            match Ring::of(&program) {
                Ok(Some(ring)) => {
                    self.rings.insert(program.id(), ring);
                }
                Ok(None) => {
                    self.note("not all frames are seen: a node is of another version of Tautline")
                }
                Err(error) => self.note(&format!("not all frames are seen: {error}")),
            }
        }
    }

    /// Keeps a sentence for the user, once.
    fn note(&mut self, note: &str) {
        let note = format!("{}: {note}", self.name);
        if self.told.insert(note.clone()) {
            self.notes.push(note);
        }
    }
}

/// Index and flags of an interface of this thread's network namespace.
fn find(name: &OsStr) -> io::Result<Option<(u32, u32)>> {
    let mut found = None;
    let mut request = Request::new(RTM_GETLINK, 0, &[0; LINK_HEAD_BYTES])
        .with(IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
    let asked = Route::open()?.ask(&mut request, |message| {
        found = word(message, 4).zip(word(message, 8));
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        // A name that no interface can have.
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// Names of the interfaces of this thread's network namespace that are up, without loopback.
///
/// # Errors
/// The kernel's.
pub fn up_interfaces() -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    let mut request = Request::new(RTM_GETLINK, DUMP, &[0; LINK_HEAD_BYTES]);
    Route::open()?.ask(&mut request, |message| {
        let flags = word(message, 8).unwrap_or(0);
        let wanted = flags & libc::IFF_UP as u32 != 0 && flags & libc::IFF_LOOPBACK as u32 == 0;
        let name = message.get(LINK_HEAD_BYTES..).and_then(|attributes| {
            let name = attribute(attributes, IFLA_IFNAME)?;
            name.split(|byte| *byte == 0).next()
        });
        names.extend(
            name.filter(|_| wanted)
                .map(|name| OsStr::from_bytes(name).to_owned()),
        );
    })?;
    Ok(names)
}
