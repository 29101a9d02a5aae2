//! Compiles the smoother's programs.

#[path = "../../bpf/compile.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["smoother"]);
}
