//! `taut top` in a terminal, with real nodes on hosts.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::skipped_without_privilege;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use tautline::config::BusConfig;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{Node, NodeConfig, Priority, Wait, bus_neighbour};
use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};
use tautline_testbed::own_test;

const TAUT: &str = env!("CARGO_BIN_EXE_taut");
/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;

/// Starts a command that runs until it is dropped.
fn running(command: &mut Command) -> KilledOnDrop {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    KilledOnDrop(command.spawn().unwrap())
}

/// A live view in a terminal of its own.
struct Terminal {
    child: KilledOnDrop,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(mut command: Command, rows: u16, columns: u16) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let open = || OwnedFd::from(File::options().read(true).write(true).open(&path).unwrap());
        let slave = open();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        command
            .stdin(open())
            .stdout(open())
            .stderr(slave)
            .env("TERM", "xterm-256color");
        let child = command.spawn().unwrap();
        // The slave's last copies on this side would keep the terminal open after the child's end.
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let mut output = File::from(master.try_clone().unwrap());
        let drawn = Arc::clone(&screen);
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut part) {
                drawn.lock().unwrap().process(&part[..bytes]);
            }
        });
        Terminal {
            child: KilledOnDrop(child),
            keys: File::from(master),
            screen,
        }
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen is as wanted.
    fn wait_for(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let contents = self.contents();
            if is_so(&contents) {
                return contents;
            }
            assert!(started.elapsed() < PATIENCE, "no {what}:\n{contents}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, which a key has caused.
    fn ends(mut self) {
        let started = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(self.child.wait().unwrap().success());
        assert!(
            !self.screen.lock().unwrap().screen().alternate_screen(),
            "the screen is left as it was"
        );
        let modes = tcgetattr(&self.keys).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "so are lines and their echo: {modes:?}"
        );
    }
}

fn inside(hosts: &Hosts, host: Host, arguments: &[&str]) -> Command {
    let mut command = hosts.command(host, TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A host with a node that answers, one that sends to it a hundred times a second, and the view of the first.
fn watched(hosts: &Hosts, rows: u16, columns: u16) -> (KilledOnDrop, KilledOnDrop, Terminal) {
    let interface = hosts.end(Host::A, 0).interface();
    let echo = running(&mut inside(
        hosts,
        Host::B,
        &["echo", "--interface", &interface],
    ));
    let ip = hosts.end(Host::B, 0).address().to_string();
    let arguments = [
        "ping",
        &ip,
        "--interface",
        &interface,
        "--interval",
        "10ms",
        "--count",
        "1000000",
    ];
    let mut ping = inside(hosts, Host::A, &arguments);
    ping.args(["--timeout", "10s"]);
    let ping = running(&mut ping);
    let view = Terminal::start(
        inside(hosts, Host::B, &["top", "--interval", "200ms"]),
        rows,
        columns,
    );
    (echo, ping, view)
}

#[test]
fn a_terminal_shows_a_port_while_it_lives_and_when_it_has_gone() {
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let (echo, _ping, mut view) = watched(&hosts, 24, 80);
    // A hundred messages a second in each direction.
    view.wait_for("traffic", |screen| {
        let rate = |line: &str| {
            line.split_whitespace()
                .nth(1)
                .and_then(|rate| rate.parse::<f64>().ok())
        };
        let port = screen.lines().find(|line| line.contains("4095"));
        port.is_some_and(|port| rate(port).is_some_and(|rate| rate > 20.0))
    });
    let screen = view.contents();
    assert!(
        screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    for title in [
        "NAME", "MSG/s", "AGE", "p50", "p99", "MAX", "LOST", "FULL", "REFUSED",
    ] {
        assert!(screen.contains(title), "{title}: {screen}");
    }
    // The port is looked into, and its latency measured.
    view.press("/4095\r");
    view.wait_for("filter", |screen| {
        !screen.contains("(taut)") && screen.contains("4095")
    });
    view.press("\r");
    view.wait_for("latencies", |screen| {
        let line = screen
            .lines()
            .find(|line| line.starts_with("last interval"));
        line.is_some_and(|line| line.contains("s, p99") && !line.contains('–'))
    });
    let screen = view.contents();
    assert!(
        screen.contains("from 10.77.") && screen.contains("0 lost, 0 twice"),
        "{screen}"
    );
    // It dies while it is watched.
    drop(echo);
    view.wait_for("word of its end", |screen| screen.contains("It has gone"));
    view.press("\u{1b}");
    view.wait_for("the list without it", |screen| screen.contains("0 nodes"));
    view.press("q");
    view.ends();
}

#[test]
fn a_value_of_a_type_is_shown_by_the_names_of_its_fields() {
    let bus = crate::common::Scratch::new("top-value");
    let path = bus.0.join("bus");
    let configuration = format!(
        "link = \"vbus\"\nbus = \"{}\"\nnode = \"arm\"\n\
         [[type]]\nname = \"Pair\"\nfields = [\"torque: i16\", \"mode: u8\"]\n\
         [[port]]\nname = \"angle\"\nnumber = 77\nkind = \"sampling\"\ntype = \"Pair\"\n",
        path.display()
    );
    let node = Node::open(configuration.parse().unwrap()).unwrap();
    let mut port = node.sampling("angle").open().unwrap();
    let hub = BusConfig::new(path.to_str().unwrap(), "hub".parse().unwrap());
    let hub = NodeConfig::vbus(hub)
        .with_neighbour(bus_neighbour("arm".parse().unwrap()))
        .unwrap();
    let hub = Node::open(hub).unwrap();
    let options = QueuingOptions::default();
    let mut sender = hub.queuing(78).options(&options).open().unwrap();
    let until = tautline::now() + PATIENCE;
    let to = sender
        .destination_until("arm", port.number(), until)
        .unwrap();
    sender.send(to, Priority::NORMAL, &[0xfe, 0xff, 3]).unwrap();
    let mut view = Terminal::start(taut(&["top", "--interval", "200ms"]), 24, 80);
    view.wait_for("the port", |screen| screen.contains("angle"));
    view.press("/angle\r");
    view.wait_for("the filter", |screen| screen.contains("filter: angle"));
    view.press("\r");
    view.wait_for("the value", |screen| {
        screen.contains("Pair torque=-2 mode=3, from hub port 78")
    });
    let mut buffer = [0; 1484];
    let sample = port
        .next_into(&mut buffer, Wait::Until(until))
        .unwrap()
        .unwrap();
    let value = &buffer[..sample.length];
    assert_eq!(value, [0xfe, 0xff, 3], "it was left to its reader");
    view.press("q");
    view.ends();
}

#[test]
fn a_small_terminal_shows_what_fits() {
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let (_echo, _ping, mut view) = watched(&hosts, 10, 40);
    let screen = view.wait_for("the port", |screen| screen.contains("4095"));
    assert!(
        screen.contains("MSG/s") && screen.contains("LOST"),
        "{screen}"
    );
    view.press("?");
    view.wait_for("help", |screen| screen.contains("look into a line"));
    view.press("x");
    view.wait_for("the port again", |screen| screen.contains("4095"));
    // Sorted by a column, reset, paused, and ended.
    for keys in ["s", "o", "r", "w", "l", "p"] {
        view.press(keys);
    }
    view.wait_for("the pause", |screen| screen.contains("PAUSED"));
    view.press("\u{3}");
    view.ends();
}

#[test]
fn a_part_of_the_view_ends_by_q_and_by_interrupt() {
    let scratch = crate::common::Scratch::new("live-views");
    let directory = scratch.0.join("bus").display().to_string();
    let config = BusConfig::new(&directory, "arm".parse().unwrap());
    let node = Node::open(NodeConfig::vbus(config)).unwrap();
    let options = QueuingOptions::default();
    let _port = node.queuing(77).options(&options).open();
    for key in ["xq", "\u{3}"] {
        // ^C is a signal to those whose terminal it is.
        let mut command = Command::new("setsid");
        command.args(["--ctty", TAUT, "top", "--kind", "bus"]);
        command.args(["--interval", "100ms"]);
        let mut view = Terminal::start(command, 24, 160);
        view.wait_for("the port", |screen| {
            screen.contains("arm on bus") && screen.contains("77")
        });
        view.press(key);
        view.ends();
    }
}

/// Variable by which a child of the test below is told its node's name.
const NODE: &str = "TAUT_TEST_NODE";
/// Word of that child when its ports are open, which takes a while on a busy machine.
const ALL_OPEN: &str = "all open";
/// Ports of each of three nodes, in processes of their own: a port takes four descriptors.
const PORTS_EACH: u16 = 3_334;

#[test]
#[ignore = "runs as a child of the test of ten thousand ports"]
fn child_that_opens_ports() {
    let name = std::env::var(NODE).unwrap();
    let (bus, node) = name.split_once('/').unwrap();
    let config = BusConfig::new(bus, node.parse().unwrap());
    let node = Node::open(NodeConfig::vbus(config)).unwrap();
    let options = SamplingOptions::default();
    let open = |number: u16| node.sampling(number).options(&options).open().unwrap();
    let _ports: Vec<_> = (1..=PORTS_EACH).map(open).collect();
    println!("{ALL_OPEN}");
    loop {
        thread::park();
    }
}

#[test]
fn ten_thousand_ports_are_shown_and_served_and_keys_still_answered() {
    let bus = format!("taut{}", std::process::id());
    let start = |node: &str| {
        let mut child = own_test::again("child_that_opens_ports");
        child.env(NODE, format!("{bus}/{node}"));
        child.stdin(Stdio::null()).stdout(Stdio::piped());
        KilledOnDrop(child.spawn().unwrap())
    };
    let mut nodes = ["one", "two", "three"].map(start);
    for node in &mut nodes {
        let said = BufReader::new(node.0.stdout.take().unwrap()).lines();
        let mut said = said.map_while(Result::ok);
        assert!(said.any(|line| line.contains(ALL_OPEN)), "a node ended");
    }
    let mut view = Terminal::start(taut(&["top"]), 24, 80);
    // Other tests have ports, too.
    let count = |screen: &str| {
        let words: Vec<&str> = screen.lines().next()?.split_whitespace().collect();
        let place = words.iter().position(|word| word.starts_with("port"))?;
        words[place - 1].parse::<u32>().ok()
    };
    view.wait_for("the ports", |screen| {
        count(screen).is_some_and(|count| count >= 3 * u32::from(PORTS_EACH))
    });
    for _ in 0..5 {
        view.press("G");
        view.wait_for("the end", |screen| !screen.contains(" on taut"));
        view.press("g");
        view.wait_for("the beginning", |screen| screen.contains(" on taut"));
    }
    view.press("q");
    view.ends();
    serves_many(&bus);
}

/// The page of those ports is bounded, its data are not.
fn serves_many(bus: &str) {
    let served = crate::common::Served::start(&["--listen", "127.0.0.1:0"]);
    let json = |path: &str| -> Value {
        let answer = served.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    };
    let all = 3 * u64::from(PORTS_EACH);
    let started = Instant::now();
    // On a busy machine a node may miss the time in which it is to answer.
    let ports = loop {
        let status = json("/status.json");
        let nodes = status["nodes"].as_array().unwrap().iter();
        let ours = nodes.filter(|node| node["bus"].as_str().is_some_and(|on| on.contains(bus)));
        let ports = ours.map(|node| node["ports"].as_array().map_or(0, Vec::len) as u64);
        let ports = ports.sum::<u64>();
        if ports == all || started.elapsed() > PATIENCE {
            break ports;
        }
    };
    assert_eq!(ports, all);
    let look = loop {
        let look = json("/look.json");
        let left_out = look["rows_left_out"].as_u64().unwrap();
        if left_out >= all - 1_000 {
            break look;
        }
        assert!(started.elapsed() < PATIENCE, "{left_out} are left out");
    };
    let shown = look["rows"].as_array().unwrap();
    assert_eq!(shown.len(), 1_000);
    let port = shown.iter().find(|row| row["key"]["kind"] == "port");
    let key = &port.unwrap()["key"];
    let place = key["place"].as_str().unwrap().replace('/', "%2F");
    let one = format!(
        "/port.json?kind=port&place={place}&number={}",
        key["number"]
    );
    while served.get(&one).status != 200 {
        assert!(started.elapsed() < PATIENCE, "no port {one}");
    }
    loop {
        let metrics = served.get("/metrics").body;
        let sent = metrics.lines();
        let sent = sent.filter(|line| line.starts_with("taut_port_sent_total{"));
        let sent = sent.count() as u64;
        if sent >= all {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{sent} ports have metrics");
    }
    let scratch = crate::common::Scratch::new("serve-many");
    let url = format!("http://{}/", served.address);
    // Enough for one look of the page; each takes the server a second here.
    let options = ["--virtual-time-budget=2000"];
    loop {
        let Some(page) = crate::common::browse_url(&options, &url, &scratch.0.join("profile"))
        else {
            return;
        };
        if page.contains(" more lines are left out") {
            break;
        }
        assert!(started.elapsed() < 4 * PATIENCE, "{page:.2000}");
    }
}

/// Starts a program that was copied a moment ago. A process that another test starts meanwhile has the copy open for
/// writing until it becomes another program.
fn once_not_busy<T>(start: impl FnMut() -> std::io::Result<T>) -> T {
    let mut results = std::iter::repeat_with(start);
    let is_busy = |result: &std::io::Result<T>| {
        let error = result.as_ref().err();
        error.is_some_and(|error| error.kind() == ErrorKind::ExecutableFileBusy)
    };
    let ended = results.find(|result| {
        let is_busy = is_busy(result);
        if is_busy {
            thread::sleep(Duration::from_millis(10));
        }
        !is_busy
    });
    ended.expect("it goes on for ever").unwrap()
}

fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(TAUT);
    command.args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn without_a_terminal_there_is_one_picture() {
    let here = [127, 0, 12, 1].into();
    let node = Node::open(NodeConfig::udp(here)).unwrap();
    let _port = node.queuing(55).open().unwrap();
    let output = taut(&["top", "--interval", "50ms"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        text.contains("127.0.12.1 udp") && text.contains("55"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");

    let output = taut(&["top", "--once", "--interval", "50ms", "--json", "--latency"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let own = |row: &&Value| row["process"] == std::process::id() && row["key"]["kind"] == "port";
    let row = rows.iter().find(own).unwrap();
    assert_eq!((&row["name"], &row["lost"]), (&"55".into(), &0.into()));
    // It has begun. Whether it has ended by itself since is a question of seconds.
    let latency = node.status().ports[0].latency.clone().unwrap();
    assert_eq!(latency.count, 0);
}

#[test]
fn others_see_nothing_of_root() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: becoming another user needs root");
        return;
    }
    let node = Node::open(NodeConfig::udp([127, 0, 13, 1].into())).unwrap();
    let mut stranger = taut(&["top", "--once", "--interval", "50ms"]);
    // A copy where every user can reach it.
    let program = std::env::temp_dir().join(format!("taut-top-{}", std::process::id()));
    std::fs::copy(TAUT, &program).unwrap();
    stranger = {
        let mut command = Command::new(&program);
        command
            .args(stranger.get_args())
            .env_clear()
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::null());
        command
    };
    let output = once_not_busy(|| stranger.output());
    std::fs::remove_file(program).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains("127.0.13.1"), "{text}");
    drop(node);
}

#[test]
fn names_move_no_cursor() {
    // A command's name is anybody's to choose.
    let directory = crate::common::Scratch::new("top-names");
    let program = directory.0.join("x\u{1b}[2Jy");
    std::fs::copy(TAUT, &program).unwrap();
    let mut echo = Command::new(program);
    echo.args(["echo", "--address", "127.0.14.1"])
        .stdin(Stdio::null());
    echo.stdout(Stdio::null()).stderr(Stdio::null());
    let _echo = KilledOnDrop(once_not_busy(|| echo.spawn()));
    let started = Instant::now();
    loop {
        let output = taut(&["top", "--once", "--interval", "50ms"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        if text.contains("127.0.14.1 udp (x\u{fffd}[2Jy)") {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{text}");
    }
}
