//! Facts about a network interface. They come through a socket and not through /sys,
//! because a thread may have entered a network namespace that the mounted /sys is not of.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::{index_to_name, name_to_index};
use tautline_proto::wire::MacAddress;
use tautline_state::netlink::{DUMP, Request as Question, Route, attribute, text, word};

mod watch;

pub(crate) use watch::{InterfaceWatch, readable_or_gone};

/// A network interface, at the moment of asking.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    /// Its own name; it may be asked for by another (`ip link property add`).
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mac: MacAddress,
    pub(crate) mtu_bytes: usize,
    pub(crate) up: bool,
    pub(crate) has_carrier: bool,
    pub(crate) ip: Option<Ipv4Addr>,
    /// Of the network that `ip` is in; 255.255.255.255 without one.
    pub(crate) netmask: Ipv4Addr,
    /// Whether what arrives may never have been on a wire: frames of this kernel, or of a host that this is a guest of.
    pub(crate) is_virtual: bool,
    /// Whether frames lie in packet buffers before any hook sees them.
    pub(crate) has_packets: bool,
    /// Whether it is the end of a virtual cable.
    pub(crate) is_veth: bool,
    /// Whether frames have an Ethernet header. A tunnel's have none.
    pub(crate) is_ethernet: bool,
}

impl Interface {
    /// The broadcast address of the network that `ip` is in: that of all networks where it has none of its own, with
    /// one address or two (RFC 3021).
    pub(crate) fn broadcast(&self, ip: Ipv4Addr) -> Ipv4Addr {
        match u32::from(self.netmask).count_ones() {
            31.. => Ipv4Addr::BROADCAST,
            _ => ip | !self.netmask,
        }
    }

    /// Whether two addresses are in one network here.
    pub(crate) fn is_near(&self, one: Ipv4Addr, other: Ipv4Addr) -> bool {
        one & self.netmask == other & self.netmask
    }
}

/// Drivers that hand over frames with checksums left for a network card to finish: the ends of virtual
/// cables and switches, and the interfaces between a virtual machine and its host.
const VIRTUAL_DRIVERS: [&str; 5] = ["veth", "netkit", "bridge", "tun", "virtio_net"];

/// Drivers whose frames come in packet buffers that this kernel has made already, so that native XDP spares nothing.
/// Not among them: `tun` and `virtio_net`, whose native XDP runs before there is a buffer.
const PACKET_DRIVERS: [&str; 6] = [
    "veth",
    "netkit",
    "bridge",
    "macvlan",
    "ipvlan",
    "802.1Q VLAN Support",
];

/// The MAC address that the kernel has for an IPv4 address, in the network namespace of the calling
/// thread; nothing if it has none.
pub(crate) fn mac_of(ip: Ipv4Addr) -> Option<MacAddress> {
    let table = std::fs::read_to_string("/proc/thread-self/net/arp").ok()?;
    let wanted = ip.to_string();
    let found = table.lines().skip(1).find_map(|line| {
        // Address, hardware type, flags, hardware address.
        let mut fields = line.split_whitespace();
        (fields.next() == Some(&wanted)).then(|| fields.nth(2)?.parse::<MacAddress>().ok())?
    });
    // An entry that is being resolved has the address zero.
    found.filter(|mac| !mac.is_unspecified())
}

/// Asks for an interface by one of its names. `ErrorKind::NotFound` if there is none.
pub(crate) fn query(name: &str) -> io::Result<Interface> {
    let socket = super::socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let index = index_of(&socket, name)?;
    let name = name_of(&socket, index)?;
    let mut request = Request::new(&socket, &name)?;
    let hardware = request.ask(libc::SIOCGIFHWADDR)?;
    let (mac, is_ethernet) = (hardware.hardware_address(), hardware.is_ethernet());
    let mtu = request.ask(libc::SIOCGIFMTU)?.mtu();
    let flags = request.ask(libc::SIOCGIFFLAGS)?;
    let (up, has_carrier) = (flags.is_set(libc::IFF_UP), flags.is_set(libc::IFF_RUNNING));
    let (ip, netmask) = match first_address(index)? {
        Some((ip, prefix)) => (Some(ip), netmask(prefix)),
        None => (None, Ipv4Addr::BROADCAST),
    };
    let driver = request.driver();
    let is_of = |drivers: &[&str]| {
        driver
            .as_deref()
            .is_some_and(|driver| drivers.contains(&driver))
    };
    Ok(Interface {
        index,
        mac,
        mtu_bytes: mtu.try_into().map_err(io::Error::other)?,
        up,
        has_carrier,
        ip: ip.filter(|ip| !ip.is_unspecified()),
        netmask,
        is_virtual: is_of(&VIRTUAL_DRIVERS),
        has_packets: is_of(&PACKET_DRIVERS),
        is_veth: is_of(&["veth"]),
        is_ethernet,
        name,
    })
}

/// The index of an interface of this name, which may be an alternative one of any length.
fn index_of(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    if name.len() < libc::IFNAMSIZ {
        return name_to_index(socket, name).map_err(absent);
    }
    const IFLA_ALT_IFNAME: u16 = 53;
    let mut index = None;
    let mut question = about_link(RTM_GETLINK, 0, 0).with_text(IFLA_ALT_IFNAME, name);
    let asked = Route::open()?.ask_one(&mut question, |link| index = word(link, 4));
    // ENODEV, or EINVAL of a kernel without such names (before 5.5).
    index
        .filter(|_| asked.is_ok())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

const RTM_GETLINK: u16 = 18;
/// Bytes of `struct ifinfomsg`.
const LINK_HEAD_BYTES: usize = 16;

/// A message about an interface, which sets these of its flags (rtnetlink(7)).
pub(super) fn about_link(kind: u16, index: u32, flags: libc::c_int) -> Question {
    let fields = [0, index, flags as u32, flags as u32];
    Question::new(kind, 0, &fields.map(u32::to_ne_bytes).concat())
}

/// The first IPv4 address of an interface, whatever its label, with the length of its network's prefix.
fn first_address(index: u32) -> io::Result<Option<(Ipv4Addr, u8)>> {
    const RTM_GETADDR: u16 = 22;
    const IFA_LOCAL: u16 = 2;
    // `struct ifaddrmsg`: family, length of the prefix, flags, scope, index.
    const HEAD_BYTES: usize = 8;
    let mut head = [0; HEAD_BYTES];
    head[0] = libc::AF_INET as u8;
    let mut found = None;
    let mut question = Question::new(RTM_GETADDR, DUMP, &head);
    Route::open()?.ask(&mut question, |message| {
        let address = || {
            let local = attribute(message.get(HEAD_BYTES..)?, IFA_LOCAL)?;
            let ip = Ipv4Addr::from(*local.first_chunk::<4>()?);
            let is_here = word(message, 4) == Some(index) && !ip.is_unspecified();
            is_here.then_some((ip, *message.get(1)?))
        };
        found = found.or_else(address);
    })?;
    Ok(found)
}

fn netmask(prefix: u8) -> Ipv4Addr {
    let host_bits = 32 - u32::from(prefix.min(32));
    u32::MAX.checked_shl(host_bits).unwrap_or(0).into()
}

/// Whether an interface of the socket's network namespace has a carrier. Does not wait.
pub(crate) fn has_carrier(socket: BorrowedFd<'_>, index: i32) -> io::Result<bool> {
    // SAFETY: all bytes zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index;
    ask(&socket, libc::SIOCGIFNAME, &mut request)?;
    ask(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS filled this member; any bits are a valid integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(flags & libc::IFF_RUNNING as libc::c_short != 0)
}

/// Whether a card's XDP programs see frames without their VLAN tag. Virtual interfaces leave it in the frame, whatever
/// they say.
pub(crate) fn hides_tags(name: &str, interface: &Interface) -> bool {
    let asked = || {
        let socket = super::socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        io::Result::Ok(Request::new(&socket, name)?.strips_tags())
    };
    !interface.is_virtual && asked().unwrap_or(false)
}

/// Whether this machine has a VLAN's interface over one.
pub(crate) fn has_vlans(name: &str) -> bool {
    // Name of the VLAN's interface, identifier, name of the interface below.
    let table = std::fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default();
    let below = table.lines().filter_map(|line| line.split('|').nth(2));
    below.map(str::trim).any(|below| below == name)
}

/// The names of all interfaces in this network namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let interfaces = nix::net::if_::if_nameindex()?;
    let name =
        |interface: &nix::net::if_::Interface| interface.name().to_string_lossy().into_owned();
    Ok(interfaces.iter().map(name).collect())
}

/// The name that the interface of an index has now, in the network namespace of the socket. `ErrorKind::NotFound` if
/// there is none.
fn name_of(socket: &OwnedFd, index: u32) -> io::Result<String> {
    index_to_name(socket, index).map_err(absent)
}

/// The error of a question about an interface.
fn absent(error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

/// Has the kernel answer in an `ifreq` (netdevice(7)), in the network namespace of the socket, whatever its family is.
fn ask(socket: &impl AsRawFd, what: libc::c_ulong, about: &mut libc::ifreq) -> io::Result<()> {
    // glibc takes these numbers as they are, musl as an int.
    let what = what as libc::Ioctl;
    // SAFETY: these requests read a name or an index from and write an answer into the ifreq given.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_mut(about)) };
    super::check(result).map(drop).map_err(absent)
}

/// One `ifreq`, asked again and again about the same interface.
struct Request<'s> {
    socket: &'s OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
    answer: libc::ifreq,
}

impl<'s> Request<'s> {
    fn new(socket: &'s OwnedFd, name: &str) -> io::Result<Self> {
        let name = CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
        let bytes = name.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut field = [0; libc::IFNAMSIZ];
        for (to, from) in field.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        // SAFETY: all bytes zero is a valid ifreq.
        let answer = unsafe { std::mem::zeroed() };
        Ok(Self {
            socket,
            name: field,
            answer,
        })
    }

    fn ask(&mut self, what: libc::c_ulong) -> io::Result<&Self> {
        self.answer.ifr_name = self.name;
        ask(self.socket, what, &mut self.answer)?;
        Ok(self)
    }

    /// The first IPv4 address whose label is the name.
    fn ipv4_address(&mut self) -> Option<Ipv4Addr> {
        // The kernel would look for an address that the ifreq holds. SAFETY: all bytes zero is a valid ifreq.
        self.answer = unsafe { std::mem::zeroed() };
        self.ask(libc::SIOCGIFADDR).ok()?;
        // SAFETY: SIOCGIFADDR filled this member with a `sockaddr_in`, which has the size of a `sockaddr`.
        let address = unsafe {
            std::mem::transmute::<libc::sockaddr, libc::sockaddr_in>(self.answer.ifr_ifru.ifru_addr)
        };
        Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
    }

    /// Asks the driver, by a structure of linux/ethtool.h that the answer is written to.
    ///
    /// # Safety
    /// `T` begins with a command, which writes a structure of at most this size and of which any bits are valid.
    unsafe fn ask_driver<T>(&mut self, about: &mut T) -> io::Result<()> {
        const SIOCETHTOOL: libc::Ioctl = 0x8946;
        self.answer.ifr_name = self.name;
        self.answer.ifr_ifru.ifru_data = std::ptr::from_mut(about).cast();
        // SAFETY: the request reads a name from the ifreq, and the command from and the answer into the structure that
        // it points to, which has the size that the caller promised, and lives.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut self.answer) };
        super::check(result).map(|_| ())
    }

    /// Whether the card takes VLAN tags out of frames and puts them where XDP does not see them.
    fn strips_tags(&mut self) -> bool {
        const ETHTOOL_GFLAGS: u32 = 0x25;
        const ETH_FLAG_RXVLAN: u32 = 1 << 8;
        // `struct ethtool_value`: the command, and the answer.
        let mut flags = [ETHTOOL_GFLAGS, 0];
        // SAFETY: the command writes an `ethtool_value`.
        let asked = unsafe { self.ask_driver(&mut flags) };
        asked.is_ok() && flags[1] & ETH_FLAG_RXVLAN != 0
    }

    /// The name of the driver, if it has one.
    fn driver(&mut self) -> Option<String> {
        /// `struct ethtool_drvinfo` of linux/ethtool.h.
        #[repr(C)]
        struct DriverInfo {
            command: u32,
            driver: [u8; 32],
            rest: [u8; 160],
        }
        const ETHTOOL_GDRVINFO: u32 = 3;
        let mut info = DriverInfo {
            command: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            rest: [0; 160],
        };
        // SAFETY: the command writes a `ethtool_drvinfo`.
        unsafe { self.ask_driver(&mut info) }.ok()?;
        let name = info.driver.split(|byte| *byte == 0).next()?;
        String::from_utf8(name.to_vec()).ok()
    }

    fn index(&self) -> libc::c_int {
        // SAFETY: SIOCGIFINDEX filled this member; any bits are a valid integer.
        unsafe { self.answer.ifr_ifru.ifru_ifindex }
    }

    fn mtu(&self) -> libc::c_int {
        // SAFETY: SIOCGIFMTU filled this member; any bits are a valid integer.
        unsafe { self.answer.ifr_ifru.ifru_mtu }
    }

    fn is_set(&self, flag: libc::c_int) -> bool {
        // SAFETY: SIOCGIFFLAGS filled this member; any bits are a valid integer.
        let flags = unsafe { self.answer.ifr_ifru.ifru_flags };
        flags & flag as libc::c_short != 0
    }

    fn is_ethernet(&self) -> bool {
        // SAFETY: SIOCGIFHWADDR filled this member; any bits are a valid family.
        let family = unsafe { self.answer.ifr_ifru.ifru_hwaddr }.sa_family;
        [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&family)
    }

    fn hardware_address(&self) -> MacAddress {
        // SAFETY: SIOCGIFHWADDR filled this member; any bits are valid bytes.
        let address = unsafe { self.answer.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        MacAddress(mac)
    }
}

/// The id of the XDP program that is attached to an interface, if any.
pub(crate) fn xdp_program(index: u32) -> io::Result<Option<u32>> {
    const IFLA_XDP: u16 = 43;
    // `IFLA_XDP_PROG_ID`, and those of the driver and of generic mode where there are both.
    const PROGRAMS: [u16; 3] = [4, 5, 6];
    let mut found = None;
    look_at_link(index, |attributes| {
        let parts = attribute(attributes, IFLA_XDP).unwrap_or_default();
        let id = |kind| word(attribute(parts, kind)?, 0);
        found = PROGRAMS.into_iter().filter_map(id).find(|id| *id != 0);
    })?;
    Ok(found)
}

/// Whether frames wait in a queueing discipline for an interface to take them. Virtual interfaces have none unless
/// they were given one.
pub(crate) fn has_queueing_discipline(index: u32) -> io::Result<bool> {
    const IFLA_QDISC: u16 = 6;
    let mut is_without = false;
    look_at_link(index, |attributes| {
        is_without = attribute(attributes, IFLA_QDISC).and_then(text) == Some("noqueue");
    })?;
    Ok(!is_without)
}

/// Looks at the attributes of an interface.
fn look_at_link(index: u32, look: impl FnOnce(&[u8])) -> io::Result<()> {
    let mut question = about_link(RTM_GETLINK, index, 0);
    Route::open()?.ask_one(&mut question, |link| {
        look(link.get(LINK_HEAD_BYTES..).unwrap_or_default());
    })
}
