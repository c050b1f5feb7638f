//! Safe Rust wrappers of the kernel interfaces that Taut uses.
//!
//! This is the only crate of the workspace that may contain `unsafe`. Each module wraps one family
//! of system calls and documents units and errors. The crate contains no policy: callers decide.
//!
//! ```
//! use taut_sys::sock_diag::SockDiag;
//!
//! # fn main() -> Result<(), taut_sys::Errno> {
//! // Print what the kernel knows about every TCP connection of this network namespace.
//! let mut diag = SockDiag::open()?;
//! diag.dump(|connection| {
//!     let rtt = connection.info.and_then(|info| info.rtt);
//!     println!("{} -> {}: rtt {rtt:?}", connection.local, connection.remote);
//! })?;
//! # Ok(())
//! # }
//! ```

pub mod activation;
pub mod bpf;
pub mod child;
pub mod control_socket;
pub mod datagram;
pub mod enclosure;
pub mod epoll;
pub mod file_lock;
pub mod interface;
pub mod job_dir;
pub mod kernel_tls;
pub mod limits;
pub mod listen;
mod netlink;
pub mod netns;
pub mod netns_lock;
pub mod packet;
pub mod pidfd_socket;
pub mod pipe;
pub mod plural;
pub mod privileges;
pub mod probe;
pub mod random;
mod raw_sockopt;
pub mod route;
pub mod sandbox;
pub mod schedule;
pub mod scm_rights;
pub mod sock_diag;
pub mod socket;
pub mod steal;
pub mod tap;
pub mod tcp_info;

/// An error number of the kernel, as reported by every module of this crate.
pub use rustix::io::Errno;
