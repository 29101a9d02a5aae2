//! The neighbour table of an interface's control process, looked at and changed from outside.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::wire::MacAddress;
use tautline_state::fork::OwnerProcess;

use super::protocol::{Entry, Reason, Refusal, Reply, Request, is_shareable};
use super::{Control, Hello};
use crate::error::NeighbourTableError;
use crate::sys::interface;
use crate::table_state::{Origin, TableState};

/// A connection to the control process of an interface, for its neighbour table. Whoever that process takes as a
/// client may look at it and ask the network; changing it needs `neighbours = true` in an `[[allow]]` entry, or
/// to be root or the user that the control process runs as.
///
/// ```no_run
/// use tautline::control::SharedTable;
///
/// if let Some(mut table) = SharedTable::connect("eth0")? {
///     table.add(&tautline::neighbour("drive", [10, 0, 0, 2].into()))?;
///     for (entry, origin) in table.read()?.entries {
///         println!("{} {}", entry.name, origin.name());
///     }
/// }
/// # Ok::<(), tautline::NeighbourTableError>(())
/// ```
#[derive(Debug)]
pub struct SharedTable {
    interface: String,
    control: Control,
    process: OwnerProcess,
}

/// A neighbour table at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TableContent {
    /// Whether it takes entries.
    pub state: TableState,
    /// Its entries in their order, and where each comes from.
    pub entries: Vec<(Neighbour, Origin)>,
}

impl SharedTable {
    /// Connects to the control process of an interface; `None` if it has none.
    ///
    /// # Errors
    /// [`NeighbourTableError::NoSuchInterface`], [`NeighbourTableError::NotAllowed`] if it does not take this
    /// process as a client, [`NeighbourTableError::ControlGone`].
    pub fn connect(interface: &str) -> Result<Option<Self>, NeighbourTableError> {
        let found =
            interface::query(interface).map_err(|_| NeighbourTableError::NoSuchInterface {
                name: interface.to_owned(),
                known: interface::names().unwrap_or_default(),
            })?;
        let hello = Hello::to_any(interface, found.index);
        let Some(mut control) = hello.connect().map_err(|source| gone(0, source))? else {
            return Ok(None);
        };
        let pid = control.pid();
        // A table has no use for the descriptor that keeps the demux attached.
        let _keeper = hello
            .say(&mut control)
            .map_err(|why| NeighbourTableError::NotAllowed { pid, why })?;
        Ok(Some(Self {
            interface: interface.to_owned(),
            control,
            process: OwnerProcess::current(),
        }))
    }

    /// The control process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.control.pid()
    }

    /// The table as it is now.
    ///
    /// # Errors
    /// [`NeighbourTableError::ControlGone`], [`NeighbourTableError::ControlRefused`].
    pub fn read(&mut self) -> Result<TableContent, NeighbourTableError> {
        let mut seen = 0;
        let content = read(&mut seen, |request| self.ask(&request))?;
        content.ok_or_else(|| self.refused(nonsense()))
    }

    /// Enters a neighbour, for all clients that open a node or look it up from now on.
    ///
    /// # Errors
    /// [`NeighbourTableError::Locked`], [`NeighbourTableError::NotAllowed`];
    /// [`NeighbourTableError::ControlRefused`] says in words what is wrong with the entry.
    pub fn add(&mut self, neighbour: &Neighbour) -> Result<(), NeighbourTableError> {
        self.enter(neighbour, Origin::Added)
    }

    /// Has the network asked once which station has `ip`, waits at most `timeout`, and enters the answer
    /// as `neighbour`, whose other fields stay.
    ///
    /// # Errors
    /// [`NeighbourTableError::NoAnswer`], and as [`SharedTable::add`].
    pub fn solicit(
        &mut self,
        neighbour: &Neighbour,
        ip: Ipv4Addr,
        timeout: Duration,
    ) -> Result<MacAddress, NeighbourTableError> {
        if let TableState::Locked(by) = self.read()?.state {
            return Err(NeighbourTableError::Locked { by: by.to_string() });
        }
        let answered = station(self.pid(), &self.interface, (ip, timeout), |request| {
            self.control.ask(request).map(|(answer, _)| answer)
        });
        let mac = answered?;
        let entry = Neighbour {
            mac,
            ip: Some(ip),
            ..neighbour.clone()
        };
        self.enter(&entry, Origin::Solicited).map(|()| mac)
    }

    /// Lets entries be made although ports are open, without guarantees, until [`SharedTable::lock`].
    ///
    /// # Errors
    /// As [`SharedTable::add`].
    pub fn unlock(&mut self) -> Result<(), NeighbourTableError> {
        self.set_lock(false)
    }

    /// Locks the table.
    ///
    /// # Errors
    /// As [`SharedTable::add`].
    pub fn lock(&mut self) -> Result<(), NeighbourTableError> {
        self.set_lock(true)
    }

    fn set_lock(&mut self, locked: bool) -> Result<(), NeighbourTableError> {
        match self.ask(&Request::LockNeighbours { locked })? {
            Reply::LockSet => Ok(()),
            other => Err(self.not_done(other)),
        }
    }

    fn enter(&mut self, entry: &Neighbour, origin: Origin) -> Result<(), NeighbourTableError> {
        if !is_shareable(entry) {
            let why = "neither neighbours on a bus nor longer names are for others".to_owned();
            return Err(self.refused(Refusal {
                reason: Reason::NotEntered,
                holder: 0,
                why,
            }));
        }
        let request = Request::AddNeighbour {
            neighbour: entry.clone(),
            origin,
        };
        match self.ask(&request)? {
            Reply::NeighbourAdded => Ok(()),
            other => Err(self.not_done(other)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, NeighbourTableError> {
        self.process.check()?;
        let answered = self.control.ask(request);
        let pid = self.pid();
        answered
            .map(|(answer, _)| answer)
            .map_err(|source| gone(pid, source))
    }

    fn not_done(&self, answer: Reply) -> NeighbourTableError {
        match answer {
            Reply::Refused(refusal) => self.refused(refusal),
            _ => self.refused(nonsense()),
        }
    }

    fn refused(&self, refusal: Refusal) -> NeighbourTableError {
        refused(self.pid(), refusal)
    }
}

/// Reads a table, entry by entry; `None` if there is nothing new since `seen`, which is moved on. Entries are never
/// taken out, so one that comes meanwhile is read too and none is missed.
pub(super) fn read(
    seen: &mut u32,
    mut ask: impl FnMut(Request) -> Result<Reply, NeighbourTableError>,
) -> Result<Option<TableContent>, NeighbourTableError> {
    let mut content = TableContent {
        state: TableState::Open,
        entries: Vec::new(),
    };
    for index in 0.. {
        let answer = ask(Request::Neighbour { index })?;
        let Reply::Neighbour {
            state,
            changes,
            entry,
            ..
        } = answer
        else {
            return Ok(None);
        };
        if index == 0 {
            if changes == *seen {
                return Ok(None);
            }
            *seen = changes;
        }
        content.state = state;
        match entry {
            Some(Entry { neighbour, origin }) => content.entries.push((neighbour, origin)),
            None => break,
        }
    }
    Ok(Some(content))
}

/// Has the network asked through a control process.
pub(super) fn station(
    pid: i32,
    interface: &str,
    (ip, timeout): (Ipv4Addr, Duration),
    ask: impl FnOnce(&Request) -> io::Result<Reply>,
) -> Result<MacAddress, NeighbourTableError> {
    // No time at all; what is merely too long is refused at the other end, which says so in its words.
    if timeout.as_millis() > u128::from(u32::MAX) {
        return Err(NeighbourTableError::BadTimeout { timeout });
    }
    let answer = ask(&Request::Solicit { ip, timeout }).map_err(|source| gone(pid, source))?;
    match answer {
        Reply::Station { mac } => Ok(mac),
        Reply::Refused(refusal) if refusal.reason == Reason::NoAnswer => {
            Err(NeighbourTableError::NoAnswer {
                ip,
                interface: interface.to_owned(),
                waited: timeout,
            })
        }
        Reply::Refused(refusal) => Err(refused(pid, refusal)),
        _ => Err(refused(pid, nonsense())),
    }
}

fn refused(pid: i32, refusal: Refusal) -> NeighbourTableError {
    let why = refusal.why;
    match refusal.reason {
        Reason::Locked => NeighbourTableError::Locked { by: why },
        Reason::NotAllowed => NeighbourTableError::NotAllowed { pid, why },
        _ => NeighbourTableError::ControlRefused { pid, why },
    }
}

fn nonsense() -> Refusal {
    Refusal {
        reason: Reason::BadRequest,
        holder: 0,
        why: "its answer makes no sense".to_owned(),
    }
}

fn gone(pid: i32, source: io::Error) -> NeighbourTableError {
    NeighbourTableError::ControlGone { pid, source }
}
