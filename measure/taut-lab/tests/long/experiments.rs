//! Experiments as a user runs them, with next to nothing measured.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::pages::{Percentiles, all_fit_and_answer};
use crate::common::{Scratch, browse, skipped_without_privilege, text};

fn experiment(arguments: &[&str]) -> Output {
    Command::new(crate::PROGRAM)
        .arg("experiment")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_list_names_every_experiment_once() {
    let plain = text(&experiment(&["list"]).stdout);
    let json: Value = serde_json::from_slice(&experiment(&["list", "--json"]).stdout).unwrap();
    let all = json["figures"].as_array().unwrap();
    assert!(all.len() >= 4 && all.len() == plain.lines().count());
    for (entry, line) in all.iter().zip(plain.lines()) {
        let name = entry["name"].as_str().unwrap();
        assert!(line.starts_with(name), "{line}");
        assert!(entry["paper"].is_string() && entry["source"].is_string());
    }
}

#[test]
fn without_privilege_the_page_says_why_nothing_was_measured() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let scratch = Scratch::new("experiment-nobody");
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(crate::PROGRAM);
    command
        .args(["experiment", "run", "rtdip-fig7", "--tiny", "--out"])
        .arg(scratch.0.join("out"));
    let output = match command.uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: cannot run the command as nobody: {error}");
            return;
        }
    };
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("CAP_SYS_ADMIN"));
    let page = fs::read_to_string(scratch.0.join("out/report.html")).unwrap();
    assert!(page.contains("Not measured") && page.contains("CAP_SYS_ADMIN"));
}

/// Contents of every result.
fn check_result(name: &str, json: &Value) {
    assert_eq!(json["experiment"], name);
    let line = json["line"].as_str().unwrap();
    assert!(
        line.starts_with("the paper: ") && line.contains(", here: "),
        "{line}"
    );
    assert!(json["command"].as_str().unwrap().contains(name));
    assert!(json["machine"]["kernel_release"].is_string());
    assert!(!json["settings"]["active"].as_object().unwrap().is_empty());
    assert!(!json["rows"].as_array().unwrap().is_empty());
    for check in json["checks"].as_array().unwrap() {
        assert!(
            check["met"].is_boolean() && check["target"].is_string(),
            "{check}"
        );
    }
}

fn result(directory: &Path, name: &str) -> Value {
    let text = fs::read(directory.join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn runs_write_raw_data_plots_and_one_page() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("experiments");
    let out = scratch.0.join("out");
    let names = [
        "rtdip-fig3",
        "rtdip-fig4",
        "rtdip-fig6",
        "rtdip-fig7",
        "rtdip-fig8",
    ];
    let mut arguments = vec!["run"];
    arguments.extend(names);
    let directory = out.to_string_lossy();
    arguments.extend(["--tiny", "--out", &directory]);
    let output = experiment(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in names {
        check_result(name, &result(&out, name));
        let line = format!("{name}: the paper: ");
        assert!(text(&output.stdout).contains(&line), "{line}");
        let svg = fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
    assert!(!out.join("rtdip-fig5.json").exists(), "not asked for");
    let rows = result(&out, "rtdip-fig6")["rows"].as_array().unwrap().len();
    assert_eq!(rows, 3 * 2 * 4, "paths, readers, pairs");
    let Some(dom) = browse(&out.join("report.html"), &scratch.0.join("browser")) else {
        return;
    };
    for name in names {
        assert!(dom.contains(&format!("<h2>{name}: ")), "{name}");
    }
    assert_eq!(
        dom.matches("class=\"surface\"").count(),
        2 * 3 * 4,
        "two plots of three surfaces, once"
    );
    assert_eq!(
        dom.matches("<svg class=\"plot wide").count(),
        5,
        "two plots each of figures 3 and 7, one of figure 8"
    );
    let page = out.join("report.html").display().to_string();
    all_fit_and_answer(&[page], Percentiles::Switched, &scratch);
}

#[test]
fn udp_experiments_measure_what_is_set() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("experiments-udp");
    let directory = scratch.0.to_string_lossy();
    let names = [
        "redd-fig2-fig3",
        "redd-bandwidth",
        "ssrtudp-fig7-fig8",
        "ssrtudp-fig9",
        "ssrtudp-table1",
        "ssrtudp-fig10-table4",
    ];
    let mut arguments = vec!["run"];
    arguments.extend(names);
    arguments.extend([
        "--tiny",
        "--set",
        "largest=90",
        "--set",
        "step=30",
        "--out",
        &directory,
    ]);
    let output = experiment(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in names {
        check_result(name, &result(&scratch.0, name));
    }
    let round_trips = result(&scratch.0, names[0]);
    for path in ["queuing", "udp-port", "udp-poll", "udp-block"] {
        let rows = of_path(&round_trips, path);
        let sizes: Vec<_> = rows
            .iter()
            .map(|row| row["payload_bytes"].as_u64().unwrap())
            .collect();
        assert_eq!(sizes, [50, 80, 90], "{path}");
    }
    for row in result(&scratch.0, names[1])["rows"].as_array().unwrap() {
        assert_eq!(row["messages"], 300);
        assert!(row["messages_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let sizes = result(&scratch.0, names[2]);
    for path in ["udp-port-batched", "queuing-batched"] {
        let rows = of_path(&sizes, path);
        assert_eq!(rows.len(), 2, "{path} at every size");
        assert!(rows[0]["messages_per_s"].as_f64().unwrap() > 0.0);
    }
    for path in ["udp-poll", "udp-block", "udp-port", "queuing"] {
        let rows = of_path(&sizes, path);
        assert!(
            rows[0]["round_trip"]["count"].as_u64().unwrap() > 0,
            "{path}"
        );
        let batched = of_path(&sizes, "udp-poll-batched").len();
        assert!(
            path == "udp-port" || rows.len() == batched,
            "{path} at every size"
        );
    }
    let to_kernel = of_path(&sizes, "udp-port-to-kernel");
    let bytes: Vec<_> = to_kernel.iter().map(|row| &row["payload_bytes"]).collect();
    assert_eq!(bytes, [4, 65_507]);
    assert!(to_kernel[1]["bits_per_s"].as_f64().unwrap() > 0.0);
    let beside = result(&scratch.0, names[3]);
    assert_eq!(
        of_path(&beside, "udp-port").len(),
        4,
        "sizes, alone and beside"
    );
    let course = beside["settings"]["link_bits_per_s_over_time"].as_array();
    assert!(!course.unwrap().is_empty());
    check_layers(&result(&scratch.0, names[4]));
    let page = scratch.0.join("report.html").display().to_string();
    all_fit_and_answer(&[page], Percentiles::Switched, &scratch);
}

/// The rows of a path.
fn of_path<'a>(json: &'a Value, path: &str) -> Vec<&'a Value> {
    let rows = json["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["path"] == path).collect()
}

/// The layers of each row come to what the row says they do, and with the rest to the undisturbed way.
fn check_layers(json: &Value) {
    for path in ["udp-poll", "udp-port", "queuing"] {
        let rows = of_path(json, path);
        assert_eq!(rows.len(), 2, "{path}");
        for row in rows {
            let ns = |key: &str| row[key].as_f64().unwrap_or(0.0);
            let layers = row.as_object().unwrap().keys().filter(|key| {
                key.ends_with("_ns")
                    && ![
                        "one_way_p50_ns",
                        "layers_together_ns",
                        "rest_ns",
                        "demux_run_ns",
                    ]
                    .contains(&key.as_str())
            });
            let together: f64 = layers.map(|key| ns(key)).sum();
            assert!(
                together > 0.0 && (together - ns("layers_together_ns")).abs() < 1.0,
                "{row}"
            );
            let whole = ns("layers_together_ns") + ns("rest_ns");
            assert!((whole - ns("one_way_p50_ns")).abs() < 1.0, "{row}");
            assert_eq!(
                row["udp_ip_sending_ns"].is_f64(),
                path == "udp-poll",
                "{row}"
            );
        }
    }
}

#[test]
fn json_goes_to_standard_output_in_place_of_the_table() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("experiment-json");
    let directory = scratch.0.to_string_lossy();
    let output = experiment(&["run", "rtdip-fig7", "--tiny", "--out", &directory, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [figure] = &json["figures"].as_array().unwrap()[..] else {
        panic!("one was asked for: {json}");
    };
    check_result("rtdip-fig7", figure);
    let row = &figure["rows"][0];
    assert!(row["one_way"]["count"].as_u64().unwrap() > 0, "{row}");
    assert!(
        row["half_round_trip_p50_ns"].as_f64().unwrap() > 0.0,
        "{row}"
    );
}
