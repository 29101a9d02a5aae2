//! Bytes that an interface has received and sent, from `/proc/net/dev`.
//!
//! Netlink has the same numbers, behind the kernel's lock for interfaces (rtnl), held by any user that creates one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tautline_proto::smoother::WIRE_OVERHEAD_BYTES;

use crate::sys;

/// Longest part of the file that is looked through. A line is some 120 bytes; interfaces stand in the order in which
/// they were made.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Bytes read at once: the kernel writes no more than a page.
const PAGE_BYTES: usize = 4096;

/// Numbers after a name that tell of received and sent bytes and packets.
const RECEIVED: [usize; 2] = [0, 1];
const SENT: [usize; 2] = [8, 9];

/// Counts of an interface of the network namespace in which this was opened.
#[derive(Debug)]
pub(crate) struct InterfaceCounts {
    file: File,
    index: u32,
    name: String,
    text: Vec<u8>,
}

/// Bytes on the wire that an interface has received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireBytes {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl InterfaceCounts {
    pub(crate) fn open(index: u32, name: &str) -> io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/thread-self/net/dev")?,
            index,
            name: name.to_owned(),
            text: Vec::with_capacity(2 * PAGE_BYTES),
        })
    }

    /// Reads them. `ErrorKind::NotFound` if the interface is gone.
    pub(crate) fn read(&mut self) -> io::Result<WireBytes> {
        if let Some(bytes) = self.find()? {
            return Ok(bytes);
        }
        // It may have another name by now.
        if let Some(name) = sys::interface_name(self.index) {
            self.name = name;
        }
        self.find()?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find(&mut self) -> io::Result<Option<WireBytes>> {
        self.text.clear();
        while self.text.len() < FILE_BYTES_MAX {
            let end = self.text.len();
            self.text.resize(end + PAGE_BYTES, 0);
            let length = self.file.read_at(&mut self.text[end..], end as u64)?;
            self.text.truncate(end + length);
            if let Some(bytes) = line_of(&self.text, &self.name) {
                return Ok(Some(bytes));
            }
            if length == 0 {
                break;
            }
        }
        Ok(None)
    }
}

/// The numbers in the whole line of an interface.
fn line_of(text: &[u8], name: &str) -> Option<WireBytes> {
    let whole = text.iter().rposition(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(&text[..whole]).ok()?;
    let numbers = text.lines().find_map(|line| {
        let (one, numbers) = line.split_once(':')?;
        (one.trim_start() == name).then_some(numbers)
    })?;
    let numbers: Vec<u64> = numbers
        .split_ascii_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let on_wire = |[bytes, packets]: [usize; 2]| {
        Some(numbers.get(bytes)? + numbers.get(packets)? * WIRE_OVERHEAD_BYTES)
    };
    Some(WireBytes {
        received: on_wire(RECEIVED)?,
        sent: on_wire(SENT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0
  eth0: 18446744073709      10    0    0    0     0          0         0     5000       7    0    0    0     0       0          0
 eth01:  1 1    0    0    0     0          0         0     1       1    0    0    0     0       0          0
";

    #[test]
    fn the_line_of_an_interface_is_found() {
        let bytes = line_of(TEXT.as_bytes(), "eth0").unwrap();
        assert_eq!(
            bytes,
            WireBytes {
                received: 18_446_744_073_709 + 240,
                sent: 5168
            }
        );
        assert_eq!(line_of(TEXT.as_bytes(), "eth"), None);
        // A line that is not there to its end, or has no numbers, tells nothing.
        let cut = TEXT.find("5000").unwrap() + 2;
        assert_eq!(line_of(&TEXT.as_bytes()[..cut], "eth0"), None);
        assert_eq!(line_of(b" eth0: 1 2 x\n", "eth0"), None);
        assert_eq!(line_of(b"", "eth0"), None);
    }

    #[test]
    fn the_machine_tells_of_its_loopback() {
        let mut counts = InterfaceCounts::open(1, "lo").unwrap();
        let before = counts.read().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        socket.send_to(&[0; 1000], to).unwrap();
        let after = counts.read().unwrap();
        assert!(after.sent >= before.sent + 1000 + WIRE_OVERHEAD_BYTES);
        // Under another name.
        counts.name = "renamed".to_owned();
        assert!(counts.read().unwrap().sent >= after.sent);
        counts.index = u32::MAX / 4;
        counts.name = "renamed".to_owned();
        let error = counts.read().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
