//! The header against the library: functions and their types, structs and their layout, constants,
//! codes; and the table of codes in the documentation. Where they differ, a program compiles and does
//! something else than it says.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use cbindgen::{Builder, Config, ItemType, Language, Style};
use tautline_c::Code;
use tautline_c::types::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn header() -> String {
    std::fs::read_to_string(folder().join("include/tautline.h")).unwrap()
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut sources: Vec<_> = std::fs::read_dir(folder().join("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    sources.sort();
    sources
}

/// Compiles a C file that includes the header; fails with what the compiler said.
fn compile(name: &str, body: &str) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, format!("#include <tautline.h>\n{body}")).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .arg("-I")
        .arg(folder().join("include"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", file.display());
}

/// C prototypes of the exported functions, as cbindgen reads them in the sources.
fn prototypes() -> String {
    let mut config = Config {
        language: Language::C,
        style: Style::Tag,
        usize_is_size_t: true,
        no_includes: true,
        ..Config::default()
    };
    config.export.item_types = vec![ItemType::Functions];
    let rename = ("sockaddr".to_owned(), "struct sockaddr".to_owned());
    config.export.rename.extend([rename]);
    // It follows the modules from there.
    let bindings = Builder::new()
        .with_src(folder().join("src/lib.rs"))
        .with_config(config)
        .generate()
        .unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).unwrap()
}

/// The names before an opening bracket at the level of declarations.
fn functions(declarations: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = declarations;
    while let Some((before, after)) = rest.split_once('(') {
        let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_');
        let name = word.take(1).next().unwrap_or_default();
        if name.starts_with("tautline_") || name.starts_with("rt_") {
            names.insert(name.to_owned());
        }
        rest = after;
    }
    names
}

/// The header without comments.
fn declarations() -> String {
    let mut code = String::new();
    for (index, part) in header().split("/*").enumerate() {
        code += match index {
            0 => part,
            _ => part.split_once("*/").expect("a comment ends").1,
        };
    }
    code
}

#[test]
fn functions_have_the_same_types_on_both_sides() {
    // A second declaration of a function must be compatible with the first, or C refuses it.
    let prototypes = prototypes();
    compile("prototypes.c", &prototypes);
    assert_eq!(functions(&prototypes), functions(&declarations()));
}

#[test]
fn a_wrong_prototype_would_be_noticed() {
    let wrong = "int rt_socket_close(long socket);\n";
    let noticed = std::panic::catch_unwind(|| compile("wrong.c", wrong));
    assert!(noticed.is_err());
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let built = std::env::current_exe().unwrap();
    let library = built.with_file_name("libtautline_c.so");
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(&library)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.split_once(" T "))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(exported, functions(&declarations()));
}

/// Assertions in C that a struct has the size, the fields and the offsets that it has in Rust. The
/// pattern names every field, or this does not compile.
macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident),* }) => {
        let _all = |value: $name| { let $name { $($field: _),* } = value; };
        let (name, bytes) = (stringify!($name), size_of::<$name>());
        writeln!($text, "_Static_assert(sizeof(struct {name}) == {bytes}, \"{name}\");").unwrap();
        $(
            let (field, offset) = (stringify!($field), std::mem::offset_of!($name, $field));
            writeln!($text, "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");").unwrap();
        )*
    };
}

#[test]
fn structs_have_the_same_layout_on_both_sides() {
    let mut text = String::new();
    layout!(text, tautline_node { id });
    layout!(text, tautline_port { id });
    layout!(text, tautline_destination { port_id, index });
    layout!(
        text,
        tautline_port_options {
            kind,
            number,
            depth,
            name,
            message_bytes_max,
            sources,
            refresh_period_ns,
            spin_ns,
            police_rate,
            police_burst
        }
    );
    layout!(
        text,
        tautline_port_info {
            number,
            kind,
            message_bytes_max
        }
    );
    layout!(
        text,
        tautline_source {
            form,
            mac,
            reserved,
            ip,
            udp_port,
            port
        }
    );
    layout!(
        text,
        tautline_outgoing {
            message,
            bytes,
            destination,
            priority,
            reserved
        }
    );
    layout!(
        text,
        tautline_message {
            bytes,
            sequence,
            arrival_ns,
            source,
            priority,
            reserved
        }
    );
    layout!(
        text,
        tautline_sample {
            bytes,
            sequence,
            arrival_ns,
            age_ns,
            overwritten,
            source,
            priority,
            valid,
            fresh,
            reserved
        }
    );
    layout!(
        text,
        tautline_port_counters {
            sent,
            send_errors,
            frames,
            received,
            queued,
            dropped_full,
            overwritten,
            lost,
            duplicates,
            too_large,
            incomplete
        }
    );
    layout!(
        text,
        tautline_cycle_options {
            period_ns,
            cpu,
            fifo_priority,
            lock_memory,
            reserved,
            phase_ns,
            values_per_cycle,
            reserved_too
        }
    );
    layout!(
        text,
        tautline_tick {
            number,
            due_ns,
            late_ns,
            deadline_ns,
            skipped
        }
    );
    layout!(text, tautline_awake { id });
    layout!(text, tautline_tasks { id });
    layout!(
        text,
        tautline_job {
            number,
            release_ns,
            deadline_ns,
            message,
            message_bytes,
            arrival_ns
        }
    );
    layout!(
        text,
        tautline_task_figures {
            jobs,
            missed,
            response_p50_ns,
            response_p99_ns,
            response_max_ns,
            execution_max_ns,
            stopped,
            latency_p50_ns,
            latency_p99_ns,
            latency_max_ns
        }
    );
    // Each struct that the header defines is among them.
    let defined = declarations()
        .lines()
        .filter(|line| line.contains("struct tautline_") && line.ends_with('{'))
        .count();
    assert_eq!(text.matches("sizeof").count(), defined);
    compile("layout.c", &text);
}

#[test]
fn constants_are_the_same_on_both_sides() {
    use tautline::Priority;
    let mut text = String::new();
    let mut same = |name: &str, value: u64| {
        writeln!(
            text,
            "_Static_assert({name} == UINT64_C({value}), \"{name}\");"
        )
        .unwrap();
    };
    same("TAUTLINE_QUEUING", TAUTLINE_QUEUING.into());
    same("TAUTLINE_SAMPLING", TAUTLINE_SAMPLING.into());
    same("TAUTLINE_DATAGRAM", TAUTLINE_DATAGRAM.into());
    same("TAUTLINE_RAW", TAUTLINE_RAW.into());
    same("TAUTLINE_FRAME_BYTES_MAX", TAUTLINE_FRAME_BYTES_MAX as u64);
    same("TAUTLINE_ETHERNET", TAUTLINE_ETHERNET.into());
    same("TAUTLINE_UDP", TAUTLINE_UDP.into());
    same("TAUTLINE_BUS", TAUTLINE_BUS.into());
    same("TAUTLINE_POLL", TAUTLINE_POLL);
    same("TAUTLINE_BATCH_MAX", TAUTLINE_BATCH_MAX as u64);
    same("TAUTLINE_FOREVER", TAUTLINE_FOREVER);
    same("TAUTLINE_SPIN_NEVER", TAUTLINE_SPIN_NEVER);
    same(
        "TAUTLINE_WITHOUT_REAL_TIME",
        TAUTLINE_WITHOUT_REAL_TIME.into(),
    );
    same("TAUTLINE_PRIORITY_LOWEST", Priority::LOWEST.get().into());
    same("TAUTLINE_PRIORITY_NORMAL", Priority::NORMAL.get().into());
    same("TAUTLINE_PRIORITY_HIGHEST", Priority::HIGHEST.get().into());
    compile("constants.c", &text);
}

/// `NullPointer` as C and the documentation write it.
fn c_name(code: Code) -> String {
    let mut name = "TAUTLINE_ERROR".to_owned();
    for letter in code.name().chars() {
        if letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn errno_name(errno: i32) -> &'static str {
    // Those of the table; a new one is missed here first.
    match errno {
        libc::EFAULT => "EFAULT",
        libc::EBADF => "EBADF",
        libc::EBUSY => "EBUSY",
        libc::EINVAL => "EINVAL",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::ENOBUFS => "ENOBUFS",
        libc::ENETDOWN => "ENETDOWN",
        libc::ENODEV => "ENODEV",
        libc::EIO => "EIO",
        libc::ENOENT => "ENOENT",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EPERM => "EPERM",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::EXDEV => "EXDEV",
        libc::EMFILE => "EMFILE",
        libc::ENOTRECOVERABLE => "ENOTRECOVERABLE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EACCES => "EACCES",
        libc::ERANGE => "ERANGE",
        libc::EPROTO => "EPROTO",
        libc::EBADFD => "EBADFD",
        other => panic!("errno {other} has no name here"),
    }
}

#[test]
fn header_and_documentation_have_the_librarys_codes() {
    let documentation =
        std::fs::read_to_string(folder().join("../../docs/reference/c.md")).unwrap();
    let header = header();
    let start = header.find("enum tautline_code {").unwrap();
    let end = start + header[start..].find("};").unwrap();
    let mut in_header = "enum tautline_code {\n    TAUTLINE_OK = 0".to_owned();
    let mut in_documentation = String::new();
    for code in Code::ALL {
        let (name, number) = (c_name(*code), *code as i32);
        let (text, errno) = (code.text().to_str().unwrap(), errno_name(code.errno()));
        let mut sentence = text.to_owned();
        sentence[..1].make_ascii_uppercase();
        write!(
            in_header,
            ",\n    /* {sentence}. {errno} */\n    {name} = {number}"
        )
        .unwrap();
        writeln!(
            in_documentation,
            "| {number} | `{name}` | `{errno}` | {text} |"
        )
        .unwrap();
    }
    in_header += "\n";
    assert_eq!(&header[start..end], in_header);
    assert!(
        documentation.contains(&in_documentation),
        "docs/reference/c.md should have:\n{in_documentation}"
    );
}

/// No panic crosses the border: what an exported function does, it does inside `coded` or
/// `numbered`, which catch it. These three cannot fail.
#[test]
fn every_exported_function_is_inside_the_border() {
    let cannot_fail = ["tautline_version", "tautline_now_ns", "tautline_code_text"];
    let mut seen = BTreeSet::new();
    for (path, text) in sources() {
        for function in text.split("#[unsafe(no_mangle)]\n").skip(1) {
            let (_, name) = function.split_once(" fn ").unwrap();
            let name = name.split_once('(').unwrap().0;
            let body = function.split_once("{\n").unwrap().1.trim_start();
            let guarded = body.starts_with("coded(|| {\n") || body.starts_with("numbered(");
            assert!(
                guarded || cannot_fail.contains(&name),
                "{}: {name}",
                path.display()
            );
            seen.insert(name.to_owned());
        }
    }
    assert_eq!(seen, functions(&declarations()));
}

#[test]
fn the_header_serves_cpp_and_strict_c() {
    for arguments in [
        ["-std=c++17", "-xc++"],
        ["-std=c99", "-xc"],
        ["-std=c11", "-xc"],
    ] {
        let output = Command::new("clang")
            .args(arguments)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .arg(folder().join("include/tautline.h"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}

/// The manual page names every function.
#[test]
fn the_manual_page_is_complete() {
    let page = std::fs::read_to_string(folder().join("man/tautline.3")).unwrap();
    for name in functions(&declarations()) {
        assert!(page.contains(&format!("{name}(")), "{name}");
    }
}
