//! Messages between the process of a machine and its parent: packets of one socket. First an [`Order`], with
//! descriptors; then [`Report::Ready`] or [`Report::Refused`]; then [`Go`]; at last [`Report::Ended`]. The process
//! ends when the other end of the socket is closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most segments of an image. Lower: an image with a segment for each of its sections is refused. Higher: an order
/// does not fit into a packet.
pub const SEGMENTS_MAX: usize = 64;
/// Largest packet: an order with all segments.
const PACKET_BYTES_MAX: usize = 16 << 10;
/// Descriptors that come with an order.
const DESCRIPTORS: usize = 6;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its memory.
    pub ram_bytes: u64,
    /// Whether all memory is to be there, and locked, before the guest starts.
    pub is_resident: bool,
    /// Linux's half of the window.
    pub linux_bytes: u64,
    /// The guest's half, which follows in the file.
    pub guest_bytes: u64,
    /// Parts of the image.
    pub segments: Vec<Segment>,
    /// Address of the first instruction.
    pub entry: u64,
}

/// A part of an image that lies in memory when the guest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes in the file; memory behind them is zero.
    pub bytes: u64,
    /// Its address.
    pub address: u64,
}

/// Descriptors that come with an order.
#[derive(Debug)]
pub struct Descriptors<D> {
    /// KVM.
    pub kvm: D,
    /// The image.
    pub image: D,
    /// The window, open for reading alone: for Linux's half.
    pub window_to_read: D,
    /// The window, open for reading and writing: for the guest's half.
    pub window: D,
    /// Event that the guest rings.
    pub to_linux: D,
    /// Event that interrupts the guest.
    pub to_guest: D,
}

/// The guest may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go;

/// News of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It is made, and waits.
    Ready {
        /// Thread of its processor.
        processor: u32,
        /// Settings that could not be had.
        limits: Vec<String>,
    },
    /// It cannot be made.
    Refused(String),
    /// It has ended.
    Ended(End),
}

/// End of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The guest switched it off.
    SwitchedOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest failed, as it says itself.
    Failed,
    /// The guest did something that this machine does not do.
    Faulted(String),
    /// KVM failed.
    Broken(String),
}

/// Both ends of a socket for packets.
///
/// # Errors
/// No descriptors are left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Sends a packet.
///
/// # Errors
/// The other end is closed.
pub fn send(socket: &OwnedFd, packet: &impl Serialize) -> io::Result<()> {
    send_with(socket, packet, &[])
}

/// Sends an order with its descriptors.
///
/// # Errors
/// The other end is closed, or the order is too large.
pub fn send_order(
    socket: &OwnedFd,
    order: &Order,
    descriptors: &Descriptors<BorrowedFd<'_>>,
) -> io::Result<()> {
    let Descriptors {
        kvm,
        image,
        window_to_read,
        window,
        to_linux,
        to_guest,
    } = descriptors;
    let all: [BorrowedFd<'_>; DESCRIPTORS] =
        [*kvm, *image, *window_to_read, *window, *to_linux, *to_guest];
    send_with(socket, order, &all)
}

fn send_with(
    socket: &OwnedFd,
    packet: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    if bytes.len() > PACKET_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives a packet; waits for it.
///
/// # Errors
/// `UnexpectedEof`: the other end is closed. `InvalidData`: it is another packet.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<T> {
    receive_with(socket).map(|(packet, _)| packet)
}

/// Receives an order with its descriptors.
///
/// # Errors
/// Those of [`receive`].
pub fn receive_order(socket: impl AsFd) -> io::Result<(Order, Descriptors<OwnedFd>)> {
    let (order, descriptors) = receive_with(socket)?;
    let descriptors: [OwnedFd; DESCRIPTORS] = descriptors
        .try_into()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let [kvm, image, window_to_read, window, to_linux, to_guest] = descriptors;
    let descriptors = Descriptors {
        kvm,
        image,
        window_to_read,
        window,
        to_linux,
        to_guest,
    };
    Ok((order, descriptors))
}

fn receive_with<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((
        serde_json::from_slice(&bytes[..received.bytes])?,
        descriptors,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_whole_with_their_descriptors() {
        let (ours, theirs) = pair().unwrap();
        let segment = Segment {
            offset: u64::MAX,
            bytes: u64::MAX,
            address: u64::MAX,
        };
        let order = Order {
            ram_bytes: u64::MAX,
            is_resident: true,
            linux_bytes: u64::MAX,
            guest_bytes: u64::MAX,
            segments: vec![segment; SEGMENTS_MAX],
            entry: u64::MAX,
        };
        let files: Vec<_> = (0..DESCRIPTORS).map(|_| pair().unwrap()).collect();
        let one = |index: usize| files[index].0.as_fd();
        let descriptors = Descriptors {
            kvm: one(0),
            image: one(1),
            window_to_read: one(2),
            window: one(3),
            to_linux: one(4),
            to_guest: one(5),
        };
        send_order(&ours, &order, &descriptors).unwrap();
        let (received, kept) = receive_order(&theirs).unwrap();
        assert_eq!(received, order);
        // A packet to the last of them arrives at its other end.
        send(&kept.to_guest, &Go).unwrap();
        assert_eq!(receive::<Go>(&files[5].1).unwrap(), Go);

        send(&theirs, &Report::Ended(End::Reset)).unwrap();
        send(&theirs, &Go).unwrap();
        assert!(matches!(receive(&ours), Ok(Report::Ended(End::Reset))));
        let other = receive::<Report>(&ours).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        let closed = receive::<Report>(&ours).unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_order_without_its_descriptors_is_refused() {
        let (ours, theirs) = pair().unwrap();
        let order = Order {
            ram_bytes: 0,
            is_resident: false,
            linux_bytes: 0,
            guest_bytes: 0,
            segments: Vec::new(),
            entry: 0,
        };
        send(&ours, &order).unwrap();
        let refused = receive_order(&theirs).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
