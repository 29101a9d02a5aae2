//! `tautline_wire.h` as compilers see it: hosted and freestanding, C99 and C++17, processors of microcontrollers; and a
//! C program that sends between ports of two nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
const C99: &str = "-std=c99";

/// Uses of each macro and a call from each layer, so that a compiler looks at them.
const SOURCE: &str = "#include \"tautline_wire.h\"
TLM_QUEUING_MEMORY(commands, 8, 64, 4);
TLM_SAMPLING_MEMORY(state, 64, 4);
#if TLM_FRAGMENTS
TLM_COLLECTORS(parts, 2, 8000);
#endif
static struct tlm_node node;
static struct tlm_port one, other;
bool run(const uint8_t *frame, size_t bytes);
bool run(const uint8_t *frame, size_t bytes)
{
    struct tlm_message message;
    struct tlm_sample sample;
    if (!tlm_open_queuing(&one, &node, 7, &commands) || !tlm_open_sampling(&other, &node, 8, 1000, &state))
        return false;
#if TLM_FRAGMENTS
    one.reassembler = &parts;
#endif
    tlm_input_datagram(&node, frame, bytes, 21576, 0x0a000001, 0);
    return tlm_input(&node, frame, bytes, 0) == TLM_ACCEPTED && tlm_read(&other, 0, &sample) &&
           tlm_receive(&one, &message) && tlm_send(&one, &message.from, 3, \"a\", 1) == TLM_SENT;
}
";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn succeeded(what: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}");
}

fn compile(compiler: &str, options: &[&str], source: &Path, output: &Path) {
    let mut command = Command::new(compiler);
    command.args(STRICT).args(options).arg("-I").arg(folder());
    command.arg(source).arg("-o").arg(output);
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    succeeded(&format!("{command:?}"), &output);
}

#[test]
fn the_header_compiles_everywhere_without_a_warning() {
    let source = scratch("wire.c");
    std::fs::write(&source, SOURCE).unwrap();
    let object = source.with_extension("o");
    for fragments in ["-DTLM_FRAGMENTS=0", "-DTLM_FRAGMENTS=1"] {
        for compiler in ["gcc", "clang"] {
            let small = [C99, "-c", "-Os", "-ffreestanding", fragments];
            compile(compiler, &small, &source, &object);
            let plus = ["-x", "c++", "-std=c++17", "-c", "-O2", fragments];
            compile(compiler, &plus, &source, &object);
        }
        for target in ["armv7m-none-eabi", "riscv32-none-elf", "aarch64-none-elf"] {
            let target = format!("--target={target}");
            let options = [C99, "-c", "-Os", "-ffreestanding", fragments, &target];
            compile("clang", &options, &source, &object);
        }
    }
}

#[test]
fn ports_behave_as_documented() {
    let source = folder().join("tests/ports.c");
    for (compiler, options) in [
        ("gcc", ["-O1", "-fsanitize=address,undefined"]),
        ("clang", ["-O2", "-ffreestanding"]),
    ] {
        let program = scratch(&format!("ports-{compiler}"));
        compile(compiler, &[C99, options[0], options[1]], &source, &program);
        let output = Command::new(&program).output().unwrap();
        succeeded(compiler, &output);
        assert_eq!(output.stdout, b"all as documented\n");
    }
}
