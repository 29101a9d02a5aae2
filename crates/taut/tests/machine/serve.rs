//! `taut serve` as a browser, Prometheus and a stranger see it.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::common::browser::Browser;
use crate::common::pages::is_not_cut;
use crate::common::{Scratch, Served, skipped_without_privilege};
use serde_json::{Value, json};
use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

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
    let mut port = node.queuing("<img src=x onerror=alert(1)>").open().unwrap();
    let to = port.destination("self", port.number()).unwrap();
    let mut buffer = [0; 1484];
    for _ in 0..17 {
        port.send(to, Priority::NORMAL, &[7; 100]).unwrap();
        port.receive_into(&mut buffer, Wait::Forever)
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
    let is_ours = |node: &&Value| node["process"] == std::process::id() && node["ip"] == address;
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
        ("/session.js", 200),
        ("/style.css", 200),
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
    // The page holds nothing of the machine, and gets nothing that a browser would send to other ports.
    let page = served.get("/");
    assert_eq!(page.status, 200);
    assert!(!page.head.contains("set-cookie"), "{}", page.head);
    assert_eq!(served.get(&format!("/look.json?token={token}")).status, 401);
    let host = "Host: robot.local\r\n";
    let with = |path, proof: &str| served.ask("GET", path, &format!("{host}{proof}\r\n"));
    let bearer = |value: &str| format!("Authorization: Bearer {value}");
    assert_eq!(
        with("/metrics", &format!("Cookie: taut={token}")).status,
        401
    );
    assert_eq!(with("/metrics", &bearer(&token)).status, 200);
    let session = with("/session", &bearer(&token)).body;
    assert!(
        session.len() == token.len() && session != token,
        "{session}"
    );
    assert_eq!(with("/metrics", &bearer(&session)).status, 200);
    let next = Served::start(&["--listen", "0.0.0.0:0"]);
    let ask = format!("Host: {}\r\n{}\r\n", next.address, bearer(&session));
    assert_eq!(
        next.ask("GET", "/metrics", &ask).status,
        401,
        "it ends with its server"
    );
    let file = Scratch::new("token");
    let path = file.0.join("token");
    for (token, mode, complaint) in [
        ("short\n", 0o600, "16"),
        ("0123456789abcdef\n", 0o644, "0644"),
    ] {
        std::fs::write(&path, token).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let output = Command::new(TAUT)
            .args(["serve", "--token-file"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(complaint), "{told}");
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let served = Served::start(&[
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        path.to_str().unwrap(),
    ]);
    assert_eq!(served.get("/look.json").status, 401);
}

#[test]
fn a_browser_shows_the_token_to_no_other_port_of_the_address() {
    let served = Served::start(&["--listen", "0.0.0.0:0"]);
    let token = served.token.clone().unwrap();
    let scratch = Scratch::new("serve-token");
    let url = format!("http://{}/#token={token}", served.address);
    let Some(mut browser) = Browser::open(&url, &scratch.0.join("profile")) else {
        return;
    };
    let is_drawn = "document.body.dataset.drawn === 'yes'";
    browser.wait_for(is_drawn);
    assert_eq!(browser.value("location.hash"), "");
    let kept = browser.value("JSON.stringify(sessionStorage) + document.cookie");
    assert!(!kept.as_str().unwrap().contains(&token), "{kept}");
    // Loaded again, and with a printed address put into the line of the open page.
    browser.value("document.body.dataset.drawn = 'before'; location.reload()");
    browser.wait_for(is_drawn);
    browser.value("sessionStorage.clear()");
    browser.wait_for("document.querySelector('#state').textContent.includes('with its token')");
    browser.value(&format!("location.hash = 'token={token}'"));
    browser.wait_for("document.querySelector('#state').textContent.includes('lines')");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = other.local_addr().unwrap();
    browser.value(&format!("location.href = 'http://{there}/'"));
    let head = |stream: TcpStream| {
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        lines.join("\n").to_ascii_lowercase()
    };
    // Browsers also connect without asking for anything.
    let mut heard = other.incoming().map(|stream| head(stream.unwrap()));
    let told = heard.find(|head| !head.is_empty()).unwrap();
    assert!(told.contains("user-agent:"), "{told}");
    for secret in ["cookie:", "authorization:", "referer:", &token] {
        assert!(!told.contains(secret), "{told}");
    }
    browser.is_content();
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
    // They are dropped one after the other, and waiting clients are served.
    assert_eq!(served.get("/look.json").status, 200);
}

#[test]
fn a_browser_shows_what_status_says() {
    let (_node, port) = node([127, 0, 17, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let scratch = Scratch::new("serve");
    let show = |hash: &str| {
        let url = format!("http://{}/{hash}", served.address);
        crate::common::browse_url(
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
    // It has gone, and the page of it is still open.
    drop(port);
    let ended = std::time::Instant::now() + Duration::from_secs(60);
    let url = format!("http://{}/{hash}", served.address);
    let options = ["--virtual-time-budget=3000"];
    loop {
        let (page, _complaint) =
            crate::common::dom_and_log(&options, &url, &scratch.0.join("profile")).unwrap();
        if page.contains("no answer: there is no such port") {
            break;
        }
        assert!(std::time::Instant::now() < ended, "{page}");
    }
}

/// The served page as a file, with a document in place of the server's answers.
fn page_with(served: &Served, document: &Value, hash: &str) -> String {
    let answers = format!(
        "location.hash = '{hash}'; const told = {}; \
         globalThis.fetch = async () => ({{ ok: true, json: async () => told }});",
        document.to_string().replace('<', "\\u003c")
    );
    let style = format!("<style>{}</style>", served.get("/style.css").body);
    let page = served.get("/").body;
    let page = page.replace("<link rel=\"stylesheet\" href=\"/style.css\">", &style);
    let mut scripts = format!("<script>{answers}</script>");
    let page = ["/session.js", "/view.js"].iter().fold(page, |page, path| {
        scripts += &format!("<script>{}</script>", served.get(path).body);
        page.replace(&format!("<script src=\"{path}\" defer></script>"), "")
    });
    page.replace("</body>", &format!("{scripts}</body>"))
}

#[test]
fn nothing_of_the_page_is_cut_on_a_phone() {
    let (_node, _port) = node([127, 0, 22, 1]);
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let scratch = Scratch::new("serve-narrow");
    let long = "a_name_that_is_as_long_as_somebody_could_make_it_without_a_space_";
    let job = json!({ "response_ns": 400_000, "met": true });
    let mut overview: Value = serde_json::from_str(&served.get("/look.json").body).unwrap();
    let mut row = overview["rows"][0].clone();
    row["name"] = long.into();
    overview["rows"].as_array_mut().unwrap().push(row);
    overview["partitions"] = json!([{
        "name": long, "cpus": "1,3,5,7,9,11", "form": "isolated cgroup partition",
        "processes": (1_000_001..1_000_009).collect::<Vec<u32>>(),
    }]);
    overview["tasks"] = json!([{
        "run": long, "process": 1, "task": "control", "deadline_ns": 500_000, "period_ns": 1_000_000, "missed": 7,
        "state": "active", "jobs": vec![job; 40],
    }]);
    overview["lab"] = json!({ "label": long, "sentences": [long.replace('_', " ")] });
    let place = format!("{}/udp/127.0.22.1", std::process::id());
    let hash = format!("kind=port&place={}&number=66", place.replace('/', "%2F"));
    let port = served.get(&format!("/port.json?{hash}")).body;
    let port = serde_json::from_str(&port).unwrap();
    let pages = [
        ("overview", &overview, "", "isolated cgroup partition"),
        ("port", &port, hash.as_str(), "data-figure=\"memory_bytes\""),
    ];
    for (name, document, hash, drawn) in pages {
        let file = scratch.0.join(format!("{name}.html"));
        std::fs::write(&file, page_with(&served, document, hash)).unwrap();
        let Some(text) = crate::common::browse(&file, &scratch.0.join("profile")) else {
            return;
        };
        assert!(text.contains(drawn), "{name} is not drawn: {text}");
        is_not_cut(&file, &scratch);
    }
}

#[test]
fn nodes_of_another_network_namespace_are_served_from_this_one() {
    if skipped_without_privilege() {
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let opened = hosts.inside(Host::A, || {
        Node::open(NodeConfig::udp([10, 77, 0, 1].into()))
    });
    let _node = opened.unwrap().unwrap();
    let namespace = hosts.name(Host::A);
    let served = Served::start(&["--listen", "127.0.0.1:0", "--netns", namespace]);
    let look = served.get("/look.json").body;
    assert!(look.contains("10.77.0.1 udp"), "{look}");
    let other = Served::start(&["--listen", "127.0.0.1:0"]);
    let look = other.get("/look.json").body;
    assert!(!look.contains("10.77.0.1 udp"), "{look}");
    for (name, words) in [
        ("nosuch", "there is no network namespace"),
        ("/dev/null", "cannot serve"),
    ] {
        let mut command = Command::new(TAUT);
        command.args(["serve", "--listen", "127.0.0.1:0", "--netns", name]);
        let said = command.output().unwrap().stderr;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(
            said.contains(words) && said.contains("`ip netns` lists"),
            "{said}"
        );
    }
}
