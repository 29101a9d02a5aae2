//! Compiles the program of the cell's switch port.

#[path = "../../bpf/compile.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["switch_port"]);
}
