//! Compiles BPF programs and generates the Rust types they share, for build scripts.
//!
//! ```no_run
//! taut_bpf_build::compile("src/bpf/flows.bpf.c");
//! taut_bpf_build::share("src/bpf/flows.h");
//! ```

#![forbid(unsafe_code)]

mod bindings;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::Btf;

/// Compiles the program `NAME.bpf.c` of the crate to `NAME.bpf.o` in `OUT_DIR`, for `include_bytes!`.
///
/// Cargo compiles it again when a file in its directory changes.
///
/// # Panics
/// If the program does not compile.
pub fn compile(source: &str) {
    let source = Path::new(source);
    let directory = source.parent().unwrap_or(Path::new("."));
    println!("cargo:rerun-if-changed={}", directory.display());
    clang(source, &out(source, "o"));
}

/// Generates Rust definitions of every struct, enum and integer constant in the header `NAME.h` of the
/// crate, as `NAME.rs` in `OUT_DIR`, for `taut_bpf::bindings!`.
///
/// The layouts are those that clang gives the structs when it compiles for BPF, read from the BTF of an
/// object that has one variable of each. The header declares each struct and enum on a line of its own
/// (`struct NAME {`).
///
/// # Panics
/// If the header does not compile, or has a type that Rust cannot read from any bytes: a `bool`, a
/// pointer, a union, a bit field, or a struct with padding that has no name.
pub fn share(header: &str) {
    let path = Path::new(header);
    println!("cargo:rerun-if-changed={header}");
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{header} cannot be read: {e}"));
    let names = bindings::Names::declared(&text);
    let source = out(path, "types.bpf.c");
    let absolute = path.canonicalize().expect("it was just read");
    write(&source, &names.program(&absolute));
    let object = out(path, "types.bpf.o");
    clang(&source, &object);
    let btf = Btf::from_path(&object).unwrap_or_else(|e| panic!("{header} has no BTF: {e}"));
    let rust = bindings::generate(&btf, &names).unwrap_or_else(|e| panic!("{header}: {e}"));
    write(&out(path, "rs"), &rust);
}

/// The file in `OUT_DIR` of this name and another extension.
fn out(path: &Path, extension: &str) -> PathBuf {
    let folder = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let name = path.file_name().expect("a file's path has a name");
    Path::new(&folder).join(name).with_extension(extension)
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{} cannot be written: {e}", path.display()));
}

fn clang(source: &Path, object: &Path) {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    SkeletonBuilder::new()
        .source(source)
        .obj(object)
        .clang_args([
            "-Wall".to_owned(),
            "-Wextra".to_owned(),
            "-Werror".to_owned(),
            // Atomic operations that return a value, since Linux 5.12.
            "-mcpu=v3".to_owned(),
            // Debian keeps `asm/` here, where clang does not look when it compiles for BPF,
            format!("-idirafter/usr/include/{arch}-linux-gnu"),
            // and here for another architecture.
            format!("-idirafter/usr/{arch}-linux-gnu/include"),
        ])
        .build()
        .unwrap_or_else(|e| {
            panic!(
                "{} does not compile: {e:#}\n\
                 It needs clang and the kernel's headers; scripts/setup installs both.",
                source.display()
            )
        });
}
