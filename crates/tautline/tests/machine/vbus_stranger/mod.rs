//! Attacks on a bus by processes of another user: they take no name, port or file that is another's, and delay no
//! process that looks.
//! `docs/explanation/security.md` has the table of cases.

mod bed;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Clock};

use crate::common::unprivileged::become_user;
use crate::common::{PATIENCE, bus, child, port};
use bed::*;
use tautline::config::BusConfig;
use tautline::vbus::Observer;
use tautline::{Priority, Wait, now};
use tautline_shm::vbus::handshake::Step;
use tautline_testbed::send_lingering;

#[test]
fn a_swapped_link_changes_no_file() {
    const TEST: &str = "a_swapped_link_changes_no_file";
    if let Some((secret, config)) = attacker() {
        as_stranger();
        println!("{}", child::READY);
        let bus = Path::new(&config.name);
        let names = [".victim.7", "victim.7", "victim/.7", "victim/7", "victim"];
        loop {
            for name in names {
                let path = bus.join(name);
                let _gone = fs::remove_file(&path);
                let _made = symlink(&secret, &path);
            }
        }
    }
    if !is_root(TEST) {
        return;
    }
    let config = shared_bus("links");
    let secret = PathBuf::from(format!("{}-secret", config.name));
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let node = open(&config, "victim");
    let stranger = attack(TEST, secret.to_str().unwrap(), &config);
    for _ in 0..300 {
        // The name may be taken away from it in the middle, which is an error and no more.
        drop(node.queuing(port(7)).open());
    }
    drop(stranger);
    drop(node);
    let found = fs::metadata(&secret).unwrap();
    let access = (found.mode() & 0o7777, found.uid(), found.gid());
    fs::remove_file(&secret).unwrap();
    assert_eq!(access, (0o600, 0, 0), "mode, user and group of the secret");
}

#[test]
fn a_watcher_is_not_frozen_by_a_port() {
    const TEST: &str = "a_watcher_is_not_frozen_by_a_port";
    if let Some((_, config)) = attacker() {
        as_stranger();
        let node = Path::new(&config.name).join("stranger");
        fs::DirBuilder::new().mode(0o755).create(node).unwrap();
        let listener = listen(&config.name, "stranger", 9);
        println!("{}", child::READY);
        let socket = rustix::net::accept(&listener).unwrap();
        let view = message(Step::View, "stranger", 9).to_bytes();
        // The watcher keeps the first until it has all, gives up at the second, and never receives the third.
        let first = send_lingering(&socket, &view);
        rustix::net::send(&socket, &view, rustix::net::SendFlags::NOSIGNAL).unwrap();
        let third = send_lingering(&socket, &view);
        std::mem::forget([first, third]);
        loop {
            std::thread::park();
        }
    }
    if !is_root(TEST) {
        return;
    }
    let config = shared_bus("watched");
    let _node = open(&config, "victim");
    let _stranger = attack(TEST, "listen", &config);
    let name = config.name.clone();
    let seen = in_time("watching", move || {
        Observer::open(&name, "stranger.9".parse().unwrap()).map(|_| ())
    });
    println!("{}", seen.expect_err("a view of nothing"));
}

#[test]
fn a_bus_that_a_stranger_made_is_not_joined() {
    const TEST: &str = "a_bus_that_a_stranger_made_is_not_joined";
    if let Some(path) = child::role() {
        become_user(VICTIM);
        let config = BusConfig::new(&path, "victim".parse().unwrap());
        match try_open(&config, "victim") {
            Ok(_) => println!("joined"),
            Err(error) => println!("refused: {error}"),
        }
        return;
    }
    if !is_root(TEST) {
        return;
    }
    let base = std::env::temp_dir().join(format!("taut-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&base).unwrap();
    fs::set_permissions(&base, Permissions::from_mode(0o1777)).unwrap();
    // Both places that the victim might look for its bus in, and one that it names itself.
    let below = format!("tautline-{VICTIM}");
    for directory in [below.as_str(), "tautline", "own"] {
        let bus = base.join(directory).join("vbus/cell");
        fs::create_dir_all(&bus).unwrap();
        for path in bus.ancestors().take(3) {
            chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
    }
    let named = base.join("own/vbus/cell");
    let named = named.to_str().unwrap();
    let link = base.join("link");
    symlink("/", &link).unwrap();
    rustix::fs::chownat(
        rustix::fs::CWD,
        &link,
        Some(rustix::fs::Uid::from_raw(STRANGER)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    let through = format!("{}{}", link.display(), base.display());
    let through = format!("{through}/mine");
    fs::create_dir(base.join("mine")).unwrap();
    chown(base.join("mine"), Some(VICTIM), Some(VICTIM)).unwrap();
    let mut answers = Vec::new();
    for (bus, runtime) in [
        ("cell", None),
        ("cell", Some(&base)),
        (named, None),
        (through.as_str(), None),
    ] {
        let mut command = child::again(TEST, bus);
        command.env("TMPDIR", &base).env_remove("XDG_RUNTIME_DIR");
        if let Some(runtime) = runtime {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said
            .lines()
            .find(|line| line.contains("joined") || line.contains("refused: "));
        answers.push(line.expect("no answer").to_owned());
    }
    fs::remove_dir_all(&base).unwrap();
    for answer in &answers {
        assert!(answer.contains("refused: "), "{answers:#?}");
    }
    println!("{answers:#?}");
}

#[test]
fn without_descriptors_the_service_does_not_spin() {
    const TEST: &str = "without_descriptors_the_service_does_not_spin";
    const WATCHED: Duration = Duration::from_secs(1);
    if let Some((_, config)) = attacker() {
        let node = open(&config, "victim");
        let mut victim = queuing(&node, 7);
        // Every descriptor that this process may have is in use.
        let mut files = Vec::new();
        limit_descriptors(64);
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        println!("{}", child::READY);
        let used = || {
            let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Duration::try_from(usage).unwrap()
        };
        std::thread::sleep(WATCHED / 4);
        let before = used();
        std::thread::sleep(WATCHED);
        let spent = used() - before;
        drop(files);
        let mut buffer = [0; 64];
        let message = victim
            .receive_into(&mut buffer, Wait::Until(now() + PATIENCE))
            .unwrap();
        println!(
            "it used {} ms, and then served: {}",
            spent.as_millis(),
            message.is_some()
        );
        child::ready();
        return;
    }
    let config = bus("spin");
    let node = open(&config, "honest");
    let mut victim = attack(TEST, "victim", &config);
    let mut honest = queuing(&node, 1);
    let to = honest.destination("victim", port(7)).unwrap();
    let started = Clock::now();
    while honest.send(to, Priority::NORMAL, b"at last").is_err() {
        assert!(started.elapsed() < 2 * PATIENCE, "never served");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = victim.wait_for("it used");
    let spent: u128 = said.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(said.contains("served: true"), "{said}");
    // A thread that spins uses whatever the machine's other work leaves it.
    assert!(spent < WATCHED.as_millis() / 10, "{said}");
}

#[test]
fn a_member_replaces_nobodys_port() {
    const TEST: &str = "a_member_replaces_nobodys_port";
    if let Some((_, config)) = attacker() {
        as_stranger();
        let bus = Path::new(&config.name);
        let path = bus.join("victim/7");
        let _gone = fs::remove_file(&path);
        let _gone = fs::rename(&path, path.with_extension("gone"));
        let _gone = fs::rename(bus.join("victim"), bus.join("gone"));
        let _gone = fs::remove_dir_all(bus.join("victim"));
        let node = try_open(&config, "victim").ok();
        let impostor = node.as_ref().and_then(|node| node.queuing(7).open().ok());
        println!("the stranger is in its place: {}", impostor.is_some());
        child::ready();
        return;
    }
    if !is_root(TEST) {
        return;
    }
    let (config, _node, mut victim) = shared_bus_with_victim("replace");
    let _stranger = attack(TEST, "replace", &config);
    assert_served(&config, &mut victim);
}

#[test]
fn a_member_sends_under_no_other_name() {
    const TEST: &str = "a_member_sends_under_no_other_name";
    if let Some((_, config)) = attacker() {
        as_stranger();
        let _node = open(&config, "stranger");
        for name in ["honest", "nobody-there", "stranger"] {
            let socket = dial(&config.name, "victim", 7);
            println!("as {name}: {:?}", answer_to(name, &socket, 7));
        }
        child::ready();
        return;
    }
    if !is_root(TEST) {
        return;
    }
    let (config, node, victim) = shared_bus_with_victim("names");
    let honest = open(&config, "honest");
    let mut child = child::again(TEST, &format!("names:{}", config.name));
    let output = child.stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    drop((victim, node, honest));
    assert!(said.contains("as honest: Refused"), "{said}");
    assert!(said.contains("as nobody-there: Refused"), "{said}");
    assert!(said.contains("as stranger: Offer"), "{said}");
}

#[test]
fn a_held_lock_stops_nobody() {
    const TEST: &str = "a_held_lock_stops_nobody";
    if let Some((_, config)) = attacker() {
        as_stranger();
        let mut held = Vec::new();
        let mut paths = vec![PathBuf::from(&config.name)];
        while let Some(path) = paths.pop() {
            if let Ok(entries) = fs::read_dir(&path) {
                paths.extend(entries.map(|entry| entry.unwrap().path()));
            }
            if let Ok(file) = File::open(&path) {
                use rustix::fs::{FlockOperation, flock};
                let _held = flock(&file, FlockOperation::NonBlockingLockExclusive);
                held.push(file);
            }
        }
        println!("the stranger holds {}", held.len());
        child::ready();
        return;
    }
    if !is_root(TEST) {
        return;
    }
    let (config, node, mut victim) = shared_bus_with_victim("lock");
    let _stranger = attack(TEST, "lock", &config);
    let copy = config.clone();
    in_time("opening and closing", move || {
        drop(queuing(&open(&copy, "other"), 8));
        drop(queuing(&node, 9));
        assert_served(&copy, &mut victim);
        drop((victim, node));
    });
}
