//! Compiles the BPF programs.

fn main() {
    taut_bpf_build::compile("src/bpf/snoop.bpf.c");
    taut_bpf_build::share("src/bpf/snoop.h");
}
