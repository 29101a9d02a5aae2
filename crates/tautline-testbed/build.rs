//! Compiles the program of a switch port, if the feature `bpf` asks for it.

fn main() {
    tautline_bpf::build_script();
}
