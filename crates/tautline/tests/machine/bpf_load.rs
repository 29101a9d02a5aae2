//! Loads every BPF program with every setting that changes it, of every compiler whose objects there are.
//!
//! The test runs on a machine, and in a guest with another kernel, which needs nothing but this binary:
//!
//! ```text
//! cargo test -p tautline --test bpf_load --no-run     # prints the binary's name
//! taut lab kernels --kernel linux-image-amd64 --load idle --guest-command ".../bpf_load-... --nocapture"
//!
//! scripts/bpf-objects.sh DIRECTORY                    # the objects of every clang that is installed
//! TAUTLINE_BPF_OBJECTS=DIRECTORY .../bpf_load-... --nocapture
//! ```
//!
//! `TAUTLINE_BPF_OBJECTS` names a directory: each `*.bpf.o` in it and below it is loaded beside the built-in
//! objects. Each load prints one line with the count of verified instructions and the time that it took. A refusal
//! prints the verifier's last lines; the test fails after all loads have been tried.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};

/// Last lines of the verifier that a refusal prints.
const LOG_LINES: usize = 12;

/// Objects of this build.
fn built_in() -> [(&'static str, &'static [u8]); 4] {
    [
        ("demux", tautline_bpf::DEMUX),
        ("demux_tc", tautline_bpf::DEMUX_TC),
        ("send", tautline_bpf::SEND),
        ("xsk", tautline_bpf::XSK),
    ]
    .map(|(name, object)| (name, object.expect("built with the feature `bpf`")))
}

/// `struct tl_config` of `bpf/tautline.h`, and its name.
struct Setting {
    name: &'static str,
    config: [u8; 24],
}

/// The verifier follows only the branches that the constants leave: with and without an address, with an EtherType
/// that is ours and with that of IPv4, which some networks let through alone.
fn settings() -> [Setting; 7] {
    let setting = |name, ethertype: u16, ip: [u8; 4], shared: u32| {
        let mut config = [0; 24];
        config[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        config[6..8].copy_from_slice(&ethertype.to_be_bytes());
        config[8..12].copy_from_slice(&ip);
        config[12..16].copy_from_slice(&shared.to_ne_bytes());
        config[16..20].copy_from_slice(&[ip[0], ip[1], ip[2], 255]);
        Setting { name, config }
    };
    let mut in_vlan = setting("IP, VLAN", 0x88b5, [10, 0, 0, 1], 0);
    in_vlan.config[20..22].copy_from_slice(&5u16.to_be_bytes());
    let mut generic = setting("IP, generic", 0x88b5, [10, 0, 0, 1], 0);
    generic.config[22] = 1;
    let mut on_veth = setting("IP, native on a veth", 0x88b5, [10, 0, 0, 1], 0);
    on_veth.config[23] = 1;
    [
        in_vlan,
        generic,
        on_veth,
        setting("no IP", 0x88b5, [0; 4], 0),
        setting("IP", 0x88b5, [10, 0, 0, 1], 0),
        setting("IP, shared", 0x88b5, [10, 0, 0, 1], 1),
        setting("IP, other EtherType", 0x0900, [192, 168, 255, 254], 0),
    ]
}

/// An object that was loaded, program by program.
struct Load {
    program: String,
    refused: Option<String>,
    verified: u32,
    took: Duration,
}

fn load(object: &[u8], config: &[u8; 24]) -> Result<Vec<Load>, Box<dyn std::error::Error>> {
    let mut loader = EbpfLoader::new();
    // The smoother, which may be among the objects of a directory, has no settings.
    let mut ebpf = loader
        .override_global("config", &config[..], false)
        .load(object)?;
    let names: Vec<_> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    Ok(names
        .into_iter()
        .map(|name| load_program(&mut ebpf, name))
        .collect())
}

fn load_program(ebpf: &mut Ebpf, name: String) -> Load {
    let program = ebpf.program_mut(&name).unwrap();
    let begin = Instant::now();
    let result = match program {
        Program::Xdp(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        _ => panic!("`{name}` is for no hook of an interface"),
    };
    let took = begin.elapsed();
    let info = program.info().ok();
    Load {
        refused: result.err().map(|error| why(&error)),
        verified: info
            .and_then(|info| info.verified_instruction_count())
            .unwrap_or(0),
        program: name,
        took,
    }
}

fn why(error: &ProgramError) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    lines[from..].join("\n    ")
}

/// The objects below a directory.
fn objects(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            objects(&path, found);
        } else if path.to_string_lossy().ends_with(".bpf.o") {
            found.push(path);
        }
    }
}

/// Aligned as the loader wants it, which a file that was read need not be.
fn all_objects() -> Vec<(String, Vec<u8>)> {
    let built_in = built_in().map(|(name, bytes)| (format!("built-in {name}"), bytes.to_vec()));
    let mut all = Vec::from(built_in);
    if let Some(directory) = std::env::var_os("TAUTLINE_BPF_OBJECTS") {
        let mut paths = Vec::new();
        objects(Path::new(&directory), &mut paths);
        assert!(!paths.is_empty(), "no *.bpf.o below {directory:?}");
        paths.sort();
        all.extend(paths.into_iter().map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            (path.display().to_string(), bytes)
        }));
    }
    all
}

#[test]
fn every_program_loads_with_every_setting() {
    let mut refused = Vec::new();
    for (object, bytes) in all_objects() {
        for setting in settings() {
            let loads = match load(&bytes, &setting.config) {
                Ok(loads) => loads,
                Err(error) if is_forbidden(error.as_ref()) => {
                    println!("SKIPPED: loading BPF programs needs root");
                    return;
                }
                Err(error) => panic!("{object}: {error:?}"),
            };
            for load in loads {
                let title = format!("{object}, {}, {}", load.program, setting.name);
                let (verified, ms) = (load.verified, load.took.as_secs_f64() * 1e3);
                match load.refused {
                    None => println!("loaded {title}: {verified} instructions, {ms:.1} ms"),
                    Some(why) => {
                        println!("refused {title}:\n    {why}");
                        refused.push(title);
                    }
                }
            }
        }
    }
    assert!(refused.is_empty(), "refused: {refused:#?}");
}

fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}
