//! Compiles the BPF programs.

fn main() {
    taut_bpf_build::compile("src/bpf/connection.bpf.c");
    taut_bpf_build::share("src/bpf/connection.h");
    taut_bpf_build::compile("src/bpf/drops.bpf.c");
    taut_bpf_build::share("src/bpf/drops.h");
}
