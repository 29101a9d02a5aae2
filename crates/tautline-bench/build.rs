//! Compiles the floor's program.

#[path = "../../bpf/compile.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["floor"]);
}
