//! Builders of ports: [`Node::queuing`], [`Node::sampling`], [`Node::udp`] and [`Node::raw`] begin one, `open` ends it.
//!
//! A port that the configuration names has the options of its entry. An option of the program adds to the entry; one
//! that the entry sets to another value is an error.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::time::Duration;

use tautline_proto::authentication::Protection;
use tautline_proto::wire::raw::EtherType;
use tautline_proto::wire::{PortKey, PortNumber, ValueError};

use super::{Node, PortConfig, PortOptions};
use crate::error::{OptionsError, PortError};
use crate::message::Destination;
use crate::policing::Policing;
use crate::port::{
    MessagePort, QueuingOptions, QueuingPort, RawPort, SamplingOptions, SamplingPort, Spin,
    TypedQueuingPort, TypedSamplingPort, UdpPort,
};
use crate::types::{PortTypes, Typed};

/// Name of a port, its number, or both. A string is a name; an integer, a [`PortNumber`] or an [`EtherType`] is a
/// number.
#[derive(Clone, Copy, Debug)]
pub struct PortId<'n, K> {
    name: Option<&'n str>,
    key: Option<K>,
}

impl<'n, K> From<&'n str> for PortId<'n, K> {
    fn from(name: &'n str) -> Self {
        Self {
            name: Some(name),
            key: None,
        }
    }
}

impl<'n, K> From<&'n String> for PortId<'n, K> {
    fn from(name: &'n String) -> Self {
        Self::from(name.as_str())
    }
}

impl<K> PortId<'_, K> {
    fn of(key: K) -> Self {
        Self {
            name: None,
            key: Some(key),
        }
    }
}

impl From<u16> for PortId<'_, u16> {
    fn from(port: u16) -> Self {
        Self::of(port)
    }
}

impl From<u16> for PortId<'_, MessagePort> {
    fn from(number: u16) -> Self {
        Self::of(number.into())
    }
}

impl From<PortNumber> for PortId<'_, MessagePort> {
    fn from(number: PortNumber) -> Self {
        Self::of(number.into())
    }
}

impl From<EtherType> for PortId<'_, EtherType> {
    fn from(ethertype: EtherType) -> Self {
        Self::of(ethertype)
    }
}

/// Options that a program has set, by their keys in the configuration file.
#[derive(Clone, Debug, Default)]
struct Given(Vec<&'static str>);

impl Given {
    fn set<T>(&mut self, option: &'static str, place: &mut T, value: T) {
        *place = value;
        self.0.push(option);
    }

    /// Sets an option, unless the value is the default.
    fn set_other<T: PartialEq>(&mut self, option: &'static str, place: &mut T, value: T) {
        if *place != value {
            self.set(option, place, value);
        }
    }

    /// Refuses options that ports of the key's kind do not have.
    fn refuse(&self, key: PortKey, options: &[&'static str]) -> Result<(), OptionsError> {
        let mut all = options.iter().copied();
        match all.find(|option| self.0.contains(option)) {
            Some(option) => Err(OptionsError::NotOfKind { key, option }),
            None => Ok(()),
        }
    }

    /// Takes the entry's value of an option that the program has not set.
    ///
    /// # Errors
    /// Both have set it, to different values.
    fn settle<T: PartialEq + Clone + Debug>(
        &self,
        entry: &PortConfig,
        option: &'static str,
        own: &mut T,
        configured: &T,
    ) -> Result<(), PortError> {
        if !self.0.contains(&option) {
            *own = configured.clone();
        } else if entry.given.contains(&option) && own != configured {
            return Err(contradiction(entry, option, configured, own));
        }
        Ok(())
    }
}

fn contradiction(
    entry: &PortConfig,
    option: &'static str,
    configured: &impl Debug,
    program: &impl Debug,
) -> PortError {
    PortError::Options(OptionsError::Contradiction {
        name: entry.name.clone(),
        option,
        configured: format!("{configured:?}"),
        program: format!("{program:?}"),
    })
}

/// Entry of the configuration, if the port has one, and the port's key.
fn find<'n>(
    node: &'n Node,
    name: Option<&str>,
    key: Option<PortKey>,
    kind: &'static str,
) -> Result<(Option<&'n PortConfig>, PortKey), PortError> {
    let entry = name.and_then(|name| node.configured(name));
    match (entry, key) {
        (Some(entry), _) if entry.kind_name() != kind => Err(PortError::OtherKind {
            name: entry.name.clone(),
            configured: entry.kind_name(),
        }),
        (Some(entry), Some(key)) if entry.key != key => {
            let option = match key {
                PortKey::Raw(_) => "ethertype",
                PortKey::Message(_) | PortKey::Udp(_) => "number",
            };
            let (configured, program) = (entry.key.number(), key.number());
            Err(contradiction(entry, option, &configured, &program))
        }
        (Some(entry), _) => Ok((Some(entry), entry.key)),
        (None, Some(key)) => Ok((None, key)),
        (None, None) => Err(PortError::UnknownName {
            name: name.unwrap_or_default().to_owned(),
        }),
    }
}

/// Types of a port: those of the program, which must be those of the configuration where that declares some.
fn settle_types(
    entry: Option<&PortConfig>,
    types: Option<PortTypes>,
) -> Result<PortTypes, PortError> {
    let (Some(entry), Some(own)) = (entry, &types) else {
        let configured = entry.map(|entry| entry.types.clone());
        return Ok(types.or(configured).unwrap_or_default());
    };
    own.check_against(&entry.types)
        .map_err(|difference| PortError::OtherType {
            name: entry.name.clone(),
            difference,
        })?;
    Ok(PortTypes {
        receives: own.receives.clone().or(entry.types.receives.clone()),
        sends: own.sends.clone().or(entry.types.sends.clone()),
    })
}

/// Gives a port the readers of its entry, and the ports to follow.
fn begin_one_to_many<P>(
    mut opened: P,
    entry: Option<&PortConfig>,
    readers: fn(&mut P) -> Result<Destination, PortError>,
    follow: fn(&mut P, &str, PortNumber) -> Result<(), PortError>,
) -> Result<P, PortError> {
    let Some(entry) = entry else {
        return Ok(opened);
    };
    if entry.readers {
        readers(&mut opened)?;
    }
    for publisher in &entry.follow {
        match follow(&mut opened, publisher.node.as_str(), publisher.port) {
            // It may start later.
            Ok(()) | Err(PortError::PeerAbsent { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}

/// A port that is not open yet: `K` is the type of its key, `O` that of its options.
#[derive(Clone, Debug)]
#[must_use = "a port is opened by `open`"]
pub struct PortBuilder<'n, K, O> {
    node: &'n Node,
    id: PortId<'n, K>,
    options: O,
    given: Given,
    types: Option<PortTypes>,
}

impl<'n, K, O: Default> PortBuilder<'n, K, O> {
    pub(crate) fn new(node: &'n Node, id: PortId<'n, K>) -> Self {
        Self {
            node,
            id,
            options: O::default(),
            given: Given::default(),
            types: None,
        }
    }
}

/// A queuing port that is not open yet: [`Node::queuing`].
///
/// ```
/// use std::time::Duration;
/// use tautline::{Node, NodeConfig};
///
/// let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
/// let port = node.queuing("command").number(2041).depth(16).spin(Duration::ZERO).open()?;
/// assert_eq!(port.number().get(), 2041);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type QueuingBuilder<'n> = PortBuilder<'n, MessagePort, QueuingOptions>;

/// A sampling port that is not open yet: [`Node::sampling`].
///
/// ```
/// use std::time::Duration;
/// use tautline::{Node, NodeConfig};
///
/// let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
/// let hub = node.sampling("fleet").number(2042).sources(24);
/// let hub = hub.refresh_period(Duration::from_millis(10)).open()?;
/// assert_eq!(hub.sources().count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type SamplingBuilder<'n> = PortBuilder<'n, MessagePort, SamplingOptions>;

/// A UDP port that is not open yet: [`Node::udp`].
pub type UdpBuilder<'n> = PortBuilder<'n, u16, QueuingOptions>;

/// A raw port that is not open yet: [`Node::raw`].
pub type RawBuilder<'n> = PortBuilder<'n, EtherType, QueuingOptions>;

/// Options of a discipline: their keys in the configuration file, and their fields.
macro_rules! options {
    ($options:ident, $entry:ident, $($key:literal $field:ident),+) => {
        impl<'n, K> PortBuilder<'n, K, $options> {
            /// Sets how long a wait spins before it sleeps.
            pub fn spin(mut self, spin: impl Into<Spin>) -> Self {
                self.given.set("spin_us", &mut self.options.spin, spin.into());
                self
            }

            /// Drops frames on arrival beyond these limits.
            pub fn policing(mut self, policing: Policing) -> Self {
                let place = &mut self.options.policing;
                self.given.set("police_rate", place, Some(policing));
                self
            }

            /// Sets all options that differ from their defaults.
            pub fn options(mut self, options: &$options) -> Self {
                $(self.given.set_other($key, &mut self.options.$field, options.$field);)+
                self
            }

            /// Takes the options of the configuration's entry, if the port has one; returns the entry and the key.
            fn settle(
                &mut self,
                key: Option<PortKey>,
                kind: &'static str,
            ) -> Result<(Option<&'n PortConfig>, PortKey), PortError> {
                let (entry, key) = find(self.node, self.id.name, key, kind)?;
                if let Some(entry) = entry
                    && let PortOptions::$entry(file) = &entry.kind
                {
                    let (given, own) = (&self.given, &mut self.options);
                    $(given.settle(entry, $key, &mut own.$field, &file.$field)?;)+
                }
                Ok((entry, key))
            }
        }
    };
}

options! {
    QueuingOptions, Queuing,
    "depth" depth, "message_bytes_max" message_bytes_max, "spin_us" spin, "police_rate" policing,
    "protection" protection
}
options! {
    SamplingOptions, Sampling,
    "refresh_period_us" refresh_period, "sources" sources, "value_bytes_max" value_bytes_max, "spin_us" spin,
    "police_rate" policing, "protection" protection
}

impl<K> PortBuilder<'_, K, QueuingOptions> {
    /// Sets the slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`](crate::port::DEPTH_MAX).
    pub fn depth(mut self, depth: u32) -> Self {
        self.given.set("depth", &mut self.options.depth, depth);
        self
    }
}

/// Functions of ports of messages.
macro_rules! message_builder {
    ($builder:ident, $kind:literal, $port:ident, $typed:ident, $bytes_max:ident) => {
        impl $builder<'_> {
            /// Sets the port's number, 1 to 4095; a port that the configuration names has one already.
            pub fn number(mut self, number: u16) -> Self {
                self.id.key = Some(number.into());
                self
            }

            /// Protects what the port sends, with the keys that the node shares with its neighbours; the port then
            /// takes authentic frames only.
            pub fn protection(mut self, protection: Protection) -> Self {
                let place = &mut self.options.protection;
                self.given.set("protection", place, Some(protection));
                self
            }

            /// Sets the bytes of the largest message or value that the port takes.
            pub fn $bytes_max(mut self, bytes: usize) -> Self {
                let place = &mut self.options.$bytes_max;
                self.given.set(stringify!($bytes_max), place, bytes);
                self
            }

            /// Declares types of messages that are bytes to this program: peers and watchers see the types.
            pub fn types(mut self, types: PortTypes) -> Self {
                self.types = Some(types);
                self
            }

            /// Makes it a port that receives values of `R` and sends values of `S`. The largest message is an `R`,
            /// whatever the options say.
            pub fn typed<R: Typed, S: Typed>(self) -> TypedBuilder<Self, R, S> {
                TypedBuilder {
                    builder: self,
                    types: PhantomData,
                }
            }

            /// Opens the port.
            ///
            /// # Errors
            /// [`PortError::UnknownName`] if the configuration has no port of that name and the program gives no
            /// number, [`PortError::OtherKind`], [`PortError::OtherType`], [`PortError::Options`] if an option is
            /// beyond the limits or is not that of the configuration; else [`PortError`].
            pub fn open(self) -> Result<$port, PortError> {
                self.open_with(None)
            }

            /// Opens the port, with this size of its largest message if there is one, whatever the options say.
            fn open_with(mut self, bytes_max: Option<usize>) -> Result<$port, PortError> {
                let number = self.id.key.map(MessagePort::number).transpose()?;
                let (entry, key) = self.settle(number.map(PortKey::Message), $kind)?;
                let types = settle_types(entry, self.types)?;
                if let Some(bytes) = bytes_max {
                    self.options.$bytes_max = bytes;
                }
                let owner = self.node.owner();
                let number = PortNumber::try_from(key.number())?;
                let port = $port::open(&owner, number, self.id.name, &self.options, &types)?;
                begin_one_to_many(port, entry, $port::readers, $port::follow)
            }
        }

        impl<R: Typed, S: Typed> TypedBuilder<$builder<'_>, R, S> {
            /// Opens the port.
            ///
            /// # Errors
            /// [`PortError::OtherType`] names the field in which the configuration's type differs; else as
            /// [`QueuingBuilder::open`].
            pub fn open(mut self) -> Result<$typed<R, S>, PortError> {
                self.builder.types = Some(PortTypes::of::<R, S>()?);
                let port = self.builder.open_with(Some($typed::<R, S>::bytes_max()))?;
                Ok($typed::over(port))
            }
        }
    };
}

message_builder!(
    QueuingBuilder,
    "queuing",
    QueuingPort,
    TypedQueuingPort,
    message_bytes_max
);
message_builder!(
    SamplingBuilder,
    "sampling",
    SamplingPort,
    TypedSamplingPort,
    value_bytes_max
);

impl SamplingBuilder<'_> {
    /// Sets the period in which a new value is due: an older value is not valid.
    pub fn refresh_period(mut self, period: Duration) -> Self {
        let place = &mut self.options.refresh_period;
        self.given.set("refresh_period_us", place, period);
        self
    }

    /// Sets how many sources the port keeps a value of, 1 to [`SOURCES_MAX`](crate::port::SOURCES_MAX).
    pub fn sources(mut self, sources: usize) -> Self {
        self.given
            .set("sources", &mut self.options.sources, sources);
        self
    }
}

/// A port of values of types that is not open yet: [`QueuingBuilder::typed`], [`SamplingBuilder::typed`].
#[derive(Debug)]
#[must_use = "a port is opened by `open`"]
pub struct TypedBuilder<B, R, S> {
    builder: B,
    types: PhantomData<fn(S) -> R>,
}

impl UdpBuilder<'_> {
    /// Sets the UDP port, 1 to 65535; a port that the configuration names has one already.
    pub fn number(mut self, number: u16) -> Self {
        self.id.key = Some(number);
        self
    }

    /// Sets the bytes of the longest datagram that the port takes, up to 65,507.
    pub fn message_bytes_max(mut self, bytes: usize) -> Self {
        let place = &mut self.options.message_bytes_max;
        self.given.set("message_bytes_max", place, bytes);
        self
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::Taken`] names the process that has a socket there; [`PortError::NotOnLink`] on links without
    /// plain UDP; else as [`QueuingBuilder::open`].
    pub fn open(mut self) -> Result<UdpPort, PortError> {
        let key = self.id.key.map(PortKey::udp).transpose()?;
        let (_, key) = self.settle(key, "udp")?;
        self.given.refuse(key, &["protection"])?;
        let (owner, number) = (self.node.owner(), key.number());
        UdpPort::open(&owner, number, self.id.name, &self.options)
    }
}

impl RawBuilder<'_> {
    /// Sets the EtherType of the port's frames; a port that the configuration names has one already.
    pub fn ethertype(mut self, ethertype: EtherType) -> Self {
        self.id.key = Some(ethertype);
        self
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::Taken`] names the process that has the EtherType on this interface; [`PortError::NotOnLink`] on
    /// links without raw frames; else as [`QueuingBuilder::open`].
    pub fn open(mut self) -> Result<RawPort, PortError> {
        let (_, key) = self.settle(self.id.key.map(PortKey::Raw), "raw")?;
        self.given
            .refuse(key, &["protection", "message_bytes_max"])?;
        let ethertype = EtherType::new(key.number()).map_err(ValueError::EtherType)?;
        RawPort::open(&self.node.owner(), ethertype, self.id.name, &self.options)
    }
}
