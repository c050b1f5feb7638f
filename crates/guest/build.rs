//! Compiles the BPF programs and shares their header.

fn main() {
    for program in ["gap", "bbr", "cubic", "timer"] {
        taut_bpf_build::compile(&format!("src/bpf/{program}.bpf.c"));
    }
    taut_bpf_build::share("src/bpf/guest.h");
}
