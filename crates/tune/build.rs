//! Compiles the BPF program.

fn main() {
    taut_bpf_build::compile("src/bpf/set.bpf.c");
}
