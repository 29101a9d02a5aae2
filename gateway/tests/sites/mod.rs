//! Sites on one machine: network namespaces, each with a cable to a wide area in the middle that passes packets on. For
//! tests and the demonstration.
//!
//! Site N is 10.79.N.2 behind 10.79.N.1, N from 1. Names are those that the next run clears if this process is killed.
#![allow(dead_code)] // each program uses what it needs

use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::Arc;

use tautline_testbed::child;
use tautline_testbed::hosts::clear_stale;
use tautline_testbed::interrupt::{self, CleanUp};

/// Most sites. Higher: names of cables are not removed with their namespaces.
const SITES_MAX: usize = 8;

/// The sites. Dropping it removes them; a signal does too.
pub(crate) struct Sites {
    names: Vec<String>,
    namespaces: Vec<Arc<File>>,
    // Withdrawn after `drop` has removed the namespaces.
    _clean_up: CleanUp,
}

impl Sites {
    /// Makes so many sites. Needs root.
    pub(crate) fn create(count: usize) -> io::Result<Self> {
        assert!((1..=SITES_MAX).contains(&count), "{count} sites");
        interrupt::watch()?;
        clear_stale().map_err(io::Error::other)?;
        let own = std::process::id();
        // 0 is the wide area.
        let names: Vec<String> = (0..=count)
            .map(|site| format!("taut-{own}.9-n{site}"))
            .collect();
        let clean_up = {
            let names = names.clone();
            CleanUp::new(move || remove(&names))
        };
        let made = make(&names);
        if made.is_err() {
            remove(&names);
        }
        Ok(Self {
            namespaces: made?,
            names,
            _clean_up: clean_up,
        })
    }

    /// Number of sites.
    pub(crate) fn count(&self) -> usize {
        self.names.len() - 1
    }

    /// Address of a site, or with 0 of the wide area, as sites see it that are its neighbours.
    pub(crate) fn address(site: usize) -> String {
        match site {
            0 => "10.79.1.1".to_owned(),
            _ => format!("10.79.{site}.2"),
        }
    }

    /// A command that will run at a site and die with the calling thread.
    pub(crate) fn command(&self, site: usize, program: &str) -> Command {
        let mut command = Command::new(program);
        child::tie(&mut command, Some(Arc::clone(&self.namespaces[site])));
        command
    }

    /// Cuts a site's cable, or joins it again.
    pub(crate) fn cut(&self, site: usize, is_cut: bool) -> io::Result<()> {
        let state = if is_cut { "down" } else { "up" };
        let cable = format!("taut{site}");
        ip(&["-n", &self.names[0], "link", "set", &cable, state])
    }

    /// Gives a site's cable a rate in both directions, such as `2mbit`; queues keep 50 ms of it.
    ///
    /// By a token bucket (tbf) and not by the smoother's bed (`hosts::cell`): that is a switch with one limited port,
    /// whose program counts the waits of single frames at 100 Mbit/s and more. Here a cable between routers is slow
    /// both ways and for a while, and only its rate and its bounded queue matter.
    pub(crate) fn slow(&self, site: usize, rate: Option<&str>) -> io::Result<()> {
        let ends = [(0, format!("taut{site}")), (site, "taut0".to_owned())];
        for (place, interface) in ends {
            let mut command = self.command(place, "tc");
            let limits = ["tbf", "burst", "16kb", "latency", "50ms", "rate"];
            match rate {
                Some(rate) => command
                    .args(["qdisc", "replace", "dev", &interface, "root"])
                    .args(limits)
                    .arg(rate),
                None => command.args(["qdisc", "del", "dev", &interface, "root"]),
            };
            run(&mut command)?;
        }
        Ok(())
    }
}

/// Times that a slow cable had no room for a packet at once, towards the wide area; 0 for one that has no rate.
pub(crate) fn held_back(sites: &Sites, site: usize) -> u64 {
    let mut command = sites.command(site, "tc");
    let output = command.args(["-s", "-j", "qdisc", "show", "dev", "taut0"]);
    let output = output.output().map(|output| output.stdout);
    let told: serde_json::Value =
        serde_json::from_slice(&output.unwrap_or_default()).unwrap_or_default();
    let queues = told.as_array().into_iter().flatten();
    let mut slow = queues.filter(|queue| queue["kind"] == "tbf");
    slow.find_map(|queue| queue["overlimits"].as_u64())
        .unwrap_or(0)
}

impl Drop for Sites {
    fn drop(&mut self) {
        remove(&self.names);
    }
}

fn make(names: &[String]) -> io::Result<Vec<Arc<File>>> {
    for name in names {
        ip(&["netns", "add", name])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
    }
    let middle = &names[0];
    let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
    ip(&["netns", "exec", middle, "sh", "-c", forward])?;
    for (site, name) in names.iter().enumerate().skip(1) {
        let cable = format!("taut{site}");
        let (near, far) = (format!("10.79.{site}.2/24"), format!("10.79.{site}.1/24"));
        let gateway = format!("10.79.{site}.1");
        #[rustfmt::skip]
        ip(&["-n", middle, "link", "add", &cable, "type", "veth", "peer", "name", "taut0", "netns", name])?;
        ip(&["-n", middle, "address", "add", &far, "dev", &cable])?;
        ip(&["-n", middle, "link", "set", &cable, "up"])?;
        ip(&["-n", name, "address", "add", &near, "dev", "taut0"])?;
        ip(&["-n", name, "link", "set", "taut0", "up"])?;
        ip(&["-n", name, "route", "add", "default", "via", &gateway])?;
    }
    let open = |name: &String| File::open(format!("/run/netns/{name}")).map(Arc::new);
    names.iter().map(open).collect()
}

/// Errors are not reported: it runs where nobody can act on them, and the next run clears what is left.
fn remove(names: &[String]) {
    for name in names {
        for cable in 0..=SITES_MAX {
            let _absent = ip(&["-n", name, "link", "del", &format!("taut{cable}")]);
        }
        let _absent = ip(&["netns", "del", name]);
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", said.trim())))
}
