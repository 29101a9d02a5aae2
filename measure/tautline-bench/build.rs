//! Compiles the programs of the floor, if the feature `bpf` asks for them.

fn main() {
    tautline_bpf::build_script();
}
