//! Nodes, and what concerns no object: version, clock, codes and the text of the last error.
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::ffi::{CStr, c_char, c_int};

use tautline::{Node, NodeConfig};

use crate::border::{Fault, coded, with_last_error};
use crate::code::Code;
use crate::handle::Table;
use crate::pointer::{self, Out, put_text};
use crate::types::tautline_node;

static NODES: Table<Node> = Table::new();

/// The node of a handle.
pub(crate) fn node(handle: tautline_node) -> Result<Node, Fault> {
    NODES.copy(handle.id)
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

/// CLOCK_MONOTONIC now.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_now_ns() -> u64 {
    tautline::now().as_nanos()
}

/// Text of a code.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_code_text(code: c_int) -> *const c_char {
    let text = match (Code::of(code), code) {
        (Some(code), _) => code.text(),
        (None, 0..) => c"no error",
        (None, _) => c"not a code of this library",
    };
    text.as_ptr()
}

/// The text of the calling thread's last error.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_last_error(text: *mut c_char, bytes: usize) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        Ok(with_last_error(|last| put_text(last, buffer)) as c_int)
    })
}

/// Opens a node as a configuration file says.
///
/// # Safety
/// `file` is null or a text; `node` is null or a node can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_node_open(
    file: *const c_char,
    node: *mut tautline_node,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (file, out) = unsafe { (pointer::text("file", file)?, Out::new("node", node)?) };
        open(NodeConfig::from_file(file)?, out)
    })
}

/// Opens a node as a text in the form of a configuration file says.
///
/// # Safety
/// `configuration` is null or a text; `node` is null or a node can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_node_open_text(
    configuration: *const c_char,
    node: *mut tautline_node,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (text, out) = unsafe {
            (
                pointer::text("configuration", configuration)?,
                Out::new("node", node)?,
            )
        };
        let config: NodeConfig = text.parse().map_err(tautline::OpenError::Config)?;
        open(config, out)
    })
}

fn open(config: NodeConfig, out: Out<tautline_node>) -> Result<c_int, Fault> {
    let id = NODES.insert(Node::open(config)?)?;
    out.put(tautline_node { id });
    Ok(0)
}

/// Closes a node. Its open ports go on.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_node_close(node: tautline_node) -> c_int {
    coded(|| {
        drop(NODES.remove(node.id)?);
        Ok(0)
    })
}

/// Which link, why not a better one, what took effect, as text.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_node_report(
    node: tautline_node,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        let report = self::node(node)?.report().to_string();
        Ok(put_text(report.as_bytes(), buffer) as c_int)
    })
}

/// The node's whole state, as JSON.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_node_status(
    node: tautline_node,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        let status = serde_json::to_vec(&self::node(node)?.status())
            .map_err(|error| Fault::new(Code::Internal, error.to_string()))?;
        Ok(put_text(&status, buffer) as c_int)
    })
}

/// Makes the node visible to `taut status`.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_node_publish_status(node: tautline_node) -> c_int {
    coded(|| {
        self::node(node)?
            .publish_status()
            .map_err(|error| Fault::kernel("publishing the status", &error))?;
        Ok(0)
    })
}
