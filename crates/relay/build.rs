//! Compiles the BPF programs and shares their headers.

fn main() {
    // Headers that several of them include.
    println!("cargo:rerun-if-changed=src/bpf");
    for program in [
        "src/early_syn/early_syn",
        "src/intercept/intercept",
        "src/turbo/congestion_control/taut_pipe",
    ] {
        taut_bpf_build::compile(&format!("{program}.bpf.c"));
        taut_bpf_build::share(&format!("{program}.h"));
    }
    // Only its tests load it.
    taut_bpf_build::compile("src/turbo/congestion_control/taut_pipe_trial.bpf.c");
}
