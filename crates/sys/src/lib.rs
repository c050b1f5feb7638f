//! The kernel's surfaces that Taut uses, behind safe Rust.
//!
//! This is the only crate of the workspace in which `unsafe` may appear. Nothing here has policy:
//! each module wraps one family of system calls, states units and errors, and leaves decisions
//! to its callers.

pub mod activation;
pub mod bpf;
pub mod child;
pub mod epoll;
pub mod interface;
pub mod limits;
mod netlink;
pub mod netns;
pub mod packet;
pub mod pidfd_socket;
pub mod pipe;
pub mod privileges;
pub mod probe;
pub mod random;
pub mod route;
pub mod schedule;
pub mod scm_rights;
pub mod sock_diag;
pub mod socket;
pub mod steal;
pub mod tap;
pub mod tcp_info;

/// The kernel's error number, as every module of this crate reports it.
pub use rustix::io::Errno;
