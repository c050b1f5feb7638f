//! How Taut's BPF programs are compiled, for build scripts.

#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// Compiles a program, `NAME.bpf.c` in the crate, to `NAME.bpf.o` in OUT_DIR, whence the code takes it with
/// `include_bytes!`. It is compiled anew when a file beside it is another.
///
/// # Panics
/// It does not compile.
pub fn compile(source: &str) {
    let path = Path::new(source);
    let out: PathBuf = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR").into();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let name = path.file_name().expect("it is a file");
    let folder = path.parent().unwrap_or(Path::new("."));
    println!("cargo:rerun-if-changed={}", folder.display());
    SkeletonBuilder::new()
        .source(path)
        .obj(out.join(name).with_extension("o"))
        .clang_args([
            "-Wall".to_owned(),
            "-Wextra".to_owned(),
            "-Werror".to_owned(),
            // Atomic operations that return a value; Linux 5.12 knows them.
            "-mcpu=v3".to_owned(),
            // Where Debian keeps `asm/`, which clang does not look into when it compiles for BPF.
            format!("-idirafter/usr/include/{arch}-linux-gnu"),
            // And where it keeps those of another architecture that is built for.
            format!("-idirafter/usr/{arch}-linux-gnu/include"),
        ])
        .build()
        .unwrap_or_else(|e| {
            panic!(
                "{source} does not compile: {e:#}\n\
                 It needs clang and the kernel's headers: scripts/setup installs both."
            )
        });
}
