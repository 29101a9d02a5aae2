//! Ports whose messages activate the tasks of a file.

use std::path::Path;

use tautline::{Node, NodeConfig, PortError, QueuingPort, SamplingPort, Wait};
use tautline_exec::Activation;
use tautline_tasks::{Executive, MessageHead, MessageSource, RunError};

use crate::cli::CommandError;
use crate::commands::peer;

/// Opens the node that the file of a set names, and has its ports' messages activate the tasks. The node belongs to
/// the run: it has to live as long.
pub(super) fn attach(executive: &mut Executive) -> Result<Option<Node>, CommandError> {
    let tasks = executive.set().tasks().iter();
    let ports: Vec<(String, String)> = tasks
        .filter_map(|task| match &task.activation {
            Activation::Message { port } => Some((task.name.clone(), port.clone())),
            Activation::Time { .. } => None,
        })
        .collect();
    let Some(path) = executive.node().map(Path::to_path_buf) else {
        let without = ports.first().map(|(task, port)| {
            CommandError::usage(
                format!("port `{port}` activates `{task}`, and the file names no node that has it"),
                "give the node's file: `node = \"node.toml\"` before the first task",
            )
        });
        return without.map_or(Ok(None), Err);
    };
    let config = NodeConfig::from_file(&path).map_err(peer::open_error)?;
    let node = peer::open(config)?;
    for (task, port) in ports {
        let source = source(&node, &port)?;
        executive.messages(&task, source).map_err(refused)?;
    }
    Ok(Some(node))
}

fn refused(error: RunError) -> CommandError {
    CommandError::failed(error.to_string(), error.remedy().to_owned())
}

/// The port of this name in the node's file, of either kind.
fn source(node: &Node, name: &str) -> Result<MessageSource, CommandError> {
    match node.queuing(name).open() {
        Ok(port) => of_queuing(port),
        Err(PortError::OtherKind { .. }) => {
            let port = node.sampling(name).open();
            of_sampling(port.map_err(peer::port_error)?)
        }
        Err(error) => Err(peer::port_error(error)),
    }
}

fn of_queuing(mut port: QueuingPort) -> Result<MessageSource, CommandError> {
    let bytes_max = port.message_bytes_max();
    let descriptor = port.descriptor().ok_or_else(no_descriptor)?;
    let descriptor = descriptor.try_clone_to_owned().map_err(not_copied)?;
    let take = move |buffer: &mut [u8]| {
        let message = port.receive_into(buffer, Wait::Poll).ok().flatten()?;
        Some(MessageHead::new(message.length, message.arrival.as_nanos()))
    };
    MessageSource::new(descriptor, bytes_max, take).map_err(not_copied)
}

fn of_sampling(mut port: SamplingPort) -> Result<MessageSource, CommandError> {
    let bytes_max = port.value_bytes_max();
    let descriptor = port.descriptor().ok_or_else(no_descriptor)?;
    let descriptor = descriptor.try_clone_to_owned().map_err(not_copied)?;
    let take = move |buffer: &mut [u8]| {
        // Of several sources' values the last one stays in the buffer.
        let mut newest = None;
        for _ in 0..tautline::port::SOURCES_MAX {
            let Some(sample) = port.next_into(buffer, Wait::Poll).ok()? else {
                break;
            };
            newest = Some(MessageHead::new(sample.length, sample.arrival.as_nanos()));
        }
        newest
    };
    MessageSource::new(descriptor, bytes_max, take).map_err(not_copied)
}

fn no_descriptor() -> CommandError {
    CommandError::failed(
        "the node's link has no descriptor to wait on",
        "name another link in the node's file",
    )
}

fn not_copied(error: std::io::Error) -> CommandError {
    CommandError::failed(
        format!("cannot wait for the port: {error}"),
        "raise the limit of descriptors (ulimit -n)",
    )
}
