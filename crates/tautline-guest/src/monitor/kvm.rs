//! Our own monitor, on KVM: a process of `tautline_kvm`, started, placed and watched.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use tautline_kvm::packet::{self, Descriptors, Go, Order, Report};

use super::process::Process;
use super::{End, Machine, Recipe, START_MAX};
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::window::Window;

/// Its name in errors.
const NAME: &str = "KVM";
/// Time that the process has for its last words, and for the rest of the console, once the machine has ended. Lower: on
/// a busy machine the console's end is cut. Higher: a console without a reader delays a restart for longer.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// A machine of our own.
#[derive(Debug)]
pub(super) struct Kvm {
    process: Process,
    socket: OwnedFd,
    name: String,
    limits: Vec<String>,
    /// End of the machine, and when it was told.
    end: Option<(End, Instant)>,
}

impl Kvm {
    pub(super) fn start(
        recipe: &Recipe<'_>,
        window: &Window,
        doorbells: &Doorbells,
        device: &OwnedFd,
    ) -> Result<Kvm, GuestError> {
        let failed = GuestError::system("starting the monitor");
        let (socket, theirs) = packet::pair().map_err(&failed)?;
        let mut command = command(recipe.monitor_command);
        command.stdin(theirs).stdout(match recipe.console {
            Some(console) => console.try_clone().map_err(&failed)?.into(),
            None => Stdio::null(),
        });
        let process = Process::start(&mut command, &[]).map_err(&failed)?;
        drop(command); // and with it their end of the socket
        let name = match tautline_kvm::access::is_native() {
            true => NAME.to_owned(),
            false => format!("{NAME}, processor emulated by the host's kernel"),
        };
        let mut machine = Kvm {
            process,
            socket,
            name,
            limits: Vec::new(),
            end: None,
        };
        let ordered = machine.order(recipe, window, doorbells, device);
        match ordered.and_then(|()| machine.prepare(recipe.config.partition.as_deref())) {
            Ok(()) => Ok(machine),
            Err(why) => Err(machine.refusal(&why)),
        }
    }

    /// Tells the process which machine to make.
    fn order(
        &self,
        recipe: &Recipe<'_>,
        window: &Window,
        doorbells: &Doorbells,
        device: &OwnedFd,
    ) -> io::Result<()> {
        let image = recipe.image;
        let (linux_bytes, guest_bytes) = window.bytes();
        let order = Order {
            ram_bytes: recipe.config.ram_bytes,
            is_resident: recipe.config.partition.is_some(),
            linux_bytes,
            guest_bytes,
            segments: image.segments.clone(),
            entry: image.entry,
        };
        // A descriptor for reading alone: nothing in that process can make its mapping writable.
        let path = format!("/proc/self/fd/{}", window.file().as_raw_fd());
        let to_read = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let descriptors = Descriptors {
            kvm: device.as_fd(),
            image: image.file.as_fd(),
            window_to_read: to_read.as_fd(),
            window: window.file().as_fd(),
            to_linux: doorbells.to_linux.as_fd(),
            to_guest: doorbells.to_guest.as_fd(),
        };
        packet::send_order(&self.socket, &order, &descriptors)
    }

    /// Waits until the machine is made, places its threads, and lets the guest run.
    fn prepare(&mut self, partition: Option<&str>) -> io::Result<()> {
        if !self.has_news(START_MAX) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match packet::receive(&self.socket)? {
            Report::Ready { processor, limits } => {
                self.limits = limits;
                if let Some(partition) = partition {
                    let placed = self.process.place(partition, &[processor]);
                    self.limits.extend(placed.map_err(io::Error::other)?);
                }
                packet::send(&self.socket, &Go)
            }
            Report::Refused(why) => Err(io::Error::other(why)),
            Report::Ended(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The machine could not be started: its own last words, or ours.
    fn refusal(&mut self, why: &io::Error) -> GuestError {
        self.process.kill();
        let said = self.process.complaint();
        if said.is_empty() && why.kind() == io::ErrorKind::TimedOut {
            return GuestError::Late { monitor: NAME };
        }
        GuestError::NotStarted {
            monitor: NAME,
            why: if said.is_empty() {
                why.to_string()
            } else {
                said
            },
        }
    }

    fn has_news(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
        // Interrupted: the next look finds it.
        poll(&mut socket, limit.as_ref()).is_ok_and(|count| count > 0)
    }
}

fn command(words: &[OsString]) -> Command {
    let (program, arguments) = words.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments);
    // Its own group: the terminal's signals are not for it.
    command.process_group(0);
    command
}

fn end(end: packet::End) -> End {
    match end {
        packet::End::SwitchedOff => End::SwitchedOff,
        packet::End::Reset => End::Reset,
        packet::End::Failed => End::Faulted(None),
        packet::End::Faulted(fault) => End::Faulted(Some(fault)),
        packet::End::Broken(why) => End::Failed(why),
    }
}

impl Machine for Kvm {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &[String] {
        &self.limits
    }

    fn ended(&mut self) -> Option<End> {
        let status = self.process.ended();
        if self.end.is_none()
            && self.has_news(Duration::ZERO)
            && let Ok(Report::Ended(how)) = packet::receive(&self.socket)
        {
            self.end = Some((end(how), Instant::now()));
        }
        match (&self.end, status) {
            (Some((end, told_at)), status) => {
                let is_over = status.is_some() || told_at.elapsed() > LAST_WORDS_MAX;
                is_over.then(|| end.clone())
            }
            (None, Some(status)) => Some(End::Failed(self.process.end_text("its monitor", status))),
            (None, None) => None,
        }
    }

    fn kill(&mut self) {
        self.process.kill();
    }
}
