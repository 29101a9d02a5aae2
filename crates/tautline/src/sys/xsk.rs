//! An AF_XDP socket with its own memory: four rings that it shares with the kernel, and frames that lie
//! in one mapping (`Documentation/networking/af_xdp.rst`). What the frames mean is the link's business.
//!
//! One socket for each queue of an interface: a second bind to the same queue with memory of its own is
//! EBUSY, for a while also after the first has been closed, because closing is asynchronous.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::memory::Mapping;
use super::socket::{bind, open, set_option};

/// Bytes of a frame's place in copy mode: half a page, which holds a full Ethernet frame and the headroom.
const CHUNK_BYTES_COPY: usize = 2048;
/// The same where a driver receives into it. Of half a page 256 bytes go for headroom, and drivers that tell their
/// card the rest in steps of 1 KiB (igb, igc) would have it cut frames at 1 KiB: on igb none arrived.
const CHUNK_BYTES_ZERO_COPY: usize = 4096;
/// Places on either way: half of them are lent to the kernel to receive into, half are for sending. Lower:
/// a reader that sleeps loses frames sooner. Higher: 2 or 4 KiB more each, pinned.
pub(crate) const RING_SLOTS: u32 = 1024;
/// Bytes that the BPF program writes before a frame. What they say is the link's business too.
pub(crate) const NOTE_BYTES: usize = 16;
/// `XDP_MAX_TX_SKB_BUDGET`, which the C library does not name yet: frames that one call sends in copy mode.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Bytes of frames that the kernel holds until the driver has sent them, in copy mode; it doubles the number. Lower:
/// where a driver gives frames back late, the end of a batch waits in our ring for the next call (the default holds
/// about 90 of the largest). Higher: no difference, since the ring has no more frames.
const IN_FLIGHT_BYTES: libc::c_int = RING_SLOTS as libc::c_int * 2048;

/// EtherType of a frame that was queued and then given up, `ETH_P_LOOPBACK` of linux/if_ether.h: no socket receives it.
const ETHERTYPE_VOID: u16 = 0x9000;

/// Calls to send what is queued: in copy mode kernels without `XDP_MAX_TX_SKB_BUDGET` send 32 frames a call
/// (`TX_BATCH_SIZE`), so as many as a full ring takes.
const TRANSMIT_CALLS_MAX: u32 = RING_SLOTS / 32;

/// Opens an AF_XDP socket and closes it again.
pub(crate) fn try_socket() -> io::Result<()> {
    open(libc::AF_XDP, libc::SOCK_RAW, 0).map(drop)
}

/// The option for more frames a call, on a socket that is closed again. It wants a ring first.
pub(crate) fn try_send_budget() -> io::Result<()> {
    let socket = open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
    let fd = socket.as_fd();
    set_option(fd, libc::SOL_XDP, libc::XDP_TX_RING, &RING_SLOTS)?;
    set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &RING_SLOTS)
}

/// How the kernel moves frames between the driver and our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// The driver works in our memory.
    Zero,
    /// The kernel copies each frame, in and out.
    One,
}

/// Options of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) interface_index: u32,
    pub(crate) queue: u32,
    /// Zero is refused where the driver has it not.
    pub(crate) copies: Copies,
}

/// Memory of one socket, in bytes.
pub(crate) const fn memory_bytes(copies: Copies) -> usize {
    2 * RING_SLOTS as usize * chunk_bytes(copies)
}

const fn chunk_bytes(copies: Copies) -> usize {
    match copies {
        Copies::Zero => CHUNK_BYTES_ZERO_COPY,
        Copies::One => CHUNK_BYTES_COPY,
    }
}

/// One ring: producer and consumer index, flags, and entries of `T`.
struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Our own index: of the next entry to take, or to fill.
    own: u32,
    _entries: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        socket: BorrowedFd<'_>,
        offsets: libc::xdp_ring_offset,
        page_offset: u64,
    ) -> io::Result<Self> {
        let entries_bytes = RING_SLOTS as usize * size_of::<T>();
        let bytes = offsets.desc as usize + entries_bytes;
        let mapping = Mapping::shared(socket, bytes, page_offset as usize)?;
        Ok(Self {
            mapping,
            offsets,
            own: 0,
            _entries: std::marker::PhantomData,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of a 32-bit index within the mapping, which lives as long
        // as `self`; both sides access it as an atomic only.
        unsafe {
            self.mapping
                .base()
                .byte_add(offset as usize)
                .cast::<AtomicU32>()
                .as_ref()
        }
    }

    fn entry(&self, index: u32) -> *mut T {
        let slot = (index & (RING_SLOTS - 1)) as usize;
        // SAFETY: `map` has mapped RING_SLOTS entries from `desc` on.
        unsafe {
            self.mapping
                .base()
                .byte_add(self.offsets.desc as usize)
                .cast::<T>()
                .add(slot)
        }
        .as_ptr()
    }

    /// Whether the kernel sleeps and is to be called.
    fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As producer: indices of the entries that the kernel has not taken.
    fn untaken(&self) -> impl Iterator<Item = u32> + use<T> {
        // Partner: the kernel's release of the consumer index.
        let taken = self.word(self.offsets.consumer).load(Acquire);
        (0..self.own.wrapping_sub(taken)).map(move |place| taken.wrapping_add(place))
    }

    /// As consumer: the next entry, if the kernel has made one.
    fn take(&mut self) -> Option<T> {
        // Partner: the kernel's release of the producer index.
        let produced = self.word(self.offsets.producer).load(Acquire);
        if produced == self.own {
            return None;
        }
        // SAFETY: an entry that the kernel has published and that is ours until the index is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        // Partner: the kernel's acquire of the consumer index.
        self.word(self.offsets.consumer).store(self.own, Release);
        Some(entry)
    }

    /// As producer: publishes an entry; `false` if the ring is full.
    fn put(&mut self, entry: T) -> bool {
        // Partner: the kernel's release of the consumer index.
        let consumed = self.word(self.offsets.consumer).load(Acquire);
        if self.own.wrapping_sub(consumed) >= RING_SLOTS {
            return false;
        }
        // SAFETY: a free entry, which is ours until the index is released.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        // Partner: the kernel's acquire of the producer index.
        self.word(self.offsets.producer).store(self.own, Release);
        true
    }
}

/// A frame that was received, where it lies.
pub(crate) struct Frame<'a> {
    /// Note that the BPF program wrote before the frame.
    pub(crate) note: [u8; NOTE_BYTES],
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
}

/// An AF_XDP socket on one queue.
pub(crate) struct XskSocket {
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    /// Places that are free to send from.
    free: Vec<u64>,
    copies: Copies,
    chunk_bytes: usize,
    /// The last call left something in the transmit ring.
    unsent: bool,
    /// The last call was refused, as it is while the interface is down.
    refused: bool,
    // After the rings: the kernel lets go of the memory with the socket.
    socket: OwnedFd,
    memory: Mapping,
}

impl std::fmt::Debug for XskSocket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("XskSocket")
            .field("copies", &self.copies)
            .finish_non_exhaustive()
    }
}

impl XskSocket {
    /// A socket on a queue of an interface. EBUSY if another process has the queue, EINVAL if there is none such,
    /// ENOBUFS if this user may not lock so much memory; where zero copies are asked for, whatever the driver answers.
    pub(crate) fn open(opening: &Opening) -> io::Result<Self> {
        let Opening {
            interface_index,
            queue,
            copies,
        } = *opening;
        let chunk_bytes = chunk_bytes(copies);
        let socket = open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let memory = Mapping::anonymous(memory_bytes(copies))?;
        let fd = socket.as_fd();
        let area = libc::xdp_umem_reg {
            addr: memory.base().as_ptr().addr() as u64,
            len: memory.bytes() as u64,
            chunk_size: chunk_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &area)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(fd, libc::SOL_XDP, ring, &RING_SLOTS)?;
        }
        // Best effort: without the privilege, the system's default holds.
        let _not_permitted =
            set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &IN_FLIGHT_BYTES);
        // Best effort: without it, more calls are made.
        let _older_kernel = set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &RING_SLOTS);
        let offsets: libc::xdp_mmap_offsets = option(fd, libc::XDP_MMAP_OFFSETS)?;
        let mut fill = Ring::map(fd, offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let completion = Ring::map(fd, offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let receive = Ring::map(fd, offsets.rx, libc::XDP_PGOFF_RX_RING as u64)?;
        let transmit = Ring::map(fd, offsets.tx, libc::XDP_PGOFF_TX_RING as u64)?;
        for place in 0..u64::from(RING_SLOTS) {
            fill.put(place * chunk_bytes as u64);
        }
        let sending = u64::from(RING_SLOTS)..2 * u64::from(RING_SLOTS);
        let mode = match copies {
            Copies::Zero => libc::XDP_ZEROCOPY,
            Copies::One => libc::XDP_COPY,
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: mode | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface_index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        bind(fd, &address)?;
        let options: libc::xdp_options = option(fd, libc::XDP_OPTIONS)?;
        let copies = match options.flags & libc::XDP_OPTIONS_ZEROCOPY {
            0 => Copies::One,
            _ => Copies::Zero,
        };
        Ok(Self {
            fill,
            completion,
            receive,
            transmit,
            free: sending.map(|place| place * chunk_bytes as u64).collect(),
            copies,
            chunk_bytes,
            unsent: false,
            refused: false,
            socket,
            memory,
        })
    }

    /// How frames get in and out, as the kernel says.
    pub(crate) fn copies(&self) -> Copies {
        self.copies
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands the next frame to `look`, where it lies, and its place back to the kernel; `None` if there is none.
    pub(crate) fn receive<T>(&mut self, look: impl FnOnce(Frame<'_>) -> T) -> Option<T> {
        let entry = self.receive.take()?;
        let (start, length) = (entry.addr as usize, entry.len as usize);
        let looked = match self.place(start, length) {
            Some(bytes) if start % self.chunk_bytes >= NOTE_BYTES => {
                let note = self.place(start - NOTE_BYTES, NOTE_BYTES);
                let note = note.and_then(|note| note.first_chunk()).copied();
                let note = note.unwrap_or_default();
                Some(look(Frame { note, bytes }))
            }
            // Not the kernel's doing; nothing to look at.
            _ => None,
        };
        let chunk = start - start % self.chunk_bytes;
        // There is room: as many places as slots go round.
        self.fill.put(chunk as u64);
        looked
    }

    /// Lets the kernel know that there are places to receive into, if it sleeps for want of them.
    pub(crate) fn wake_receiver(&self) {
        if self.fill.needs_wakeup() {
            super::socket::look(self.socket.as_fd());
        }
    }

    /// Sends the frames that `fill` queues, and says how many; fewer if the kernel has taken only those. On an error
    /// none of them leaves, also not later.
    pub(crate) fn send(
        &mut self,
        fill: impl FnOnce(&mut Self) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.refused {
            // Asked while there is nothing that could be left behind.
            self.transmit()?;
        }
        let filled = fill(self);
        // Also what was queued before something did not fit any more.
        let Err(error) = self.call_to_send() else {
            return filled;
        };
        let left = self.void_queued();
        match filled.unwrap_or(0).saturating_sub(left) {
            0 => Err(error),
            taken => Ok(taken),
        }
    }

    /// Makes sure that so many frames can be queued; EAGAIN if not, also after what is queued already has been sent.
    /// More than [`RING_SLOTS`] never can.
    pub(crate) fn reserve(&mut self, frames: usize) -> io::Result<()> {
        if self.free.len() >= frames {
            return Ok(());
        }
        self.take_back();
        if self.free.len() < frames {
            self.transmit()?;
            self.take_back();
        }
        match self.free.len() >= frames {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        }
    }

    /// The places of frames that have been sent.
    fn take_back(&mut self) {
        while let Some(place) = self.completion.take() {
            self.free.push(place);
        }
    }

    /// Writes a frame to be sent; EAGAIN if all places are under way. [`XskSocket::send`] sends it.
    pub(crate) fn queue(&mut self, parts: [&[u8]; 2]) -> io::Result<()> {
        self.take_back();
        let bytes = parts[0].len() + parts[1].len();
        if bytes > self.chunk_bytes {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let place = self.free.pop();
        let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        let mut at = place as usize;
        for part in parts {
            // SAFETY: the place is one of ours to send from, within the memory, and not under way; both parts fit it.
            unsafe {
                let to = self.memory.base().as_ptr().add(at);
                to.copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
            at += part.len();
        }
        self.transmit.put(libc::xdp_desc {
            addr: place,
            len: bytes as u32,
            options: 0,
        });
        Ok(())
    }

    /// Has the kernel send what is queued. On an error nothing of it leaves.
    fn transmit(&mut self) -> io::Result<()> {
        let sent = self.call_to_send();
        if sent.is_err() {
            self.void_queued();
        }
        sent
    }

    /// Gives up the frames that the kernel has not taken, and says how many they are. They cannot be taken back: a
    /// thread that sleeps on the socket may have the kernel send them at this moment (in copy mode `poll` sends). So
    /// their content goes: they leave when the interface is up, addressed to their own sender, which a switch does not
    /// pass on.
    #[cold]
    fn void_queued(&mut self) -> usize {
        self.refused = true;
        let mut count = 0;
        for index in self.transmit.untaken() {
            // SAFETY: an entry that this process wrote; the kernel only reads it.
            let entry = unsafe { self.transmit.entry(index).read() };
            // SAFETY: the place is one of ours to send from, within the memory; `queue` gave it to the entry. The
            // kernel may be reading it, and then sends either frame.
            unsafe {
                let frame = self.memory.base().as_ptr().add(entry.addr as usize);
                frame.copy_from_nonoverlapping(frame.add(6), 6);
                frame
                    .add(12)
                    .copy_from_nonoverlapping(ETHERTYPE_VOID.to_be_bytes().as_ptr(), 2);
            }
            count += 1;
        }
        count
    }

    /// Has the kernel send what is queued, if it does not do so by itself. Never waits: what the kernel has no
    /// room for at the moment stays queued, and [`XskSocket::transmit_rest`] tries again.
    fn call_to_send(&mut self) -> io::Result<()> {
        (self.unsent, self.refused) = (false, false);
        if !self.transmit.needs_wakeup() {
            return Ok(());
        }
        for _ in 0..TRANSMIT_CALLS_MAX {
            let result = super::socket::send(self.socket.as_fd(), &[]);
            match result.as_ref().err().and_then(io::Error::raw_os_error) {
                // In copy mode a call sends so many, and says that there are more.
                Some(libc::EAGAIN) => {}
                Some(libc::EBUSY | libc::ENOBUFS) => break,
                _ => return result,
            }
        }
        self.unsent = true;
        Ok(())
    }

    /// Has the kernel send what the last call left.
    pub(crate) fn transmit_rest(&mut self) {
        if self.unsent {
            // An interface that is down is told to who sends next.
            let _still_unsent = self.transmit();
        }
    }

    /// Frames that the kernel dropped for want of room in this socket's rings.
    pub(crate) fn dropped(&self) -> io::Result<u64> {
        let statistics: libc::xdp_statistics = option(self.socket.as_fd(), libc::XDP_STATISTICS)?;
        Ok(statistics.rx_dropped + statistics.rx_ring_full + statistics.rx_fill_ring_empty_descs)
    }

    fn place(&self, start: usize, length: usize) -> Option<&[u8]> {
        let inside = start.checked_add(length)? <= RING_SLOTS as usize * self.chunk_bytes;
        // SAFETY: within the part of the memory that is received into; the kernel has published the
        // frame and does not write to it until its place is handed back, which needs `&mut self`.
        inside.then(|| unsafe {
            std::slice::from_raw_parts(self.memory.base().as_ptr().add(start), length)
        })
    }
}

fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: room for a `T`, and its size; the kernel writes at most that many bytes.
    super::check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            name,
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    })?;
    if bytes as usize != size_of::<T>() {
        return Err(io::Error::other(
            "this kernel's AF_XDP is older (needs Linux 5.11)",
        ));
    }
    // SAFETY: C structures of integers, zeroed before and written whole.
    Ok(unsafe { value.assume_init() })
}
