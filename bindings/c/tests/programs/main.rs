//! C and C++ programs against the installed library: they compile with gcc and clang without a warning, run
//! between two hosts with peers in C and in Rust, and under AddressSanitizer and valgrind.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tautline_state::child::KilledOnDrop;

use tautline::neighbours::Form;
use tautline::port::QueuingOptions;
use tautline::{LinkKind, MacAddress, Neighbour, Node, NodeConfig, Priority, Wait};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

mod cpp;
mod hello;
mod own_loop;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const STRICT: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic"];

/// The library as `make install` puts it somewhere.
struct Image {
    root: PathBuf,
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-image");
    // The one before; kept after a run, so that what failed can be run again by hand.
    let _none = std::fs::remove_dir_all(&root);
    make("install", &root);
    Image { root }
});

fn make(target: &str, root: &Path) {
    let built = std::env::current_exe().unwrap();
    let output = Command::new("make")
        .arg(target)
        .arg(format!("BUILT={}", built.parent().unwrap().display()))
        .arg(format!("DESTDIR={}", root.display()))
        .args(["PREFIX=/usr", "INSTALL=install"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    succeeded("make", &output);
}

fn succeeded(what: &str, output: &std::process::Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{what}: {}\n{said}{complained}",
        output.status
    );
    said
}

impl Image {
    fn lib(&self) -> PathBuf {
        self.root.join("usr/lib")
    }

    /// Compiler flags from pkg-config.
    fn flags(&self, arguments: &[&str]) -> Vec<String> {
        let output = Command::new("pkg-config")
            .args(arguments)
            .arg("tautline")
            .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &self.root)
            .output()
            .unwrap();
        let text = succeeded("pkg-config", &output);
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program; where it is.
    fn compile(&self, compiler: &str, source: &str, name: &str, options: &[&str]) -> PathBuf {
        let program = self.root.join(name);
        let mut command = Command::new(compiler);
        command
            .args(STRICT)
            .args(options)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
            .arg("-o")
            .arg(&program)
            .args(self.flags(&["--cflags", "--libs"]));
        succeeded(compiler, &command.output().unwrap());
        program
    }

    fn example(&self, name: &str, for_test: &str) -> PathBuf {
        let source = format!("examples/{name}.c");
        self.compile("cc", &source, &format!("{name}-{for_test}"), &[])
    }

    /// A command that finds the library.
    fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.lib());
        command
    }

    fn under_valgrind(&self, program: &Path) -> Command {
        let mut command = self.run(Path::new("valgrind"));
        command
            .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
            .arg("--errors-for-leak-kinds=definite,indirect,possible")
            .arg(program);
        command
    }
}

/// Those of the library; the folder `vbus` is of the header that stands alone.
fn examples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".c").map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}

#[test]
fn every_program_compiles_without_a_warning() {
    for compiler in ["gcc", "clang"] {
        for name in examples() {
            let source = format!("examples/{name}.c");
            IMAGE.compile(compiler, &source, &format!("{name}-{compiler}"), &[]);
        }
        let name = format!("abuse-{compiler}");
        IMAGE.compile(compiler, "tests/abuse.c", &name, &["-pthread"]);
    }
}

#[test]
fn installing_and_uninstalling() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-image-again");
    make("install", &root);
    let lib = root.join("usr/lib");
    let link = |name: &str| std::fs::read_link(lib.join(name)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(link("libtautline.so"), Path::new("libtautline.so.1"));
    assert_eq!(
        link("libtautline.so.1"),
        Path::new(&format!("libtautline.so.{version}"))
    );
    for file in [
        "include/tautline.h",
        "include/tautline.hpp",
        "include/tautline_tasks.hpp",
        "lib/cmake/Tautline/TautlineConfig.cmake",
        "lib/libtautline.a",
        "lib/pkgconfig/tautline.pc",
        "share/man/man3/tautline.3",
    ] {
        assert!(root.join("usr").join(file).is_file(), "{file}");
    }
    assert_eq!(IMAGE.flags(&["--modversion"]), [version]);
    make("uninstall", &root);
    let left = Command::new("find")
        .arg(&root)
        .args(["-not", "-type", "d"])
        .output()
        .unwrap();
    assert_eq!(succeeded("find", &left), "");
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_program_can_be_linked_with_the_static_library() {
    let image = &*IMAGE;
    let program = image.root.join("command_queue-static");
    let libraries = image.flags(&["--static", "--libs"]);
    // A program without shared libraries cannot have it.
    assert!(!libraries.contains(&"-lgcc_s".to_owned()), "{libraries:?}");
    let libraries = libraries.iter().map(|flag| match flag.as_str() {
        "-ltautline" => "-l:libtautline.a",
        other => other,
    });
    let output = Command::new("cc")
        .args(STRICT)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/command_queue.c"))
        .args(image.flags(&["--cflags"]))
        .arg("-o")
        .arg(&program)
        .args(libraries)
        .output()
        .unwrap();
    succeeded("cc", &output);
    let _ports = COMMAND_QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    // Without the shared library in reach.
    assert!(output_of(&mut Command::new(&program)).starts_with("priority 7: emergency stop\n"));
}

/// The ports of the example `command_queue`, which two tests run.
static COMMAND_QUEUE: Mutex<()> = Mutex::new(());

/// Standard output of a program that must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    succeeded("the program", &output)
}

/// One test, because they use the same ports of loopback one after the other.
#[test]
fn misuse_is_answered_plain_sanitized_and_under_valgrind() {
    let plain = IMAGE.compile("cc", "tests/abuse.c", "abuse", &["-g", "-pthread"]);
    let sanitizers = ["-g", "-pthread", "-fsanitize=address,undefined"];
    let sanitized = IMAGE.compile("gcc", "tests/abuse.c", "abuse-asan", &sanitizers);
    for mut command in [
        IMAGE.run(&plain),
        IMAGE.run(&sanitized),
        IMAGE.under_valgrind(&plain),
    ] {
        assert_eq!(output_of(&mut command), "all refused as documented\n");
    }
}

#[test]
fn a_message_costs_no_allocation() {
    let program = IMAGE.compile("cc", "tests/allocation.c", "allocation", &[]);
    let text = output_of(&mut IMAGE.run(&program));
    assert_eq!(text, "0 allocations in 100 rounds\n");
}

#[test]
fn the_most_urgent_command_comes_first() {
    let program = IMAGE.example("command_queue", "plain");
    let expected = "priority 7: emergency stop\n\
                    priority 3: turn to 90 degrees\n\
                    priority 3: turn to 45 degrees\n\
                    priority 0: log your temperature\n";
    let _ports = COMMAND_QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(output_of(&mut IMAGE.run(&program)), expected);
    assert_eq!(output_of(&mut IMAGE.under_valgrind(&program)), expected);
}

#[test]
fn a_request_is_answered() {
    let program = IMAGE.example("request_reply", "plain");
    for mut command in [IMAGE.run(&program), IMAGE.under_valgrind(&program)] {
        assert_eq!(output_of(&mut command), "40 mm: done\n90 mm: refused\n");
    }
}

#[test]
fn one_thread_waits_for_two_ports() {
    let program = IMAGE.example("epoll_loop", "plain");
    for mut command in [IMAGE.run(&program), IMAGE.under_valgrind(&program)] {
        let text = output_of(&mut command);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let expected = [
            "port 1230: message 0",
            "port 1230: message 2",
            "port 1230: message 4",
            "port 1231: message 1",
            "port 1231: message 3",
            "port 1231: message 5",
        ];
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_loop_in_c_keeps_its_period() {
    let program = IMAGE.example("cycle", "plain");
    let text = output_of(IMAGE.run(&program).arg("200"));
    assert!(text.starts_with("cycle of 1ms"), "{text}");
    assert!(
        text.contains("200 cycles") && text.contains("late: p50"),
        "{text}"
    );
    assert!(output_of(IMAGE.under_valgrind(&program).arg("5")).contains("5 cycles"));
}

#[test]
fn a_loop_in_c_over_its_own_socket_learns_the_rhythm() {
    let program = IMAGE.example("awake", "plain");
    let asking = UdpSocket::bind("127.0.0.6:0").unwrap();
    asking.set_read_timeout(Some(PATIENCE)).unwrap();
    for mut receiving in [IMAGE.run(&program), IMAGE.under_valgrind(&program)] {
        let receiving = Beside::start(receiving.args(["15620", "400"]), "ready");
        for message in 0..400_u32 {
            std::thread::sleep(Duration::from_millis(1));
            let question = message.to_le_bytes();
            asking.send_to(&question, "127.0.0.5:15620").unwrap();
            let mut answer = [0; 8];
            let (bytes, _) = asking.recv_from(&mut answer).unwrap();
            assert_eq!(answer[..bytes], question);
        }
        let report = receiving.end();
        let counted = |what: &str| -> u64 {
            let before = report.split_once(what).expect(what).0;
            before.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let [awake, woken, there] = [" met awake", " woken by", " there before"].map(counted);
        assert_eq!(awake + woken + there, 400, "{report}");
    }
}

#[test]
fn tasks_in_c_run_from_their_file() {
    let program = IMAGE.example("three_rates", "plain");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/three_rates.toml");
    let text = output_of(IMAGE.run(&program).arg(&file).arg("1"));
    let jobs = text.strip_prefix("control: ");
    let jobs = jobs.and_then(|text| text.split_once(" jobs")).unwrap().0;
    assert!((2..=1_100).contains(&jobs.parse().unwrap()), "{text}");
    let table = file.with_file_name("cyclic_table.toml");
    let text = output_of(IMAGE.run(&program).arg(&table).arg("1"));
    assert!(text.starts_with("control: "), "{text}");
}

#[test]
fn a_message_in_a_port_releases_a_task_in_c() {
    let program = IMAGE.example("message_task", "plain");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/message_task.toml");
    let text = output_of(IMAGE.run(&program).arg(&file));
    assert_eq!(
        text,
        "job 1: command 0\njob 2: command 1\njob 3: command 2\n"
    );
}

/// A program that runs beside the test; killed when dropped.
struct Beside {
    child: KilledOnDrop,
    output: BufReader<ChildStdout>,
}

impl Beside {
    /// Starts it, and waits until it has printed a line that begins so.
    fn start(command: &mut Command, ready: &str) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let child = KilledOnDrop(child);
        let mut beside = Self { child, output };
        let mut line = String::new();
        while !line.starts_with(ready) {
            line.clear();
            let bytes = beside.output.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the program ended before it was ready");
        }
        beside
    }

    /// Remaining output of a program that has ended with success.
    fn end(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {text}");
        text
    }
}

const ANSWERS: &str = "answer to 3: hello (5 bytes)\n\
                       answer to 2: hello (5 bytes)\n\
                       answer to 1: hello (5 bytes)\n\
                       answer to 0:  (0 bytes)\n";

#[test]
fn the_five_calls_under_valgrind_on_loopback() {
    let program = IMAGE.example("five_calls", "loopback");
    let mut answering = IMAGE.under_valgrind(&program);
    answering.args(["answer", "127.0.0.5", "15610"]);
    let answering = Beside::start(&mut answering, "answering");
    let mut asking = IMAGE.under_valgrind(&program);
    asking.args(["ask", "127.0.0.6", "127.0.0.5", "15610"]);
    assert_eq!(output_of(&mut asking), ANSWERS);
    assert_eq!(answering.end(), "");
}

fn hosts() -> Option<Hosts> {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return None;
    }
    Some(Hosts::create(&HostsOptions::default()).unwrap())
}

/// A program in a host, with the library in reach.
fn in_host(hosts: &Hosts, host: Host, program: &Path) -> Command {
    let mut command = hosts.command(host, program.to_str().unwrap());
    command.env("LD_LIBRARY_PATH", IMAGE.lib());
    command
}

/// A configuration file for a host whose neighbour `peer` is the other.
fn configuration(hosts: &Hosts, host: Host, link: &str, form: &str, ports: &str) -> PathBuf {
    let own = hosts.end(host, 0).interface();
    let peer = hosts.end(host.peer(), 0);
    let text = format!(
        "interface = '{own}'\nlink = '{link}'\n[[neighbour]]\nname = 'peer'\nmac = '{}'\nip = '{}'\n\
         form = '{form}'\n{ports}",
        MacAddress(peer.mac()),
        peer.address(),
    );
    let file = IMAGE.root.join(format!("{}-{link}.toml", hosts.name(host)));
    std::fs::write(&file, text).unwrap();
    file
}

/// The address of a host's cable, as text.
fn mac(hosts: &Hosts, host: Host) -> String {
    MacAddress(hosts.end(host, 0).mac()).to_string()
}

#[test]
fn raw_frames_between_two_hosts() {
    let Some(hosts) = hosts() else { return };
    let program = IMAGE.example("raw_frames", "hosts");
    for [asks, answers] in [["xdp", "packet"], ["packet", "xdp"]] {
        let with = |host, link| {
            let mut command = in_host(&hosts, host, &program);
            command.arg(configuration(&hosts, host, link, "ethernet", ""));
            command
        };
        let mut answering = with(Host::B, answers);
        let answering = Beside::start(answering.arg("answer"), "answering");
        let mut asking = with(Host::A, asks);
        let said = output_of(asking.args(["ask", &mac(&hosts, Host::B)]));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 5, "{said}");
        for (number, line) in (1..).zip(lines) {
            let right = format!("question {number}: answer {number}, 60 bytes, after ");
            assert!(line.starts_with(&right), "{asks} to {answers}: {said}");
        }
        assert_eq!(answering.end(), "");
    }
}

#[test]
fn the_five_calls_between_two_hosts() {
    let Some(hosts) = hosts() else { return };
    let program = IMAGE.example("five_calls", "hosts");
    let (a, b) = (hosts.end(Host::A, 0), hosts.end(Host::B, 0));
    let (a, b) = (a.address().to_string(), b.address().to_string());
    // The program is the same on each link; who runs it says which.
    for links in [
        [None, Some("xdp")],
        [Some("packet"), None],
        [Some("xdp"), Some("xdp")],
    ] {
        let [asks, answers] = links;
        let with = |host, link: Option<&str>| {
            let mut command = in_host(&hosts, host, &program);
            if let Some(link) = link {
                let file = configuration(&hosts, host, link, "udp", "");
                command.env("TAUTLINE_NODE", file);
            }
            command
        };
        let mut answering = with(Host::B, answers);
        answering.args(["answer", &b, "15600"]);
        let answering = Beside::start(&mut answering, "answering");
        let mut asking = with(Host::A, asks);
        asking.args(["ask", &a, &b, "15600"]);
        assert_eq!(output_of(&mut asking), ANSWERS, "{links:?}");
        assert_eq!(answering.end(), "");
    }
}

/// A node in Rust, in a host.
fn node(hosts: &Hosts, host: Host, link: LinkKind, form: Form) -> Node {
    let peer = hosts.end(host.peer(), 0);
    let neighbour = Neighbour {
        name: "peer".to_owned(),
        mac: MacAddress(peer.mac()),
        ip: Some(peer.address()),
        form,
    };
    let config = NodeConfig::on(&hosts.end(host, 0).interface())
        .with_link(link)
        .with_neighbour(neighbour)
        .unwrap();
    hosts.inside(host, || Node::open(config).unwrap()).unwrap()
}

/// An unmodified kernel socket as peer: C answers it past the kernel's stack, and it answers C.
#[test]
fn a_socket_in_c_speaks_to_sockets_of_the_kernel() {
    let Some(hosts) = hosts() else { return };
    let program = IMAGE.example("five_calls", "kernel");
    let (a, b) = (hosts.end(Host::A, 0), hosts.end(Host::B, 0));
    let (a, b) = (a.address(), b.address());
    let kernel = hosts.inside(Host::A, || UdpSocket::bind((a, 5004)).unwrap());
    let kernel = kernel.unwrap();
    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = configuration(&hosts, Host::B, "xdp", "udp", "");

    let mut answering = in_host(&hosts, Host::B, &program);
    answering.env("TAUTLINE_NODE", &file);
    answering.args(["answer", &b.to_string(), "5005"]);
    let answering = Beside::start(&mut answering, "answering");
    let mut buffer = vec![0; 2000];
    for bytes in [1, 18, 1400, 1472, 0] {
        let question: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        kernel.send_to(&question, (b, 5005)).unwrap();
        let (length, from) = kernel.recv_from(&mut buffer).unwrap();
        assert_eq!(from, (b, 5005).into());
        assert_eq!(buffer[..length], question);
    }
    assert_eq!(answering.end(), "");

    let echo = std::thread::spawn(move || {
        for _ in ANSWERS.lines() {
            let (length, from) = kernel.recv_from(&mut buffer).unwrap();
            kernel.send_to(&buffer[..length], from).unwrap();
        }
    });
    let mut asking = in_host(&hosts, Host::B, &program);
    asking.env("TAUTLINE_NODE", &file);
    asking.args(["ask", &b.to_string(), &a.to_string(), "5004"]);
    assert_eq!(output_of(&mut asking), ANSWERS);
    echo.join().unwrap();
}

/// The child of a fork is refused, and closes what its parent goes on with.
#[test]
fn handles_in_c_belong_to_the_process_that_opened_them() {
    let Some(hosts) = hosts() else { return };
    let program = IMAGE.compile("cc", "tests/forked.c", "forked", &[]);
    let soon = || tautline::now() + PATIENCE;
    for (link, own, form) in [
        ("xdp", LinkKind::Packet, Form::Ethernet),
        ("udp", LinkKind::Udp, Form::Udp),
    ] {
        let peer = node(&hosts, Host::A, own, form);
        let open = || peer.queuing(41).open();
        let mut port = hosts.inside(Host::A, open).unwrap().unwrap();
        let ports = "[[port]]\nname = 'port'\nnumber = 40\nkind = 'queuing'";
        let file = configuration(&hosts, Host::B, link, &form.to_string(), ports);
        let mut command = in_host(&hosts, Host::B, &program);
        let forked = Beside::start(command.arg(file), "forked");
        let to = port.destination("peer", 40).unwrap();
        port.send(to, Priority::NORMAL, b"for the parent").unwrap();
        assert_eq!(forked.end(), "for the parent\n");
        let mut buffer = [0; 1484];
        for expected in ["before", "after"] {
            let message = port
                .receive_into(&mut buffer, Wait::Until(soon()))
                .unwrap()
                .unwrap();
            assert_eq!(&buffer[..message.length], expected.as_bytes());
        }
        assert_eq!(
            port.receive_into(&mut buffer, Wait::Poll).unwrap(),
            None,
            "nothing of the child's"
        );
    }
}

#[test]
fn a_reader_in_c_sees_what_a_publisher_in_c_publishes() {
    let Some(hosts) = hosts() else { return };
    let (publisher, reader) = (
        IMAGE.example("state_publisher", "hosts"),
        IMAGE.example("state_reader", "hosts"),
    );
    let port =
        "[[port]]\nname = 'state'\nnumber = 7\nkind = 'sampling'\nrefresh_period_us = 60000000\n";
    let reads = configuration(&hosts, Host::B, "xdp", "ethernet", port);
    let publishes = configuration(&hosts, Host::A, "packet", "ethernet", "");
    let mut reading = in_host(&hosts, Host::B, &reader);
    reading.arg(reads).arg("5");
    let reading = Beside::start(&mut reading, "ready");
    let mut publishing = in_host(&hosts, Host::A, &publisher);
    publishing.arg(publishes).args(["peer", "300"]);
    assert_eq!(output_of(&mut publishing), "published 300 states\n");
    let text = reading.end();
    let angles: Vec<f64> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("angle ")?
                .split_once(", valid")?
                .0
                .parse()
                .ok()
        })
        .collect();
    assert_eq!(angles.len(), 5, "{text}");
    assert!(
        angles.is_sorted_by(|before, after| before < after),
        "{text}"
    );
}

#[test]
fn a_receiver_in_c_goes_on_without_a_command() {
    let Some(hosts) = hosts() else { return };
    let program = IMAGE.example("deadline", "hosts");
    let port = "[[port]]\nname = 'command'\nnumber = 8\nkind = 'queuing'\n";
    let file = configuration(&hosts, Host::B, "xdp", "ethernet", port);
    let mut receiving = in_host(&hosts, Host::B, &program);
    receiving.arg(file).arg("10");
    let receiving = Beside::start(&mut receiving, "ready");

    let node = node(&hosts, Host::A, LinkKind::Packet, Form::Ethernet);
    let open = || {
        let options = QueuingOptions::default();
        node.queuing(9).options(&options).open().unwrap()
    };
    let mut port = hosts.inside(Host::A, open).unwrap();
    let to = port.destination("peer", 8).unwrap();
    port.send(to, Priority::NORMAL, b"turn to 90 degrees")
        .unwrap();
    let text = receiving.end();
    // Late or not, it is used or the cycle counted; ten cycles end whatever comes.
    let used = text.matches("turn to 90 degrees\n").count();
    let missed = 10 - used;
    assert!(
        text.ends_with(&format!("{missed} cycles without a command\n")),
        "{text}"
    );
}
