//! `taut serve` as a browser, Prometheus and a stranger see it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::Scratch;
use serde_json::Value;
use tautline::{Instant, Node, NodeConfig, Priority, neighbour};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

/// The server, and where it is.
struct Served {
    child: Child,
    address: String,
    token: Option<String>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
    }
}

/// Answer of the server: its status, its head and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        let mut command = Command::new(TAUT);
        command
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("http://").unwrap();
        let (address, query) = url.split_once('/').unwrap();
        let address = address.replace("0.0.0.0", "127.0.0.1");
        let token = query.strip_prefix("?token=").map(str::to_owned);
        Served {
            child,
            address,
            token,
        }
    }

    fn ask(&self, method: &str, path: &str, head: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = (head.to_ascii_lowercase(), body.to_owned());
        Answer { status, head, body }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &format!("Host: {}\r\n", self.address))
    }
}

/// A node that has sent a few messages to itself; its port has a name that is HTML.
fn node(ip: [u8; 4]) -> (Node, tautline::QueuingPort) {
    let address = std::net::Ipv4Addr::from(ip);
    let scratch = Scratch::new(&format!("serve-{address}"));
    let file = scratch.0.join("node.toml");
    let text = format!(
        "link = \"udp\"\naddress = \"{}\"\n[[port]]\nname = \"<img src=x onerror=alert(1)>\"\nnumber = 66\nkind = \"queuing\"\n",
        address
    );
    std::fs::write(&file, text).unwrap();
    let config = NodeConfig::from_file(&file)
        .unwrap()
        .with_neighbour(neighbour("self", ip.into()))
        .unwrap();
    let node = Node::open(config).unwrap();
    let mut port = node
        .queuing_port_named("<img src=x onerror=alert(1)>")
        .unwrap();
    let to = port.destination("self", port.number()).unwrap();
    let mut buffer = [0; 1484];
    for _ in 0..17 {
        port.send(to, Priority::NORMAL, &[7; 100]).unwrap();
        port.receive_until(Instant::FAR_FUTURE, &mut buffer)
            .unwrap()
            .unwrap();
    }
    (node, port)
}

/// The port of this process's node with an address, in the answer of `taut status --json`.
fn told_by_status(address: &str) -> Value {
    let output = Command::new(TAUT)
        .args(["status", "--json"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    own_port(&json, address)
}

fn own_port(json: &Value, address: &str) -> Value {
    let mut nodes = json["nodes"].as_array().unwrap().iter();
    let is_ours = |node: &&Value| node["pid"] == std::process::id() && node["ip"] == address;
    let node = nodes.find(is_ours).unwrap();
    node["ports"][0].clone()
}

#[test]
fn strangers_names_methods_and_paths_are_refused() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    assert_eq!(served.token, None);
    let page = served.get("/");
    assert_eq!(page.status, 200);
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'"),
        "{}",
        page.head
    );
    assert!(
        !page.body.contains("http://") && !page.body.contains("https://"),
        "it asks elsewhere"
    );
    for (path, status) in [
        ("/view.js", 200),
        ("/view.css", 200),
        ("/look.json", 200),
        ("/status.json", 200),
    ] {
        assert_eq!(served.get(path).status, status, "{path}");
    }
    let port = "/port.json?kind=port&place=no&number=1";
    for path in [
        "/index.php",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//",
        port,
    ] {
        assert_eq!(served.get(path).status, 404, "{path}");
    }
    assert_eq!(served.get("/port.json?number=x").status, 400);
    let host = format!("Host: {}\r\n", served.address);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "NONSENSE"] {
        let answer = served.ask(method, "/", &host);
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("allow: get"));
    }
    for host in ["Host: evil.example\r\n", "Host: evil.example:8080\r\n"] {
        assert_eq!(served.ask("GET", "/look.json", host).status, 421, "{host}");
    }
    assert_ne!(served.ask("GET", "/look.json", "").status, 200, "no name");
}

#[test]
fn beyond_loopback_a_token_is_needed() {
    let served = Served::start(&["--listen", "0.0.0.0:0", "--host", "robot.local"]);
    let token = served.token.clone().unwrap();
    assert_eq!(served.get("/look.json").status, 401);
    assert_eq!(served.get("/?token=wrong").status, 401);
    let login = served.get(&format!("/?token={token}"));
    assert_eq!(login.status, 303);
    assert!(
        login.head.contains("httponly; samesite=strict"),
        "{}",
        login.head
    );
    let host = "Host: robot.local\r\n";
    for proof in [
        format!("Authorization: Bearer {token}"),
        format!("Cookie: taut={token}"),
    ] {
        assert_eq!(
            served
                .ask("GET", "/metrics", &format!("{host}{proof}\r\n"))
                .status,
            200
        );
    }
    let file = Scratch::new("token");
    let path = file.0.join("token");
    std::fs::write(&path, "short\n").unwrap();
    let output = Command::new(TAUT)
        .args(["serve", "--token-file"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    std::fs::write(&path, "0123456789abcdef\n").unwrap();
    let served = Served::start(&[
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        path.to_str().unwrap(),
    ]);
    assert_eq!(served.get("/look.json").status, 401);
}

#[test]
fn metrics_and_documents_say_what_status_says() {
    let (_node, _port) = node([127, 0, 15, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let told = told_by_status("127.0.15.1");
    let json: Value = serde_json::from_str(&served.get("/status.json").body).unwrap();
    let own = own_port(&json, "127.0.15.1");
    for figure in [
        "sent",
        "sent_bytes",
        "received",
        "received_bytes",
        "peers",
        "name",
    ] {
        assert_eq!(own[figure], told[figure], "{figure}");
    }
    assert_eq!(
        (&told["sent"], &told["sent_bytes"]),
        (&17.into(), &1_700.into())
    );
    let metrics = served.get("/metrics").body;
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let process = format!("process=\"{}\"", std::process::id());
    let is_ours = |line: &&str| line.contains(&process) && line.contains("127.0.15.1");
    let mut lines = metrics.lines().filter(is_ours);
    let line = lines
        .find(|line| line.starts_with("taut_port_sent_bytes_total{"))
        .unwrap();
    assert!(line.ends_with(" 1700"), "{line}");
    let look: Value = serde_json::from_str(&served.get("/look.json").body).unwrap();
    let mut links = look["links"].as_array().unwrap().iter();
    let link = links
        .find(|link| {
            link["to"]
                .as_str()
                .is_some_and(|to| to.ends_with("127.0.15.1"))
        })
        .unwrap();
    assert_eq!(
        (&link["from"], &link["received"]),
        (&link["to"], &17.into()),
        "it talks to itself"
    );
}

#[test]
fn a_port_that_dies_while_it_is_watched_is_told_of() {
    let (node, port) = node([127, 0, 18, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let place = format!("{}%2Fudp%2F127.0.18.1", std::process::id());
    let path = format!("/port.json?kind=port&place={place}&number=66");
    let living = served.get(&path);
    assert_eq!(living.status, 200, "{}", living.body);
    drop((port, node));
    // An answer may be a second old.
    let ended = std::time::Instant::now() + Duration::from_secs(60);
    let gone = loop {
        let answer = served.get(&path);
        if answer.status != 200 || std::time::Instant::now() > ended {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(gone.status, 404, "{}", gone.body);
    let metrics = served.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(!metrics.body.contains("127.0.18.1"), "{}", metrics.body);
}

#[test]
fn those_who_never_read_keep_nobody_out() {
    let (_node, _port) = node([127, 0, 16, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    // More than there are places. They ask for much and read nothing, or say nothing at all.
    let mut held = Vec::new();
    for count in 0..80 {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        if count % 2 == 0 {
            let request =
                format!("GET /view.js HTTP/1.1\r\nHost: {}\r\n\r\n", served.address).repeat(500);
            stream
                .set_write_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            let _full = stream.write_all(request.as_bytes());
        }
        held.push(stream);
    }
    // They are dropped by and by, and whoever waits has its turn.
    assert_eq!(served.get("/look.json").status, 200);
}

#[test]
fn a_browser_shows_what_status_says() {
    let (_node, port) = node([127, 0, 17, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let scratch = Scratch::new("serve");
    let show = |hash: &str| {
        let url = format!("http://{}/{hash}", served.address);
        common::browse_url(
            &["--virtual-time-budget=3000"],
            &url,
            &scratch.0.join("profile"),
        )
    };
    let Some(overview) = show("") else { return };
    assert!(
        overview.contains("66 &lt;img src=x onerror=alert(1)&gt;"),
        "{overview}"
    );
    assert!(!overview.contains("<img"), "a name became an element");
    assert!(
        overview.contains("class=\"link\""),
        "nobody talks to anybody: {overview}"
    );

    let place = format!("{}/udp/127.0.17.1", std::process::id());
    let hash = format!("#kind=port&place={}&number=66", place.replace('/', "%2F"));
    let page = show(&hash).unwrap();
    let told = told_by_status("127.0.17.1");
    for figure in [
        "sent",
        "sent_bytes",
        "received",
        "received_bytes",
        "frames",
        "memory_bytes",
        "kind",
    ] {
        let value = match &told[figure] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let cell = page
            .split(&format!("data-figure=\"{figure}\">"))
            .nth(1)
            .unwrap_or_default();
        assert_eq!(
            cell.split('<').next(),
            Some(value.as_str()),
            "{figure}: {page}"
        );
    }
    drop(port);
}
