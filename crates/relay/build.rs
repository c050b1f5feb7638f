//! Compiles the BPF programs.

fn main() {
    // Headers that several of them include.
    println!("cargo:rerun-if-changed=src/bpf");
    for source in [
        "src/early_syn/early_syn.bpf.c",
        "src/intercept/intercept.bpf.c",
        "src/turbo/congestion_control/taut_pipe.bpf.c",
    ] {
        taut_bpf_build::compile(source);
    }
}
