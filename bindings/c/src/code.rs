//! The one table of codes. The header and `docs/reference/c.md` repeat it, and a test holds them to it.

use std::ffi::{CStr, c_int};

/// Makes the enum, and what is known about each of its members, from one list.
macro_rules! codes {
    ($($name:ident = $number:literal, $errno:ident, $text:literal;)*) => {
        /// How a call failed. The numbers are part of the binary interface: new ones are added at the
        /// end, none is given another meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(missing_docs)] // The text of each is in the table.
        pub enum Code {
            $($name = $number,)*
        }

        impl Code {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Text of the code, as the header words it.
            #[must_use]
            pub const fn text(self) -> &'static CStr {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The error number that fits, for `errno`.
            #[must_use]
            pub const fn errno(self) -> c_int {
                match self {
                    $(Self::$name => libc::$errno,)*
                }
            }

            /// Its name in Rust; the one in C is in capitals, after `TAUTLINE_ERROR_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

codes! {
    NullPointer = -1, EFAULT, c"a pointer that must not be null is null";
    BadHandle = -2, EBADF, c"the handle is closed, or never was one";
    Busy = -3, EBUSY, c"another thread is in a call with this handle";
    BadArgument = -4, EINVAL, c"an argument is outside its range";
    WrongKind = -5, EOPNOTSUPP, c"the port is of the other kind";
    BufferTooSmall = -6, EMSGSIZE, c"the buffer cannot hold the port's largest message; nothing was taken";
    MessageTooLarge = -7, EMSGSIZE, c"the message is larger than any message can be";
    TransmitQueueFull = -8, ENOBUFS, c"the interface did not take the frame: a full queue, or a smaller MTU at the other end";
    InterfaceDown = -9, ENETDOWN, c"the interface is down, or has no carrier";
    InterfaceGone = -10, ENODEV, c"the interface no longer exists";
    FrameTooLarge = -11, EMSGSIZE, c"the interface's MTU is too small for the frame";
    Refused = -12, EIO, c"the kernel refused; errno says why";
    ConfigUnreadable = -13, ENOENT, c"the configuration file cannot be read";
    ConfigWrong = -14, EINVAL, c"the configuration is wrong";
    NoSuchInterface = -15, ENODEV, c"there is no such interface";
    NoAddress = -16, EADDRNOTAVAIL, c"the address is not one that this node has";
    NotPermitted = -17, EPERM, c"the link needs a privilege that this process lacks";
    InterfaceTaken = -18, EBUSY, c"another XDP program is on the interface";
    NoLink = -19, ENETUNREACH, c"no link works here";
    PortTaken = -20, EADDRINUSE, c"the port is open already, here or in another process";
    UnknownName = -21, ENOENT, c"the configuration has no port of that name";
    BadOptions = -22, EINVAL, c"no port can have this number, depth or message size";
    UnknownPeer = -23, EHOSTUNREACH, c"no neighbour of that name or address, or its entry lacks what the link needs";
    TooManyDestinations = -24, ENOBUFS, c"the port has as many destinations as it can hold";
    OtherNamespace = -25, EXDEV, c"the calling thread is in another network namespace than the node";
    TooManyHandles = -26, EMFILE, c"as many nodes or ports are open as there can be";
    NoDescriptor = -27, EOPNOTSUPP, c"the link has no descriptor to wait on";
    Internal = -28, ENOTRECOVERABLE, c"a fault inside the library; close the handle and report it";
    NotOffered = -29, EOPNOTSUPP, c"the link does not offer that";
    PoolExhausted = -30, ENOBUFS, c"all send buffers of that size are in use";
    PeerAbsent = -31, ETIMEDOUT, c"the peer's port has not appeared on the bus by the deadline";
    NotAllowed = -32, EACCES, c"the control process's policy does not allow it";
    SetRefused = -33, ERANGE, c"a task of the set can miss its deadline";
    WrongOrder = -34, EPROTO, c"this call comes before another one that it needs, or a second time";
    OtherProcess = -35, EBADFD, c"the handle was opened by another process; open it again after fork";
}

impl Code {
    /// The code of a number, if it is one.
    #[must_use]
    pub fn of(number: c_int) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| *code as c_int == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_consecutive_and_negative() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize as i64, -(index as i64) - 1);
            assert_eq!(Code::of(*code as c_int), Some(*code));
        }
        assert_eq!(Code::of(0), None);
        assert_eq!(Code::of(1), None);
        assert_eq!(Code::of(-(Code::ALL.len() as c_int) - 1), None);
    }
}
