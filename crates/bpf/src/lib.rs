//! Loads BPF programs and gives their maps types.
//!
//! A crate with a program compiles `NAME.bpf.c` and shares `NAME.h` in its build script (`taut_bpf_build`).
//! [`bindings!`] includes the Rust definitions of the header's structs, [`Open`] and [`Object`] load the
//! program and find its parts by name, and a [`Map`] reads and writes those structs.
//! docs/design/bpf.md has an example.
//!
//! ```
//! use taut_bpf::zerocopy::IntoBytes as _;
//! use taut_bpf::Be16;
//!
//! // Ports are in network order in C as in Rust.
//! assert_eq!(Be16::new(443).as_bytes(), [0x01, 0xbb]);
//! ```

#![forbid(unsafe_code)]

mod counters;
mod error;
pub mod kernel;
mod map;
mod object;

pub use zerocopy;

/// A `__be16` of a shared struct.
pub type Be16 = zerocopy::byteorder::network_endian::U16;
/// A `__be32` of a shared struct.
pub type Be32 = zerocopy::byteorder::network_endian::U32;

pub use counters::{CEnum, CounterMap, Counters};
pub use error::Error;
pub use map::{Map, PerCpu, Plain, bytes, read_prefix};
pub use object::{Object, Open};

/// Declares a module with the definitions that `taut_bpf_build::share` has generated from `NAME.h`.
///
/// `bindings!(mod raw from "NAME");`
#[macro_export]
macro_rules! bindings {
    ($(#[$attribute:meta])* $vis:vis mod $module:ident from $header:literal) => {
        $(#[$attribute])*
        #[allow(missing_docs, unreachable_pub, dead_code, reason = "generated from a C header")]
        $vis mod $module {
            include!(concat!(env!("OUT_DIR"), "/", $header, ".rs"));
        }
    };
}
