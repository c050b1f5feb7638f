//! Compiles the BPF programs.

fn main() {
    for program in ["gap", "bbr", "cubic", "timer"] {
        taut_bpf_build::compile(&format!("src/bpf/{program}.bpf.c"));
    }
}
