//! The interface of a node, as the kernel has it now and as it was when the node was opened.

use serde::Serialize;

use crate::sys::interface::InterfaceWatch;

/// The interface that a node was opened on, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InterfaceStatus {
    /// State, the worst that holds.
    pub state: InterfaceState,
    /// Whether it is there and up.
    pub up: bool,
    /// Its name at this moment; `None` if it is gone.
    pub name: Option<String>,
    /// Its MAC address at this moment; `None` if it is gone.
    pub mac: Option<String>,
    /// Changes since the node was opened, each in a sentence; none where it is the same.
    pub changes: Vec<String>,
}

/// State of the interface that a node was opened on. Its name may have changed in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InterfaceState {
    /// It is up.
    Up,
    /// It is down. Nothing arrives until it is up.
    Down,
    /// It has another MAC address. What is sent there does not arrive at the node's ports until the node is opened
    /// again.
    OtherMac,
    /// It was deleted, or moved to another network namespace; another interface may have its name. Nothing arrives
    /// until the node is opened again.
    Gone,
}

impl InterfaceStatus {
    /// At this moment; `None` if the kernel does not answer.
    pub(crate) fn of(watch: &InterfaceWatch) -> Option<Self> {
        let opened = watch.name();
        let Some(now) = watch.current().ok()? else {
            return Some(Self {
                state: InterfaceState::Gone,
                up: false,
                name: None,
                mac: None,
                changes: vec![gone(watch)],
            });
        };
        let mut changes = Vec::new();
        if now.name != opened {
            let namesake = match watch.has_namesake() {
                true => ", and another interface has its old name",
                false => "",
            };
            changes.push(format!("`{opened}` is called `{}` now{namesake}", now.name));
        }
        if now.ip != watch.ip()
            && let Some(before) = watch.ip()
        {
            let now = now.ip.map_or("gone".to_owned(), |ip| format!("now {ip}"));
            changes.push(format!(
                "the interface's IPv4 address is {now}, this process uses {before}: restart it"
            ));
        }
        let is_another = now.mac != watch.mac();
        if is_another {
            let (now, listens_on) = (now.mac, watch.mac());
            changes.push(format!(
                "the interface's MAC address is now {now}, this process listens on {listens_on}: restart it"
            ));
        }
        Some(Self {
            state: match (is_another, now.up) {
                (true, _) => InterfaceState::OtherMac,
                (false, true) => InterfaceState::Up,
                (false, false) => InterfaceState::Down,
            },
            up: now.up,
            name: Some(now.name),
            mac: Some(now.mac.to_string()),
            changes,
        })
    }

    /// Why a node opened now would not have the same interface as this process, if so.
    pub(crate) fn difference(&self) -> Option<&str> {
        let differs = matches!(self.state, InterfaceState::OtherMac | InterfaceState::Gone);
        self.changes.last().filter(|_| differs).map(String::as_str)
    }
}

/// Says that an interface is gone.
pub(crate) fn gone(watch: &InterfaceWatch) -> String {
    let name = watch.name();
    match watch.has_namesake() {
        true => format!(
            "interface `{name}` is gone, and another one has this name now: restart this process"
        ),
        false => format!("interface `{name}` is gone: restart this process when there is one"),
    }
}
