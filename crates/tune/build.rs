//! Compiles the BPF program and shares its header.

fn main() {
    taut_bpf_build::compile("src/bpf/set.bpf.c");
    taut_bpf_build::share("src/bpf/set.h");
}
