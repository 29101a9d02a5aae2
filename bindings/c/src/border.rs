//! Where C calls in: a failure becomes a code, `errno` and a text, and a panic a failure. Every
//! exported function that can fail consists of a call of [`coded`] or [`numbered`]; a test reads the
//! sources for that.
#![allow(unsafe_code)] // Writes `errno`.

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::c_int;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tautline::{OpenError, PortError, ReceiveError, SendError};

use crate::code::Code;

/// Bytes of the text of the last error that are kept for each thread. Lower: the list of links that
/// did not work is cut off. Higher: memory of every thread that calls.
pub(crate) const ERROR_TEXT_BYTES: usize = 1024;

/// Failure of a call.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    /// Where the kernel gave one that says more than the code's own.
    errno: Option<c_int>,
    /// Description and remedy; `None` on the hot path, where the code's text is all.
    text: Option<Text>,
}

/// Words about a failure. Those of the hot path are put together where they are kept, so that nothing is allocated.
#[derive(Debug)]
enum Text {
    Said(Cow<'static, str>),
    Receiving(ReceiveError),
    /// A parameter, and what is wrong with it.
    Argument(&'static str, &'static str),
}

impl fmt::Display for Text {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(said) => to.write_str(said),
            Self::Receiving(error) => write!(to, "{error}; {}", error.remedy()),
            Self::Argument(name, wrong) => write!(to, "`{name}` {wrong}"),
        }
    }
}

impl Fault {
    /// A code with a text of its own.
    pub(crate) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            errno: None,
            text: Some(Text::Said(text.into())),
        }
    }

    /// A pointer that must not be null is null.
    pub(crate) fn null(name: &'static str) -> Self {
        Self {
            text: Some(Text::Argument(name, "is null")),
            ..Code::NullPointer.into()
        }
    }

    /// An argument that cannot be one.
    pub(crate) fn argument(name: &'static str, wrong: &'static str) -> Self {
        Self {
            text: Some(Text::Argument(name, wrong)),
            ..Code::BadArgument.into()
        }
    }

    /// Failure of a system call.
    pub(crate) fn kernel(doing: &str, error: &std::io::Error) -> Self {
        Self {
            errno: error.raw_os_error(),
            ..Self::new(Code::Refused, format!("{doing}: {error}"))
        }
    }

    /// The same fault with another error number.
    pub(crate) fn with_errno(self, errno: c_int) -> Self {
        Self {
            errno: Some(errno),
            ..self
        }
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    fn explained(code: Code, error: &(dyn std::error::Error + 'static), remedy: &str) -> Self {
        // A code that names the cause has its own number; the kernel's says more of the others.
        let errno = match code {
            Code::Refused | Code::ConfigUnreadable => kernel_errno(error),
            _ => None,
        };
        Self {
            errno,
            ..Self::new(code, format!("{error}; {remedy}"))
        }
    }

    fn refused(errno: i32) -> Self {
        Self {
            errno: (errno > 0).then_some(errno),
            ..Code::Refused.into()
        }
    }
}

/// The kernel's error number at the end of a chain of causes.
fn kernel_errno(error: &(dyn std::error::Error + 'static)) -> Option<c_int> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(errno) = io.raw_os_error()
        {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

impl From<Code> for Fault {
    fn from(code: Code) -> Self {
        Self {
            code,
            errno: None,
            text: None,
        }
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        let code = match &error {
            OpenError::Config(_) | OpenError::NoNetwork => Code::ConfigWrong,
            OpenError::ConfigUnreadable { .. } => Code::ConfigUnreadable,
            OpenError::NoSuchInterface { .. } | OpenError::InterfaceMissing { .. } => {
                Code::NoSuchInterface
            }
            OpenError::NoAddress { .. } => Code::NoAddress,
            OpenError::XdpTaken { .. } => Code::InterfaceTaken,
            OpenError::NotPermitted { .. } => Code::NotPermitted,
            OpenError::NoLink { .. } => Code::NoLink,
            _ => Code::Refused,
        };
        Self::explained(code, &error, error.remedy())
    }
}

impl From<PortError> for Fault {
    fn from(error: PortError) -> Self {
        let code = match &error {
            PortError::Value(_) | PortError::Options(_) => Code::BadOptions,
            PortError::OpenHere { .. } | PortError::Taken { .. } => Code::PortTaken,
            PortError::TooManyPorts { .. } => Code::TooManyHandles,
            PortError::NotAllowed { .. } => Code::NotAllowed,
            PortError::NoAddress { .. } => Code::NoAddress,
            PortError::NotOnLink { .. } => Code::NotOffered,
            PortError::UnknownName { .. } => Code::UnknownName,
            PortError::OtherKind { .. } => Code::WrongKind,
            PortError::PeerUnknown { .. }
            | PortError::NeighbourIncomplete { .. }
            | PortError::NoRoute { .. } => Code::UnknownPeer,
            PortError::PeerAbsent { .. } => Code::PeerAbsent,
            PortError::TooManyDestinations => Code::TooManyDestinations,
            PortError::OtherNamespace => Code::OtherNamespace,
            PortError::OtherProcess => Code::OtherProcess,
            _ => Code::Refused,
        };
        Self::explained(code, &error, error.remedy())
    }
}

impl From<SendError> for Fault {
    fn from(error: SendError) -> Self {
        match error {
            SendError::MessageTooLarge { .. } => Code::MessageTooLarge.into(),
            SendError::TransmitQueueFull => Code::TransmitQueueFull.into(),
            SendError::PoolExhausted { .. } => Self::explained(
                Code::PoolExhausted,
                &error,
                "give one back with tautline_socket_unmap, or have more in the configuration's [send_pool]",
            ),
            SendError::PriorityNotAllowed { .. } | SendError::SourceNotAllowed { .. } => {
                Self::explained(Code::NotAllowed, &error, error.remedy())
            }
            SendError::ForeignFrame | SendError::OtherPort => {
                Self::explained(Code::BadArgument, &error, error.remedy())
            }
            SendError::NoWay { .. } => Self::explained(Code::UnknownPeer, &error, error.remedy()),
            SendError::InterfaceDown | SendError::NoCarrier => {
                Self::explained(Code::InterfaceDown, &error, error.remedy())
            }
            SendError::InterfaceGone => Code::InterfaceGone.into(),
            SendError::FrameTooLarge => Code::FrameTooLarge.into(),
            SendError::OtherProcess => Code::OtherProcess.into(),
            SendError::Refused { errno } => Self::refused(errno),
            _ => Code::Refused.into(),
        }
    }
}

impl From<ReceiveError> for Fault {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::BufferTooSmall { .. } => Self {
                text: Some(Text::Receiving(error)),
                ..Code::BufferTooSmall.into()
            },
            ReceiveError::InterfaceDown => Code::InterfaceDown.into(),
            ReceiveError::InterfaceGone => Code::InterfaceGone.into(),
            ReceiveError::OtherProcess => Code::OtherProcess.into(),
            ReceiveError::Refused { errno } => Self::refused(errno),
            _ => Code::Refused.into(),
        }
    }
}

/// Runs a call that answers with a number from 0 up, or a negative code.
pub(crate) fn coded(work: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    run(work).unwrap_or_else(|code| code as c_int)
}

/// Runs a call that answers as sockets do: `failed` and `errno` on failure.
pub(crate) fn numbered<T>(failed: T, work: impl FnOnce() -> Result<T, Fault>) -> T {
    run(work).unwrap_or(failed)
}

fn run<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Code> {
    // State that a panic leaves half done is behind a handle, whose lock is poisoned by the panic: the handle
    // answers `Internal` from then on.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let fault = match outcome {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(fault)) => fault,
        Err(panic) => Fault::new(Code::Internal, panic_text(panic.as_ref())),
    };
    let Fault { code, errno, text } = fault;
    remember(code, text.as_ref());
    set_errno(errno.unwrap_or(code.errno()));
    Err(code)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a fault inside the library: {}", said.unwrap_or("a panic"))
}

/// The text of a thread's last error. No destructor, so that it can be used until the thread ends.
struct LastError {
    bytes: [u8; ERROR_TEXT_BYTES],
    length: usize,
}

thread_local! {
    static LAST_ERROR: RefCell<LastError> = const {
        RefCell::new(LastError { bytes: [0; ERROR_TEXT_BYTES], length: 0 })
    };
}

fn remember(code: Code, text: Option<&Text>) {
    LAST_ERROR.with_borrow_mut(|last| {
        last.length = 0;
        let written = match text {
            Some(text) => write!(last, "{text}"),
            None => last.write_str(code.text().to_str().unwrap_or_default()),
        };
        // A text that does not fit is cut off.
        let _cut_off = written;
    });
}

/// The text of the calling thread's last error; empty if there was none.
pub(crate) fn with_last_error<T>(look: impl FnOnce(&[u8]) -> T) -> T {
    LAST_ERROR.with_borrow(|last| look(&last.bytes[..last.length]))
}

impl Write for LastError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = ERROR_TEXT_BYTES - self.length;
        let mut bytes = text.len().min(room);
        while !text.is_char_boundary(bytes) {
            bytes -= 1;
        }
        self.bytes[self.length..self.length + bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        self.length += bytes;
        Ok(())
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: the C library guarantees a pointer to the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        with_last_error(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    fn errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn a_panic_becomes_a_code() {
        let number = coded(|| panic!("slot {} is not there", 7));
        assert_eq!(number, Code::Internal as c_int);
        assert_eq!(errno(), Some(libc::ENOTRECOVERABLE));
        assert_eq!(
            last_error(),
            "a fault inside the library: slot 7 is not there"
        );
        assert_eq!(numbered(-1isize, || panic!("again")), -1);
        assert_eq!(last_error(), "a fault inside the library: again");
    }

    #[test]
    fn a_fault_sets_errno_and_text() {
        assert_eq!(coded(|| Err(Code::BadHandle.into())), -2);
        assert_eq!(errno(), Some(libc::EBADF));
        assert_eq!(last_error(), Code::BadHandle.text().to_str().unwrap());
        let refused = SendError::Refused {
            errno: libc::EACCES,
        };
        assert_eq!(coded(|| Err(refused.into())), Code::Refused as c_int);
        assert_eq!(errno(), Some(libc::EACCES));
    }

    #[test]
    fn a_long_text_is_cut_off_between_characters() {
        let long = "é".repeat(ERROR_TEXT_BYTES);
        assert_eq!(
            coded(|| Err(Fault::new(Code::NoLink, format!("x{long}")))),
            -19
        );
        let text = last_error();
        assert_eq!(text.len(), ERROR_TEXT_BYTES - 1);
        assert!(text.ends_with('é'));
    }

    #[test]
    fn success_leaves_errno_and_text_alone() {
        let _failed = coded(|| Err(Code::Busy.into()));
        assert_eq!(coded(|| Ok(3)), 3);
        assert_eq!(errno(), Some(libc::EBUSY));
        assert_eq!(last_error(), Code::Busy.text().to_str().unwrap());
    }
}
