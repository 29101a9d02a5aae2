//! Compiles the kernel side of the library.

#[path = "../../bpf/compile.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["demux", "demux_tc", "send", "xsk"]);
}
