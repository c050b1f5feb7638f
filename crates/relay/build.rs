//! Compiles the BPF programs, each to `NAME.bpf.o` in OUT_DIR, whence the code takes it with
//! `include_bytes!`.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// The programs: folder under `src`, name.
const PROGRAMS: &[(&str, &str)] = &[
    ("early_syn", "early_syn"),
    ("intercept", "intercept"),
    ("pipe", "taut_pipe"),
];

fn main() {
    let out: PathBuf = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR").into();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let clang_args = [
        "-Wall".to_owned(),
        "-Wextra".to_owned(),
        "-Werror".to_owned(),
        // Atomic operations that return a value; Linux 5.12 knows them.
        "-mcpu=v3".to_owned(),
        // Where Debian keeps `asm/`, which clang does not look into when it compiles for BPF.
        format!("-idirafter/usr/include/{arch}-linux-gnu"),
        // And where it keeps those of another architecture that is built for.
        format!("-idirafter/usr/{arch}-linux-gnu/include"),
    ];
    // Headers that several of them include.
    println!("cargo:rerun-if-changed=src/bpf");
    for (folder, name) in PROGRAMS {
        let source = format!("src/{folder}/{name}.bpf.c");
        println!("cargo:rerun-if-changed=src/{folder}");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(&clang_args)
            .build()
            .unwrap_or_else(|e| {
                panic!(
                    "{source} does not compile: {e:#}\n\
                     It needs clang and the kernel's headers: scripts/setup installs both."
                )
            });
    }
}
