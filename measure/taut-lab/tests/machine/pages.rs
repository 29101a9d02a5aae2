//! Pages in a browser as wide as two telephones and a desk: nothing stands beyond the edge, of each table the maxima
//! are in sight, and plots answer. Other tests do the same with the pages that they make.

use std::process::{Command, Stdio};

use crate::common::pages::{Percentiles, all_fit_and_answer};
use crate::common::{Scratch, skipped_without_privilege};

fn taut(arguments: &[&str]) {
    let mut command = Command::new(crate::PROGRAM);
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaints}");
}

#[test]
fn pages_fit_telephones_and_desks_and_their_plots_answer() {
    let scratch = Scratch::new("pages");
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let demo = path("demo");
    taut(&["demo", "--unprivileged", "--for", "1s", "--out", &demo]);
    let (lab, json, report) = (path("lab.html"), path("lab.json"), path("report.html"));
    let json_option = format!("--json={json}");
    taut(&["lab", "run", "--for", "1s", "--html", &lab, &json_option]);
    taut(&["lab", "report", &json, &json, "--html", &report]);
    let pages = [format!("{demo}/report.html"), lab, report];
    all_fit_and_answer(&pages, Percentiles::Switched, &scratch);
}

#[test]
fn pages_of_round_trips_do_so_too() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("pages-rtt");
    let page = scratch.0.join("rtt.html").display().to_string();
    let mut words = vec!["bench", "rtt", "--paths", "queuing,udp-poll"];
    words.extend(["--sizes", "16B", "--count", "200", "--html", &page]);
    taut(&words);
    let tails = scratch.0.join("loop.html").display().to_string();
    let mut words = vec![
        "bench",
        "loop",
        "--paths",
        "udp-block,udp-awake,queuing-block",
    ];
    words.extend(["--beside", "idle", "--for", "7s", "--html", &tails]);
    taut(&words);
    all_fit_and_answer(&[page, tails], Percentiles::Switched, &scratch);
}
