//! Ports whose messages activate the tasks of a file, and those that hold the inputs and outputs of its programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tautline::{
    Node, NodeConfig, PortError, PortNumber, Priority, QueuingPort, SamplingPort, Wait,
};
use tautline_exec::Activation;
use tautline_tasks::file::TaskPorts;
use tautline_tasks::{Executive, MessageHead, MessageSource, ProgramValues, RunError};

use crate::cli::CommandError;
use crate::commands::peer;

/// Opens the node that the file of a set names, has its ports' messages activate the tasks, and has its sampling ports
/// hold the values of programs. The node belongs to the run: it has to live as long.
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
    let mut ports = ValuePorts {
        node: &node,
        open: BTreeMap::new(),
    };
    let tasks = executive.ports();
    let tasks: Vec<(String, TaskPorts)> = tasks
        .map(|(task, ports)| (task.to_owned(), ports.clone()))
        .collect();
    for (task, of_task) in tasks {
        let values = ports.values(&of_task)?;
        executive.program_values(&task, values).map_err(refused)?;
    }
    Ok(Some(node))
}

fn refused(error: RunError) -> CommandError {
    CommandError::failed(error.to_string(), error.remedy().to_owned())
}

/// Sampling ports of the node, each opened once, whichever tasks read and write them.
struct ValuePorts<'a> {
    node: &'a Node,
    open: BTreeMap<String, Arc<Mutex<SamplingPort>>>,
}

impl ValuePorts<'_> {
    fn values(&mut self, ports: &TaskPorts) -> Result<ProgramValues, CommandError> {
        let mut values = ProgramValues::default();
        for name in &ports.reads {
            let (port, bytes_max) = self.port(name)?;
            values = values.with_input(bytes_max, move |buffer| {
                let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
                let sample = port.read_into(buffer).ok().flatten();
                // A value that is too old is none: the program could not tell.
                sample
                    .filter(|sample| sample.valid)
                    .map(|sample| sample.length)
            });
        }
        for output in &ports.writes {
            let (port, bytes_max) = self.port(&output.port)?;
            let number = PortNumber::try_from(output.number);
            let number = number.map_err(|error| {
                CommandError::failed(error.to_string(), "name a port from 1 to 4095")
            })?;
            let to = port
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .destination(&output.to, number)
                .map_err(peer::port_error)?;
            values = values.with_output(bytes_max, move |value| {
                let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
                // The port counts what could not be sent, and the next value follows in a period.
                let _ = port.send(to, Priority::HIGHEST, value);
            });
        }
        Ok(values)
    }

    /// The port of this name, and the length of its longest value.
    fn port(&mut self, name: &str) -> Result<(Arc<Mutex<SamplingPort>>, usize), CommandError> {
        if !self.open.contains_key(name) {
            let port = self.node.sampling(name).open();
            let port = Arc::new(Mutex::new(port.map_err(peer::port_error)?));
            self.open.insert(name.to_owned(), port);
        }
        let port = &self.open[name];
        let bytes_max = port
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .value_bytes_max();
        Ok((port.clone(), bytes_max))
    }
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
