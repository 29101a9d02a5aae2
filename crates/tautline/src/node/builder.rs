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
    QueuingOptions, QueuingPort, RawOptions, RawPort, SamplingOptions, SamplingPort, Spin,
    TypedQueuingPort, TypedSamplingPort, UdpOptions, UdpPort,
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

impl From<u16> for PortId<'_, u16> {
    fn from(number: u16) -> Self {
        Self {
            name: None,
            key: Some(number),
        }
    }
}

impl From<PortNumber> for PortId<'_, u16> {
    fn from(number: PortNumber) -> Self {
        Self::from(number.get())
    }
}

impl From<EtherType> for PortId<'_, EtherType> {
    fn from(ethertype: EtherType) -> Self {
        Self {
            name: None,
            key: Some(ethertype),
        }
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

/// Key of a port of messages.
fn message_key(number: Option<u16>) -> Result<Option<PortKey>, PortError> {
    let number = number.map(PortNumber::try_from).transpose()?;
    Ok(number.map(PortKey::Message))
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

/// Setters of options that all kinds have.
macro_rules! common_options {
    () => {
        /// Sets how long a wait spins before it sleeps.
        pub fn spin(mut self, spin: impl Into<Spin>) -> Self {
            self.given
                .set("spin_us", &mut self.options.spin, spin.into());
            self
        }

        /// Drops frames on arrival beyond these limits.
        pub fn policing(mut self, policing: Policing) -> Self {
            self.given
                .set("police_rate", &mut self.options.policing, Some(policing));
            self
        }
    };
}

/// Setters of options of ports that keep every message.
macro_rules! depth_option {
    () => {
        /// Sets the slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`](crate::port::DEPTH_MAX).
        pub fn depth(mut self, depth: u32) -> Self {
            self.given.set("depth", &mut self.options.depth, depth);
            self
        }
    };
}

/// Setters of ports of messages.
macro_rules! message_options {
    () => {
        /// Sets the port's number, 1 to 4095; a port that the configuration names has one already.
        pub fn number(mut self, number: u16) -> Self {
            self.id.key = Some(number);
            self
        }

        /// Protects what the port sends, with the keys that the node shares with its neighbours; the port then takes
        /// authentic frames only.
        pub fn protection(mut self, protection: Protection) -> Self {
            let place = &mut self.options.protection;
            self.given.set("protection", place, Some(protection));
            self
        }

        /// Declares types of messages that are bytes to this program: peers and watchers see the types.
        pub fn types(mut self, types: PortTypes) -> Self {
            self.types = Some(types);
            self
        }
    };
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
#[derive(Clone, Debug)]
#[must_use = "a port is opened by `open`"]
pub struct QueuingBuilder<'n> {
    node: &'n Node,
    id: PortId<'n, u16>,
    options: QueuingOptions,
    given: Given,
    types: Option<PortTypes>,
}

impl<'n> QueuingBuilder<'n> {
    pub(crate) fn new(node: &'n Node, id: PortId<'n, u16>) -> Self {
        Self {
            node,
            id,
            options: QueuingOptions::default(),
            given: Given::default(),
            types: None,
        }
    }

    message_options!();
    depth_option!();
    common_options!();

    /// Sets the bytes of the largest message that the port takes.
    pub fn message_bytes_max(mut self, bytes: usize) -> Self {
        let place = &mut self.options.message_bytes_max;
        self.given.set("message_bytes_max", place, bytes);
        self
    }

    /// Sets all options that differ from their defaults.
    pub fn options(mut self, options: &QueuingOptions) -> Self {
        let (given, own) = (&mut self.given, &mut self.options);
        given.set_other("depth", &mut own.depth, options.depth);
        let bytes = options.message_bytes_max;
        given.set_other("message_bytes_max", &mut own.message_bytes_max, bytes);
        given.set_other("spin_us", &mut own.spin, options.spin);
        given.set_other("police_rate", &mut own.policing, options.policing);
        given.set_other("protection", &mut own.protection, options.protection);
        self
    }

    /// Makes it a port that receives values of `R` and sends values of `S`. The largest message is an `R`, whatever
    /// the options say.
    pub fn typed<R: Typed, S: Typed>(self) -> TypedBuilder<Self, R, S> {
        TypedBuilder {
            builder: self,
            types: PhantomData,
        }
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::UnknownName`] if the configuration has no port of that name and the program gives no number,
    /// [`PortError::OtherKind`], [`PortError::OtherType`], [`PortError::Options`] if an option is beyond the limits or
    /// is not that of the configuration; else [`PortError`].
    pub fn open(mut self) -> Result<QueuingPort, PortError> {
        let types = self.types.take();
        self.open_as(types, None)
    }

    /// Opens the port with these types, and with this size of the largest message, whatever the options say.
    fn open_as(
        mut self,
        types: Option<PortTypes>,
        message_bytes_max: Option<usize>,
    ) -> Result<QueuingPort, PortError> {
        let (entry, number) = self.settle()?;
        let types = settle_types(entry, types)?;
        if let Some(bytes) = message_bytes_max {
            self.options.message_bytes_max = bytes;
        }
        let owner = self.node.owner();
        let port = QueuingPort::open(&owner, number, self.id.name, &self.options, &types)?;
        begin_one_to_many(port, entry, QueuingPort::readers, QueuingPort::follow)
    }

    fn settle(&mut self) -> Result<(Option<&'n PortConfig>, PortNumber), PortError> {
        let key = message_key(self.id.key)?;
        let (entry, key) = find(self.node, self.id.name, key, "queuing")?;
        if let Some((entry, PortOptions::Queuing(file))) = entry.map(|entry| (entry, &entry.kind)) {
            self.given.settle_queuing(entry, &mut self.options, file)?;
        }
        Ok((entry, number_of(key)?))
    }
}

impl Given {
    fn settle_queuing(
        &self,
        entry: &PortConfig,
        own: &mut QueuingOptions,
        file: &QueuingOptions,
    ) -> Result<(), PortError> {
        self.settle(entry, "depth", &mut own.depth, &file.depth)?;
        let bytes = (&mut own.message_bytes_max, &file.message_bytes_max);
        self.settle(entry, "message_bytes_max", bytes.0, bytes.1)?;
        self.settle(entry, "spin_us", &mut own.spin, &file.spin)?;
        self.settle(entry, "police_rate", &mut own.policing, &file.policing)?;
        self.settle(entry, "protection", &mut own.protection, &file.protection)
    }
}

/// Number of a key that is one of messages: [`find`] returns keys of the kind that it was asked for.
fn number_of(key: PortKey) -> Result<PortNumber, PortError> {
    match key {
        PortKey::Message(number) => Ok(number),
        other => Ok(PortNumber::try_from(other.number())?),
    }
}

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
#[derive(Clone, Debug)]
#[must_use = "a port is opened by `open`"]
pub struct SamplingBuilder<'n> {
    node: &'n Node,
    id: PortId<'n, u16>,
    options: SamplingOptions,
    given: Given,
    types: Option<PortTypes>,
}

impl<'n> SamplingBuilder<'n> {
    pub(crate) fn new(node: &'n Node, id: PortId<'n, u16>) -> Self {
        Self {
            node,
            id,
            options: SamplingOptions::default(),
            given: Given::default(),
            types: None,
        }
    }

    message_options!();
    common_options!();

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

    /// Sets the bytes of the largest value that the port takes.
    pub fn value_bytes_max(mut self, bytes: usize) -> Self {
        let place = &mut self.options.value_bytes_max;
        self.given.set("value_bytes_max", place, bytes);
        self
    }

    /// Sets all options that differ from their defaults.
    pub fn options(mut self, options: &SamplingOptions) -> Self {
        let (given, own) = (&mut self.given, &mut self.options);
        let period = options.refresh_period;
        given.set_other("refresh_period_us", &mut own.refresh_period, period);
        given.set_other("sources", &mut own.sources, options.sources);
        let bytes = options.value_bytes_max;
        given.set_other("value_bytes_max", &mut own.value_bytes_max, bytes);
        given.set_other("spin_us", &mut own.spin, options.spin);
        given.set_other("police_rate", &mut own.policing, options.policing);
        given.set_other("protection", &mut own.protection, options.protection);
        self
    }

    /// Makes it a port that keeps values of `R` and sends values of `S`. The largest value is an `R`, whatever the
    /// options say.
    pub fn typed<R: Typed, S: Typed>(self) -> TypedBuilder<Self, R, S> {
        TypedBuilder {
            builder: self,
            types: PhantomData,
        }
    }

    /// Opens the port.
    ///
    /// # Errors
    /// As [`QueuingBuilder::open`].
    pub fn open(mut self) -> Result<SamplingPort, PortError> {
        let types = self.types.take();
        self.open_as(types, None)
    }

    /// Opens the port with these types, and with this size of the largest value, whatever the options say.
    fn open_as(
        mut self,
        types: Option<PortTypes>,
        value_bytes_max: Option<usize>,
    ) -> Result<SamplingPort, PortError> {
        let (entry, number) = self.settle()?;
        let types = settle_types(entry, types)?;
        if let Some(bytes) = value_bytes_max {
            self.options.value_bytes_max = bytes;
        }
        let owner = self.node.owner();
        let port = SamplingPort::open(&owner, number, self.id.name, &self.options, &types)?;
        begin_one_to_many(port, entry, SamplingPort::readers, SamplingPort::follow)
    }

    fn settle(&mut self) -> Result<(Option<&'n PortConfig>, PortNumber), PortError> {
        let key = message_key(self.id.key)?;
        let (entry, key) = find(self.node, self.id.name, key, "sampling")?;
        if let Some((entry, PortOptions::Sampling(file))) = entry.map(|entry| (entry, &entry.kind))
        {
            let (given, own) = (&self.given, &mut self.options);
            let period = (&mut own.refresh_period, &file.refresh_period);
            given.settle(entry, "refresh_period_us", period.0, period.1)?;
            given.settle(entry, "sources", &mut own.sources, &file.sources)?;
            let bytes = (&mut own.value_bytes_max, &file.value_bytes_max);
            given.settle(entry, "value_bytes_max", bytes.0, bytes.1)?;
            given.settle(entry, "spin_us", &mut own.spin, &file.spin)?;
            given.settle(entry, "police_rate", &mut own.policing, &file.policing)?;
            given.settle(entry, "protection", &mut own.protection, &file.protection)?;
        }
        Ok((entry, number_of(key)?))
    }
}

/// A port of values of types that is not open yet: [`QueuingBuilder::typed`], [`SamplingBuilder::typed`].
#[derive(Debug)]
#[must_use = "a port is opened by `open`"]
pub struct TypedBuilder<B, R, S> {
    builder: B,
    types: PhantomData<fn(S) -> R>,
}

impl<R: Typed, S: Typed> TypedBuilder<QueuingBuilder<'_>, R, S> {
    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::OtherType`] names the field in which the configuration's type differs; else as
    /// [`QueuingBuilder::open`].
    pub fn open(self) -> Result<TypedQueuingPort<R, S>, PortError> {
        let types = PortTypes::of::<R, S>()?;
        let bytes = TypedQueuingPort::<R, S>::bytes_max();
        let port = self.builder.open_as(Some(types), Some(bytes))?;
        Ok(TypedQueuingPort::over(port))
    }
}

impl<R: Typed, S: Typed> TypedBuilder<SamplingBuilder<'_>, R, S> {
    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::OtherType`] names the field in which the configuration's type differs; else as
    /// [`QueuingBuilder::open`].
    pub fn open(self) -> Result<TypedSamplingPort<R, S>, PortError> {
        let types = PortTypes::of::<R, S>()?;
        let bytes = TypedSamplingPort::<R, S>::bytes_max();
        let port = self.builder.open_as(Some(types), Some(bytes))?;
        Ok(TypedSamplingPort::over(port))
    }
}

/// A UDP port that is not open yet: [`Node::udp`].
#[derive(Clone, Debug)]
#[must_use = "a port is opened by `open`"]
pub struct UdpBuilder<'n> {
    node: &'n Node,
    id: PortId<'n, u16>,
    options: UdpOptions,
    given: Given,
}

impl<'n> UdpBuilder<'n> {
    pub(crate) fn new(node: &'n Node, id: PortId<'n, u16>) -> Self {
        Self {
            node,
            id,
            options: UdpOptions::default(),
            given: Given::default(),
        }
    }

    depth_option!();
    common_options!();

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

    /// Sets all options that differ from their defaults.
    pub fn options(mut self, options: &UdpOptions) -> Self {
        let (given, own) = (&mut self.given, &mut self.options);
        given.set_other("depth", &mut own.depth, options.depth);
        let bytes = options.message_bytes_max;
        given.set_other("message_bytes_max", &mut own.message_bytes_max, bytes);
        given.set_other("spin_us", &mut own.spin, options.spin);
        given.set_other("police_rate", &mut own.policing, options.policing);
        self
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::Taken`] names the process that has a socket there; [`PortError::NotOnLink`] on links without
    /// plain UDP; else as [`QueuingBuilder::open`].
    pub fn open(mut self) -> Result<UdpPort, PortError> {
        let key = self.id.key.map(PortKey::udp).transpose()?;
        let (entry, key) = find(self.node, self.id.name, key, "udp")?;
        if let Some((entry, PortOptions::Queuing(file))) = entry.map(|entry| (entry, &entry.kind)) {
            let (given, own) = (&self.given, &mut self.options);
            given.settle(entry, "depth", &mut own.depth, &file.depth)?;
            let bytes = (&mut own.message_bytes_max, &file.message_bytes_max);
            given.settle(entry, "message_bytes_max", bytes.0, bytes.1)?;
            given.settle(entry, "spin_us", &mut own.spin, &file.spin)?;
            given.settle(entry, "police_rate", &mut own.policing, &file.policing)?;
        }
        let (owner, number) = (self.node.owner(), key.number());
        UdpPort::open(&owner, number, self.id.name, &self.options)
    }
}

/// A raw port that is not open yet: [`Node::raw`].
#[derive(Clone, Debug)]
#[must_use = "a port is opened by `open`"]
pub struct RawBuilder<'n> {
    node: &'n Node,
    id: PortId<'n, EtherType>,
    options: RawOptions,
    given: Given,
}

impl<'n> RawBuilder<'n> {
    pub(crate) fn new(node: &'n Node, id: PortId<'n, EtherType>) -> Self {
        Self {
            node,
            id,
            options: RawOptions::default(),
            given: Given::default(),
        }
    }

    depth_option!();
    common_options!();

    /// Sets the EtherType of the port's frames; a port that the configuration names has one already.
    pub fn ethertype(mut self, ethertype: EtherType) -> Self {
        self.id.key = Some(ethertype);
        self
    }

    /// Sets all options that differ from their defaults.
    pub fn options(mut self, options: &RawOptions) -> Self {
        let (given, own) = (&mut self.given, &mut self.options);
        given.set_other("depth", &mut own.depth, options.depth);
        given.set_other("spin_us", &mut own.spin, options.spin);
        given.set_other("police_rate", &mut own.policing, options.policing);
        self
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`PortError::Taken`] names the process that has the EtherType on this interface; [`PortError::NotOnLink`] on
    /// links without raw frames; else as [`QueuingBuilder::open`].
    pub fn open(mut self) -> Result<RawPort, PortError> {
        let key = self.id.key.map(PortKey::Raw);
        let (entry, key) = find(self.node, self.id.name, key, "raw")?;
        if let Some((entry, PortOptions::Queuing(file))) = entry.map(|entry| (entry, &entry.kind)) {
            let (given, own) = (&self.given, &mut self.options);
            given.settle(entry, "depth", &mut own.depth, &file.depth)?;
            given.settle(entry, "spin_us", &mut own.spin, &file.spin)?;
            given.settle(entry, "police_rate", &mut own.policing, &file.policing)?;
        }
        let ethertype = EtherType::new(key.number()).map_err(ValueError::EtherType)?;
        RawPort::open(&self.node.owner(), ethertype, self.id.name, &self.options)
    }
}
