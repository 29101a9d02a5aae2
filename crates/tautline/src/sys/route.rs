//! A question to the kernel about interfaces, and its answer (rtnetlink(7)).

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Sends one request, in the calling thread's network namespace, and returns the kernel's first answer. `flags` come
/// beside `NLM_F_REQUEST`. An error that the kernel answers with is a payload, not an error of this call.
pub(crate) fn ask(
    request: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (answer, _from) = socket.recv_from_full()?;
    let answer =
        NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
    Ok(answer.payload)
}

/// Asks the kernel to change something, and for its answer. `flags` as for [`ask`].
pub(crate) fn change(request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    match ask(request, NLM_F_ACK | flags)? {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(()),
    }
}
