//! Kinds of descriptors that another process has handed over. A process that expects one kind and uses another could
//! write into a file with privilege that the sender does not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketType, sockopt};

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A place in a BPF file system ([`super::keeper`]).
    BpfPin,
    /// A BPF map of any type.
    Map,
    /// The device of a tap.
    Tap,
    /// An ordinary file, which a claim is.
    File,
    /// A UDP socket over IPv4.
    UdpSocket,
}

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FILE_SYSTEM: u64 = 0xcafe_4a11;

impl Kind {
    /// Whether a descriptor is of this kind. Looks at it only.
    pub(crate) fn is_of(self, descriptor: BorrowedFd<'_>) -> bool {
        self.ask(descriptor).unwrap_or(false)
    }

    fn ask(self, descriptor: BorrowedFd<'_>) -> io::Result<bool> {
        let file = || rustix::fs::fstat(descriptor);
        Ok(match self {
            Self::BpfPin => is_bpf_file_system(descriptor)?,
            Self::Map => {
                let itself = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                std::fs::read_link(itself)?.as_os_str() == "anon_inode:bpf-map"
            }
            Self::Tap => {
                let file = file()?;
                // `MISC_MAJOR` and `TUN_MINOR`.
                FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice
                    && (
                        rustix::fs::major(file.st_rdev),
                        rustix::fs::minor(file.st_rdev),
                    ) == (10, 200)
            }
            Self::File => FileType::from_raw_mode(file()?.st_mode) == FileType::RegularFile,
            Self::UdpSocket => is_socket(descriptor, AddressFamily::INET, SocketType::DGRAM)?,
        })
    }
}

fn is_socket(
    descriptor: BorrowedFd<'_>,
    family: AddressFamily,
    kind: SocketType,
) -> io::Result<bool> {
    Ok(sockopt::socket_domain(descriptor)? == family && sockopt::socket_type(descriptor)? == kind)
}

/// Whether a descriptor leads into a BPF file system.
pub(crate) fn is_bpf_file_system(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    let system = rustix::fs::fstatfs(descriptor)?;
    // As wide as the type is here; the number has 32 bits.
    Ok(u64::from(system.f_type as u32) == BPF_FILE_SYSTEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    const MAP_TYPE_ARRAY: u32 = 2;
    const ALL: [Kind; 5] = [
        Kind::BpfPin,
        Kind::Map,
        Kind::Tap,
        Kind::File,
        Kind::UdpSocket,
    ];

    fn kinds(descriptor: impl AsFd) -> Vec<Kind> {
        let of = |kind: &Kind| kind.is_of(descriptor.as_fd());
        ALL.into_iter().filter(of).collect()
    }

    #[test]
    fn each_is_told_from_the_others() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(kinds(own), [Kind::File]);
        assert_eq!(
            kinds(UdpSocket::bind("127.0.0.1:0").unwrap()),
            [Kind::UdpSocket]
        );
        let (stream, _end) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(kinds(stream), []);
        assert_eq!(kinds(File::open("/dev/null").unwrap()), []);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let directory = rustix::fs::open("/", flags, Mode::empty()).unwrap();
        assert_eq!(kinds(directory), []);
        let array = aya_obj::Map::new_from_params(MAP_TYPE_ARRAY, 4, 8, 1, 0);
        match aya::maps::MapData::create(array, "taut_test", None) {
            Ok(map) => assert_eq!(kinds(map.fd()), [Kind::Map]),
            Err(error) => println!("SKIPPED: no maps here: {error}"),
        }
    }
}
