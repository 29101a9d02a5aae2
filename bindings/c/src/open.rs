//! Opening ports: one call and one struct of options for all kinds.
#![allow(unsafe_code)] // An exported function that takes pointers.

use std::ffi::c_int;
use std::time::Duration;

use tautline::port::Policing;
use tautline::{EtherType, Node};

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::node::node;
use crate::pointer::{self, Out};
use crate::port::{self, Kind, Port};
use crate::types::{
    TAUTLINE_DATAGRAM, TAUTLINE_QUEUING, TAUTLINE_RAW, TAUTLINE_SAMPLING, TAUTLINE_SPIN_NEVER,
    tautline_node, tautline_port, tautline_port_options,
};

/// Opens a port.
///
/// # Safety
/// `options` is null or points to options, whose `name` is null or a text; `port` is null or a port can be written
/// there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_port_open(
    node: tautline_node,
    options: *const tautline_port_options,
    port: *mut tautline_port,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (given, out) =
            unsafe { (pointer::value("options", options)?, Out::new("port", port)?) };
        let name = match given.name.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { pointer::text("name", given.name) }?),
        };
        let node = self::node(node)?;
        let kind = given.open(&node, name)?;
        let id = port::insert(Port::new(kind, node))?;
        out.put(tautline_port { id });
        Ok(0)
    })
}

/// A builder of a port of a kind, with its name, its number, or both, and with the options that are given.
macro_rules! builder {
    ($node:ident.$kind:ident($name:ident).$set_number:ident($number:expr),
     $($setter:ident($value:expr)),*) => {{
        let mut builder = match ($name, $number) {
            (Some(name), None) => $node.$kind(name),
            (Some(name), Some(number)) => $node.$kind(name).$set_number(number),
            (None, Some(number)) => $node.$kind(number),
            (None, None) => return Err(refused("a port needs a name or a number".to_owned())),
        };
        $(if let Some(value) = $value {
            builder = builder.$setter(value);
        })*
        builder
    }};
}

impl tautline_port_options {
    fn open(&self, node: &Node, name: Option<&str>) -> Result<Kind, Fault> {
        self.check_kind()?;
        let number = given(self.number);
        let depth = given(self.depth);
        let bytes_max = given(self.message_bytes_max as usize);
        let (spin, policing) = (self.spin(), self.policing());
        Ok(match self.kind {
            TAUTLINE_QUEUING => Kind::Queuing(
                builder!(
                    node.queuing(name).number(number),
                    depth(depth),
                    message_bytes_max(bytes_max),
                    spin(spin),
                    policing(policing)
                )
                .open()?,
            ),
            TAUTLINE_SAMPLING => Kind::Sampling(
                builder!(
                    node.sampling(name).number(number),
                    value_bytes_max(bytes_max),
                    spin(spin),
                    policing(policing),
                    sources(given(self.sources as usize)),
                    refresh_period(given(Duration::from_nanos(self.refresh_period_ns)))
                )
                .open()?,
            ),
            TAUTLINE_DATAGRAM => {
                let builder = builder!(
                    node.udp(name).number(number),
                    depth(depth),
                    message_bytes_max(bytes_max),
                    spin(spin),
                    policing(policing)
                );
                Kind::Datagram(builder.open()?.into())
            }
            _ => {
                let ethertype = number.map(EtherType::new).transpose();
                let ethertype = ethertype.map_err(|error| refused(error.to_string()))?;
                let builder = builder!(
                    node.raw(name).ethertype(ethertype),
                    depth(depth),
                    spin(spin),
                    policing(policing)
                );
                Kind::Raw(builder.open()?)
            }
        })
    }

    /// Refuses a kind that does not exist, and options that the kind does not have.
    fn check_kind(&self) -> Result<(), Fault> {
        let is_sampling = self.kind == TAUTLINE_SAMPLING;
        let unfit = [
            ("depth", is_sampling && self.depth != 0),
            ("sources", !is_sampling && self.sources != 0),
            (
                "refresh_period_ns",
                !is_sampling && self.refresh_period_ns != 0,
            ),
            (
                "message_bytes_max",
                self.kind == TAUTLINE_RAW && self.message_bytes_max != 0,
            ),
        ];
        if self.kind > TAUTLINE_RAW {
            return Err(refused(format!("{} is not a kind of port", self.kind)));
        }
        match unfit.iter().find(|(_, is_unfit)| *is_unfit) {
            Some((option, _)) => Err(refused(format!("a port of this kind has no `{option}`"))),
            None => Ok(()),
        }
    }

    fn spin(&self) -> Option<Duration> {
        match self.spin_ns {
            TAUTLINE_SPIN_NEVER => Some(Duration::ZERO),
            spin_ns => given(Duration::from_nanos(spin_ns)),
        }
    }

    fn policing(&self) -> Option<Policing> {
        let is_given = self.police_rate != 0 || self.police_burst != 0;
        is_given.then(|| Policing::per_second(self.police_rate, self.police_burst))
    }
}

/// An option, unless it is zero, which leaves it as it is.
fn given<T: Default + PartialEq>(option: T) -> Option<T> {
    (option != T::default()).then_some(option)
}

fn refused(text: String) -> Fault {
    Fault::new(Code::BadOptions, text)
}
