//! VLAN tags that a demux does not see, because they are not in the frame at its hook. A frame of a VLAN would count as
//! untagged there, and a node with `vlan` would not hear its own.

use tautline_proto::wire::ethernet::Vlan;

use crate::error::OpenError;
use crate::kernel;
use crate::kind::XdpMode;
use crate::sys::interface::{self, Interface};

/// Place of such tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenTags {
    /// In the packet buffer, if a VLAN interface or a bridge at the other end of a veth has sent the frame.
    OfVeth,
    /// In the packet buffer of every frame with a tag.
    InBuffer,
    /// In the network card, which takes them out of frames.
    ByCard,
}

impl HiddenTags {
    pub(crate) fn of(mode: XdpMode, name: &str, interface: &Interface) -> Option<Self> {
        match mode {
            XdpMode::Tc => None,
            XdpMode::Native if interface.is_veth && kernel::tells_buffers_of_veth() => None,
            _ if interface.is_veth => Some(Self::OfVeth),
            _ if interface.has_packets => Some(Self::InBuffer),
            _ => interface::hides_tags(name, interface).then_some(Self::ByCard),
        }
    }

    /// Refuses a mode whose tags are hidden where that is known to matter: the node is in a VLAN, or an interface of
    /// this machine is.
    ///
    /// # Errors
    /// [`OpenError::HiddenTags`].
    pub(crate) fn check(
        mode: XdpMode,
        name: &str,
        interface: &Interface,
        vlan: Vlan,
    ) -> Result<(), OpenError> {
        let matters = || vlan != Vlan::NONE || interface::has_vlans(name);
        match Self::of(mode, name, interface) {
            Some(Self::InBuffer | Self::ByCard) if matters() => Err(OpenError::HiddenTags {
                interface: name.to_owned(),
                mode,
            }),
            _ => Ok(()),
        }
    }

    /// Note for the report of a node that runs all the same.
    pub(crate) fn note(self, name: &str, vlan: Vlan) -> String {
        let consequence = match vlan.known() {
            Some(vlan) => format!("not seen, those of VLAN {vlan} neither"),
            None => "not seen, so their frames count as untagged".to_owned(),
        };
        match self {
            Self::OfVeth => format!(
                "tags of VLAN interfaces and bridges at the other end are {consequence}; use link `xdp` with xdp_mode = \
                 \"tc\", or ethtool -K INTERFACE txvlan off there"
            ),
            Self::InBuffer => format!("VLAN tags are {consequence}; use xdp_mode = \"tc\""),
            Self::ByCard => format!(
                "the card takes out VLAN tags, which are {consequence}; ethtool -K {name} rxvlan off"
            ),
        }
    }
}
