//! Return addresses of a thread, taken where nothing may be allocated, and shown later.

use std::ffi::c_void;
use std::fmt;

/// Addresses that are kept. Lower: a deep call does not reach the task's own code. Higher: more memory for each thread.
const FRAMES_MAX: usize = 48;
/// Functions above the place that is named: this module's, the allocator's, and the kernel's way into a handler. By
/// their names, or where they are inlined by their files.
const ABOVE: [&str; 6] = [
    "tautline_tasks::lint",
    "tautline-tasks/src/lint",
    "backtrace::",
    "__restore_rt",
    "__rust_alloc",
    "__rustc",
];
/// The first function of the executive below a job.
const BELOW: [&str; 2] = [
    "tautline_tasks::labour::Labour",
    "tautline-tasks/src/labour.rs",
];
/// Functions between the two that say nothing.
const BETWEEN: [&str; 5] = [
    "__rust_try",
    "/library/std/src/panic",
    "/library/core/src/panic",
    "/library/core/src/ops/function.rs",
    "/library/alloc/src/boxed.rs",
];

/// Addresses of a thread's calls, the innermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    addresses: [usize; FRAMES_MAX],
    count: usize,
}

impl Frames {
    /// Those of the caller. Takes no memory and no lock, so that a handler of signals may call it.
    #[inline(never)]
    pub(crate) fn capture() -> Frames {
        let mut frames = Frames {
            addresses: [0; FRAMES_MAX],
            count: 0,
        };
        // SAFETY: the function is not safe because of platforms whose unwinder is not thread-safe; Linux's is.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                frames.addresses[frames.count] = frame.ip().addr();
                frames.count += 1;
                frames.count < FRAMES_MAX
            });
        }
        frames
    }

    /// The functions with their files and lines, from the place of the finding to the task's code. Reads the program's
    /// debug information, which takes a while.
    pub(crate) fn text(&self) -> String {
        let addresses = self.addresses[..self.count].iter();
        let found: Vec<Symbol> = addresses.flat_map(|address| symbols(*address)).collect();
        let end = found.iter().position(|symbol| symbol.is_any(&BELOW));
        let job = &found[..end.unwrap_or(found.len())];
        let above = job.iter().rposition(|symbol| symbol.is_any(&ABOVE));
        let mut job = &job[above.map_or(0, |above| above + 1)..];
        // The C library's way back from a handler, which need not have a name.
        if let [first, rest @ ..] = job
            && first.name.starts_with(NAMELESS)
        {
            job = rest;
        }
        let last = job.iter().rposition(|symbol| !symbol.is_any(&BETWEEN));
        let job = &job[..last.map_or(job.len(), |last| last + 1)];
        let lines = job.iter().enumerate();
        let lines = lines.map(|(index, symbol)| format!("  {index:>2}: {symbol}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A function, and where in it.
struct Symbol {
    name: String,
    place: Option<String>,
}

impl Symbol {
    /// Whether its name or its file has one of these parts.
    fn is_any(&self, parts: &[&str]) -> bool {
        let place = self.place.as_deref().unwrap_or_default();
        let mut parts = parts.iter();
        parts.any(|part| self.name.contains(part) || place.contains(part))
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.name)?;
        match &self.place {
            Some(place) => write!(formatter, "\n        at {place}"),
            None => Ok(()),
        }
    }
}

/// Beginning of what stands for a name where there is none.
const NAMELESS: &str = "0x";

/// Functions at a return address, the inlined ones first, with file and line where they are known.
fn symbols(address: usize) -> Vec<Symbol> {
    let mut found = Vec::new();
    // The call is before the address at which it returns.
    let call = std::ptr::without_provenance_mut::<c_void>(address.saturating_sub(1));
    backtrace::resolve(call, |symbol| {
        let name = symbol.name();
        let name = name.map_or_else(|| format!("{address:#x}"), |name| format!("{name:#}"));
        let place = symbol.filename().zip(symbol.lineno());
        let place = place.map(|(file, line)| format!("{}:{line}", file.display()));
        found.push(Symbol { name, place });
    });
    if found.is_empty() {
        found.push(Symbol {
            name: format!("{address:#x}"),
            place: None,
        });
    }
    found
}
