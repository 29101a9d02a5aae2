//! Frames with grants and reports.

use tautline_proto::smoother::message::{GRANT_BYTES, Grant, Message, PORT, REPORT_BYTES, Report};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, Header, MacAddress, PortNumber, Priority, ethernet};

/// Bytes of the longest frame that is sent.
pub(crate) const FRAME_BYTES: usize = ethernet::HEADERS_BYTES + REPORT_BYTES;

/// A frame to be sent.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: [u8; FRAME_BYTES],
    used: usize,
}

impl Frame {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub(crate) fn grant(ends: Ends, sequence: u32, grant: &Grant) -> Self {
        Self::new(ends, sequence, &grant.encode())
    }

    pub(crate) fn report(ends: Ends, sequence: u32, report: &Report) -> Self {
        Self::new(ends, sequence, &report.encode())
    }

    fn new(ends: Ends, sequence: u32, payload: &[u8]) -> Self {
        let port = PortNumber::new(PORT).expect("a port number");
        let length = payload.len() as u16;
        let header = Header::whole(port, port, Priority::HIGHEST, length, sequence);
        let mut bytes = [0; FRAME_BYTES];
        let (head, rest) = bytes
            .split_first_chunk_mut::<{ ethernet::HEADERS_BYTES }>()
            .expect("the frame is longer");
        ethernet::emit_header(head, ends.to, ends.from, ETHERTYPE_DEFAULT, &header);
        rest[..payload.len()].copy_from_slice(payload);
        Self {
            bytes,
            used: ethernet::HEADERS_BYTES + payload.len(),
        }
    }
}

/// Addresses of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) from: MacAddress,
    pub(crate) to: MacAddress,
}

/// The sender of a frame and its message, if it is one to our port and not cut off.
pub(crate) fn parse(frame: &[u8]) -> Option<(MacAddress, Message)> {
    let frame = ethernet::parse(frame, ETHERTYPE_DEFAULT).ok()?;
    if frame.header.destination.get() != PORT || frame.header.fragment_count != 1 {
        return None;
    }
    Some((frame.source, Message::parse(frame.payload).ok()?))
}

const _: () = assert!(GRANT_BYTES <= REPORT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written() {
        let ends = Ends {
            from: MacAddress([2, 0, 0, 0, 0, 1]),
            to: MacAddress([2, 0, 0, 0, 0, 2]),
        };
        let grant = Grant {
            burst_bytes: 1538,
            epoch: 1,
            number: 2,
            rate_bps: 3,
        };
        let frame = Frame::grant(ends, 7, &grant);
        assert_eq!(
            parse(frame.bytes()),
            Some((ends.from, Message::Grant(grant)))
        );
        for length in 0..frame.bytes().len() {
            assert_eq!(parse(&frame.bytes()[..length]), None);
        }
    }
}
