//! Compiles the BPF program to `connection.bpf.o` in OUT_DIR, whence the code takes it with
//! `include_bytes!`.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/connection.bpf.c";

fn main() {
    let out: PathBuf = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR").into();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    println!("cargo:rerun-if-changed=src/bpf");
    SkeletonBuilder::new()
        .source(SOURCE)
        .obj(out.join("connection.bpf.o"))
        .clang_args([
            "-Wall".to_owned(),
            "-Wextra".to_owned(),
            "-Werror".to_owned(),
            // Where Debian keeps `asm/`, which clang does not look into when it compiles for BPF.
            format!("-idirafter/usr/include/{arch}-linux-gnu"),
            // And where it keeps those of another architecture that is built for.
            format!("-idirafter/usr/{arch}-linux-gnu/include"),
        ])
        .build()
        .unwrap_or_else(|e| {
            panic!(
                "{SOURCE} does not compile: {e:#}\n\
                 It needs clang and the kernel's headers: scripts/setup installs both."
            )
        });
}
