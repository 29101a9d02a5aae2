//! Nodes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tautline::port::{MessagePort, Policing};
use tautline::{EtherType, NodeConfig, OpenError};

use crate::cell::{OfProcess, check_process};
use crate::errors::{Raise, argument, exception};
use crate::port::python_value;
use crate::queuing::QueuingPort;
use crate::raw::RawPort;
use crate::sampling::SamplingPort;
use crate::udp::UdpPort;
use crate::wait::duration;

/// A node: one participant on a network or a bus, with ports. Its ports keep it open.
///
/// The arguments are the keys of a configuration file (docs/reference/configuration.md), such as `interface`, `link`,
/// `address`, `bus`, `node`, and the tables `neighbour` and `port` as lists of dictionaries.
/// Without `link` it takes the best link that works; `report` says which, and why not a better one. Raises ConfigError
/// and OpenError.
///
/// >>> import tautline
/// >>> with tautline.Node(link="udp", address="127.0.0.1") as node:
/// ...     print(node)
/// <Node link udp, 127.0.0.1>
#[pyclass(module = "tautline", frozen, weakref)]
pub(crate) struct Node {
    /// `None` when closed.
    node: OfProcess<Mutex<Option<tautline::Node>>>,
    title: String,
}

impl Node {
    fn open(py: Python<'_>, config: NodeConfig) -> PyResult<Self> {
        let node = py.detach(|| tautline::Node::open(config));
        let node = node.map_err(|error| error.raise(py))?;
        let report = node.report().to_string();
        Ok(Self {
            node: OfProcess::new(Mutex::new(Some(node))),
            title: report.lines().next().unwrap_or_default().to_owned(),
        })
    }

    fn node(&self, py: Python<'_>) -> PyResult<tautline::Node> {
        check_process(py, self.node.process, "node")?;
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.clone().ok_or_else(|| {
            let remedy = "open it again, or close it later";
            exception(py, "ClosedError", "this node is closed", remedy)
        })
    }
}

/// Opens a port by its builder, with the options that were given and the interpreter free.
macro_rules! open {
    ($py:ident, $builder:expr, $($option:ident = $given:expr),* $(,)?) => {{
        let mut builder = $builder;
        $(if let Some(given) = $given {
            builder = builder.$option(given);
        })*
        $py.detach(|| builder.open()).map_err(|error| error.raise($py))
    }};
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (**keys))]
    fn new(py: Python<'_>, keys: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let text = configuration(py, keys)?;
        let config = text.parse::<NodeConfig>();
        // Line and column are those of a text that nobody has seen.
        let config = config.map_err(|error| {
            let remedy = OpenError::Config(error.clone()).remedy();
            exception(py, "ConfigError", &error.message, remedy)
        })?;
        Self::open(py, config)
    }

    /// Opens a node as a configuration file says. Raises ConfigError, with line and column, and OpenError.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Self> {
        let config = NodeConfig::from_file(path).map_err(|error| error.raise(py))?;
        Self::open(py, config)
    }

    /// Opens a node as a text in the form of a configuration file says. Raises as from_file().
    #[staticmethod]
    fn from_text(py: Python<'_>, text: &str) -> PyResult<Self> {
        let config = text.parse::<NodeConfig>();
        let config = config.map_err(|error| OpenError::Config(error).raise(py))?;
        Self::open(py, config)
    }

    /// Which link, why not a better one, and what could not be had, as text.
    #[getter]
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.node(py)?.report().to_string())
    }

    /// Name of the link: "xdp", "xsk", "packet", "udp" or "vbus".
    #[getter]
    fn link(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.node(py)?.report().link.name())
    }

    /// The node's whole state, as `taut status --json` shows it.
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let node = self.node(py)?;
        let status = py.detach(|| serde_json::to_value(node.status()));
        python_value(py, &status.unwrap_or_default())
    }

    /// Enters a neighbour, as a `[[neighbour]]` of the configuration does, until the first port opens. `form` is
    /// "ethernet" or "udp"; without it, Ethernet where there is a MAC address. Raises NeighbourError.
    #[pyo3(signature = (name, *, mac=None, ip=None, form=None))]
    fn add_neighbour(
        &self,
        py: Python<'_>,
        name: &str,
        mac: Option<&str>,
        ip: Option<&str>,
        form: Option<&str>,
    ) -> PyResult<()> {
        let refused = |what: &str, remedy: &str| argument(py, what, remedy);
        let mac = mac.map(|text| {
            let wrong = || {
                refused(
                    &format!("`{text}` is no MAC address"),
                    "such as 02:00:00:00:00:01",
                )
            };
            text.parse().map_err(|_| wrong())
        });
        let ip = ip.map(|text| {
            let wrong = || refused(&format!("`{text}` is no IPv4 address"), "such as 10.0.0.2");
            text.parse().map_err(|_| wrong())
        });
        let form = form.map(|text| {
            let wrong = || {
                refused(
                    &format!("`{text}` is no form"),
                    "use \"ethernet\" or \"udp\"",
                )
            };
            text.parse().map_err(|_| wrong())
        });
        let (mac, ip, form) = (mac.transpose()?, ip.transpose()?, form.transpose()?);
        let node = self.node(py)?;
        let without = match (mac, ip) {
            (None, None) => tautline::neighbours::Form::Bus,
            (None, Some(_)) => tautline::neighbours::Form::Udp,
            _ => tautline::neighbours::Form::Ethernet,
        };
        let neighbour = tautline::Neighbour {
            name: name.to_owned(),
            mac: mac.unwrap_or(tautline::MacAddress::UNSPECIFIED),
            ip,
            form: form.unwrap_or(without),
        };
        node.add_neighbour(neighbour)
            .map_err(|error| error.raise(py))
    }

    /// Opens a queuing port. `port` is its number, or its name in the configuration; with a name it has the options of
    /// its entry, and those given here add to these. A name that the configuration does not have needs `number`. An
    /// option that the entry sets to another value is refused.
    ///
    /// `depth` is the slots of each priority, a power of two from 2 to 4,096; `message_bytes_max` the largest message,
    /// up to 65,536, on a bus 16 MiB; `spin` the seconds for which a wait spins before it sleeps; `police_rate` the
    /// messages a second that the port takes, with `police_burst` at once. Raises PortError.
    #[pyo3(signature = (port, *, number=None, depth=None, message_bytes_max=None, spin=None, police_rate=None,
                        police_burst=None))]
    #[allow(clippy::too_many_arguments)] // Keywords of Python.
    fn queuing(
        &self,
        py: Python<'_>,
        port: PortId,
        number: Option<u16>,
        depth: Option<u32>,
        message_bytes_max: Option<usize>,
        spin: Option<f64>,
        police_rate: Option<u32>,
        police_burst: Option<u32>,
    ) -> PyResult<QueuingPort> {
        let node = self.node(py)?;
        let opened = open!(
            py,
            node.queuing(&port),
            number = number,
            depth = depth,
            message_bytes_max = message_bytes_max,
            spin = seconds(py, "a spin", spin)?,
            policing = policing(police_rate, police_burst),
        )?;
        Ok(QueuingPort::of(&node, opened))
    }

    /// Opens a sampling port, by its number or its name as queuing().
    ///
    /// `refresh_period` is the seconds in which a new value is due, 1 unless given; `sources` the peers' ports that
    /// each have a value of their own, 1 to 48; with 1 all share one. `value_bytes_max` is the largest value: one
    /// frame, 1,484 bytes, on a bus up to 16 MiB. Raises PortError.
    #[pyo3(signature = (port, *, number=None, refresh_period=None, sources=None, value_bytes_max=None, spin=None,
                        police_rate=None, police_burst=None))]
    #[allow(clippy::too_many_arguments)] // Keywords of Python.
    fn sampling(
        &self,
        py: Python<'_>,
        port: PortId,
        number: Option<u16>,
        refresh_period: Option<f64>,
        sources: Option<usize>,
        value_bytes_max: Option<usize>,
        spin: Option<f64>,
        police_rate: Option<u32>,
        police_burst: Option<u32>,
    ) -> PyResult<SamplingPort> {
        let node = self.node(py)?;
        let opened = open!(
            py,
            node.sampling(&port),
            number = number,
            refresh_period = seconds(py, "a refresh period", refresh_period)?,
            sources = sources,
            value_bytes_max = value_bytes_max,
            spin = seconds(py, "a spin", spin)?,
            policing = policing(police_rate, police_burst),
        )?;
        SamplingPort::of(py, &node, opened)
    }

    /// Opens a port of plain UDP, 1 to 65,535, by its number or its name as queuing(). Raises PortError.
    #[pyo3(signature = (port, *, number=None, depth=None, message_bytes_max=None, spin=None, police_rate=None,
                        police_burst=None))]
    #[allow(clippy::too_many_arguments)] // Keywords of Python.
    fn udp(
        &self,
        py: Python<'_>,
        port: PortId,
        number: Option<u16>,
        depth: Option<u32>,
        message_bytes_max: Option<usize>,
        spin: Option<f64>,
        police_rate: Option<u32>,
        police_burst: Option<u32>,
    ) -> PyResult<UdpPort> {
        let node = self.node(py)?;
        let builder = match &port {
            PortId::Number(number) => node.udp(*number),
            PortId::Name(name) => node.udp(name),
        };
        let opened = open!(
            py,
            builder,
            number = number,
            depth = depth,
            message_bytes_max = message_bytes_max,
            spin = seconds(py, "a spin", spin)?,
            policing = policing(police_rate, police_burst),
        )?;
        Ok(UdpPort::of(&node, opened))
    }

    /// Opens a raw port, by its EtherType or its name as queuing(). Raises PortError.
    #[pyo3(signature = (port, *, ethertype=None, depth=None, spin=None, police_rate=None, police_burst=None))]
    #[allow(clippy::too_many_arguments)] // Keywords of Python.
    fn raw(
        &self,
        py: Python<'_>,
        port: PortId,
        ethertype: Option<u16>,
        depth: Option<u32>,
        spin: Option<f64>,
        police_rate: Option<u32>,
        police_burst: Option<u32>,
    ) -> PyResult<RawPort> {
        let checked = |number| {
            EtherType::new(number)
                .map_err(|error| argument(py, &error.to_string(), "use another EtherType"))
        };
        let node = self.node(py)?;
        let builder = match &port {
            PortId::Number(number) => node.raw(checked(*number)?),
            PortId::Name(name) => node.raw(name),
        };
        let opened = open!(
            py,
            builder,
            ethertype = ethertype.map(checked).transpose()?,
            depth = depth,
            spin = seconds(py, "a spin", spin)?,
            policing = policing(police_rate, police_burst),
        )?;
        Ok(RawPort::of(&node, opened))
    }

    /// Closes the node. Ports that are open go on, and close it with the last of them.
    fn close(&self, py: Python<'_>) {
        if self.node.process.is_current() {
            let node = self
                .node
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            py.detach(|| drop(node));
        }
    }

    /// Whether the node is closed.
    #[getter]
    fn closed(&self) -> bool {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.is_none() || !self.node.process.is_current()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<Node {}{state}>", self.title)
    }
}

/// The text of a configuration file with these keys.
fn configuration(py: Python<'_>, keys: Option<&Bound<'_, PyDict>>) -> PyResult<String> {
    let Some(keys) = keys else {
        return Ok(String::new());
    };
    let given = PyDict::new(py);
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_none()) {
        given.set_item(key, value)?;
    }
    // Addresses and paths are objects of Python that read as their text.
    let options = PyDict::new(py);
    options.set_item("default", py.get_type::<PyString>())?;
    let json = py
        .import("json")?
        .getattr("dumps")?
        .call((given,), Some(&options))?;
    let json: String = json.extract()?;
    let table: Result<serde_json::Value, _> = serde_json::from_str(&json);
    let text = table.map_err(|error| error.to_string());
    let text = text.and_then(|table| toml::to_string(&table).map_err(|error| error.to_string()));
    text.map_err(|error| {
        let remedy = "give the keys of a configuration file (docs/reference/configuration.md)";
        exception(
            py,
            "ConfigError",
            &format!("the arguments are no configuration: {error}"),
            remedy,
        )
    })
}

/// Number of a port, or its name.
enum PortId {
    Number(u16),
    Name(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for PortId {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyString>() {
            Ok(name) => Ok(Self::Name(name.to_string())),
            Err(_) => Ok(Self::Number(object.extract()?)),
        }
    }
}

impl<'n> From<&'n PortId> for tautline::node::PortId<'n, MessagePort> {
    fn from(id: &'n PortId) -> Self {
        match id {
            PortId::Number(number) => (*number).into(),
            PortId::Name(name) => name.into(),
        }
    }
}

/// Messages at once that a policed port takes, unless given: that of a configuration file.
const POLICE_BURST_DEFAULT: u32 = 16;

fn policing(rate: Option<u32>, burst: Option<u32>) -> Option<Policing> {
    let burst = burst.unwrap_or(POLICE_BURST_DEFAULT);
    rate.map(|rate| Policing::per_second(rate, burst))
}

fn seconds(py: Python<'_>, what: &str, given: Option<f64>) -> PyResult<Option<Duration>> {
    given
        .map(|given| duration(py, what, Some(given)))
        .transpose()
}
