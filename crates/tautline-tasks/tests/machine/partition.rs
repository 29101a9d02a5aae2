//! Partitions made and removed again and again: every setting is byte for byte as it was before.

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;

use tautline_tasks::partition::placement::online;
use tautline_tasks::partition::{Partition, PartitionConfig, PartitionError, list, remove};
use tautline_testbed::hosts::may_create;
use tautline_testbed::process_namespace::is_inside;
use tautline_testbed::settings::{differences, snapshot};
use tautline_testbed::sys::in_fork;

/// Rounds where `TAUTLINE_PARTITION_ROUNDS` names none.
const ROUNDS_DEFAULT: u32 = 20;

/// Processes beside the partition, with CPUs of their own choice or none.
struct Bystanders(Vec<KilledOnDrop>);

impl Bystanders {
    fn start(cpus: &[Option<u32>]) -> Bystanders {
        let start = |cpu: &Option<u32>| {
            let mut command = match cpu {
                Some(cpu) => {
                    let mut command = Command::new("taskset");
                    command.args(["-c", &cpu.to_string(), "sleep"]);
                    command
                }
                None => Command::new("sleep"),
            };
            KilledOnDrop(command.arg("100000").spawn().expect("sleep and taskset"))
        };
        let started = Bystanders(cpus.iter().map(start).collect());
        let limit = Instant::now() + Duration::from_secs(60);
        let sleeps = |child: &KilledOnDrop| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id()));
            name.is_ok_and(|name| name == "sleep\n")
        };
        while !started.0.iter().all(sleeps) {
            assert!(Instant::now() < limit, "no process starts");
            std::thread::sleep(Duration::from_millis(5));
        }
        started
    }
}

#[test]
fn partitions_that_come_and_go_leave_every_setting_as_it_was() {
    let last = online().iter().last().unwrap_or(0);
    if !is_root() || online().count() < 2 {
        println!("SKIPPED: needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside("partitions_that_come_and_go_leave_every_setting_as_it_was") {
        return;
    }
    let rounds = std::env::var("TAUTLINE_PARTITION_ROUNDS").ok();
    let rounds = rounds
        .and_then(|text| text.parse().ok())
        .unwrap_or(ROUNDS_DEFAULT);
    let _bystanders = Bystanders::start(&[None, Some(0), Some(last), None]);
    let config = PartitionConfig::new("rounds", [last].into_iter().collect()).unwrap();
    let before = snapshot();
    let (mut creating, mut removing) = (Duration::ZERO, Duration::ZERO);
    for round in 0..rounds {
        let begun = Instant::now();
        let partition = Partition::create(&config).unwrap();
        creating += begun.elapsed();
        let changes = partition.changes().len();
        assert!(changes > 0);
        let begun = Instant::now();
        // By turns: dropped, put back, and kept and removed by name.
        match round % 3 {
            0 => drop(partition),
            1 => partition.put_back().unwrap(),
            _ => {
                partition.keep().unwrap();
                assert!(!remove("rounds", false).unwrap().is_empty());
            }
        }
        removing += begun.elapsed();
        let found = differences(&before, &snapshot());
        assert!(
            found.is_empty(),
            "round {round} of {changes} changes: {found:#?}"
        );
    }
    assert!(list().unwrap().is_empty());
    let (creating, removing) = (creating / rounds.max(1), removing / rounds.max(1));
    println!("{rounds} rounds, {creating:?} to create and {removing:?} to remove on average");
}

#[test]
fn a_forked_process_puts_no_partition_back() {
    let last = online().iter().last().unwrap_or(0);
    if !is_root() || online().count() < 2 {
        println!("SKIPPED: needs root with CAP_SYS_ADMIN, and two CPUs");
        return;
    }
    if !is_inside("a_forked_process_puts_no_partition_back") {
        return;
    }
    let before = snapshot();
    let config = PartitionConfig::new("forked", [last].into_iter().collect()).unwrap();
    let mut partition = Some(Partition::create(&config).unwrap());
    let made = snapshot();
    let dropped = in_fork(|| {
        drop(partition.take());
        vec![]
    });
    let put_back = in_fork(|| match partition.take().unwrap().put_back() {
        Err(PartitionError::NotPutBack(_)) => vec![],
        other => vec![format!("{other:?}")],
    });
    let kept = in_fork(|| match partition.take().unwrap().keep() {
        Err(_) => vec![],
        Ok(()) => vec!["it is kept".to_owned()],
    });
    for faults in [dropped, put_back, kept] {
        assert_eq!(faults.unwrap(), [""; 0]);
    }
    let found = differences(&made, &snapshot());
    assert!(found.is_empty(), "a child has changed {found:#?}");
    assert_eq!(list().unwrap().len(), 1);
    drop(partition);
    let found = differences(&before, &snapshot());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn two_partitions_are_removed_in_either_order() {
    let cpus: Vec<u32> = online().iter().collect();
    if cpus.len() < 3 || !is_root() {
        println!("SKIPPED: needs root with CAP_SYS_ADMIN, and three CPUs");
        return;
    }
    if !is_inside("two_partitions_are_removed_in_either_order") {
        return;
    }
    let _bystanders = Bystanders::start(&[None, Some(cpus[1]), Some(cpus[2])]);
    let before = snapshot();
    for first_goes_first in [true, false] {
        let make = |name: &str, cpu: u32| {
            let config = PartitionConfig::new(name, [cpu].into_iter().collect()).unwrap();
            Partition::create(&config).unwrap().keep().unwrap();
        };
        make("first", cpus[1]);
        make("second", cpus[2]);
        let names = match first_goes_first {
            true => ["first", "second"],
            false => ["second", "first"],
        };
        for name in names {
            remove(name, false).unwrap();
        }
        let found = differences(&before, &snapshot());
        assert!(found.is_empty(), "{names:?}: {found:#?}");
    }
}

/// Root that may make namespaces.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) && may_create()
}
