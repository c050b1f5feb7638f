//! Interception: delivers connections that this machine would forward to a `transparent` forward
//! instead.
//!
//! [`Interception`] keeps this set up while it exists: a BPF program at the devices, or nftables if
//! the kernel rejects the program, and the policy route that both need.
//! `docs/design/interception.md` describes the data path and what a killed process leaves behind.

mod nft;
mod policy;
mod program;
mod rules;
mod thread;
mod wire;

use std::io;

use taut_sys::privileges::{self, Capability};

pub use nft::NftError;
pub use policy::{PRIORITY, PolicyError, Presence, TABLE, presence};
pub use program::ProgramError;
pub use rules::{RULES_MAX, Taking};
pub(crate) use rules::{Rule, rules_of};
pub(crate) use thread::{Interception, Status};
pub use thread::{is_abandoned, is_running, remove_abandoned};
pub use wire::{Exit, Exits};
pub(crate) use wire::{Key, rule as key_of};

/// The default mark of intercepted packets.
pub const MARK: u32 = 0x7461;

/// How packets reach the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By a BPF program at the devices (`bpf_sk_assign`).
    Bpf,
    /// By nftables' TPROXY.
    Nft,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bpf => "BPF",
            Self::Nft => "nftables",
        })
    }
}

/// The connections to intercept, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The connections of each transparent forward, in order. Of two equally narrow matches, the
    /// first wins.
    pub(crate) takings: Vec<Taking>,
    /// Upstream connections use clients' addresses, and their replies must be delivered here.
    pub(crate) borrows: bool,
    /// The mark of intercepted packets.
    pub(crate) mark: u32,
    /// The method; `None`: BPF, or nftables if the kernel rejects the program.
    pub(crate) method: Option<Method>,
}

/// The reason why interception cannot run.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    /// The process may not open sockets with foreign addresses.
    #[error(
        "interception: this process may not use addresses that are not this machine's \
         (IP_TRANSPARENT): {0}{hint}",
        hint = privileges::hint(.0, &[Capability::NetAdmin])
    )]
    Transparent(#[source] io::Error),
    /// Another process intercepts in this network namespace.
    #[error(
        "interception: another relay intercepts in this network namespace already; `pgrep -a taut` lists the \
         processes, stop that one or put both into one configuration"
    )]
    Taken,
    /// It cannot be found out whether another process intercepts.
    #[error(
        "interception: cannot find out whether another relay intercepts in this network namespace, by the address of a \
         UDP socket that only one can have: {0}{hint}",
        hint = privileges::hint(.0, &[Capability::NetBindService])
    )]
    Lock(#[source] io::Error),
    /// A named device is missing.
    #[error("interception: there is no network device `{0}`; `ip link` lists them")]
    NoSuchDevice(String),
    /// The devices cannot be listed.
    #[error("interception: cannot list the network devices: {0}")]
    Devices(#[source] io::Error),
    /// The policy route cannot be set up.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The program cannot be used, and `intercept_by` requires it.
    #[error("interception: {0}; remove `intercept_by` to fall back to nftables")]
    Program(#[from] ProgramError),
    /// nftables cannot be used, and `intercept_by` requires it.
    #[error("interception: {0}")]
    Nft(#[from] NftError),
    /// Neither method can be used.
    #[error(
        "interception: {program}; and the fall-back failed too: {nft}. `taut doctor` shows what this kernel supports"
    )]
    Neither {
        /// The error of BPF.
        program: ProgramError,
        /// The error of nftables.
        nft: NftError,
    },
    /// The system cannot start the thread.
    #[error("interception: cannot start its thread: {0}")]
    Thread(#[source] io::Error),
    /// The thread panicked.
    #[error("interception: its thread panicked (a bug: please report what the log says)")]
    Died,
}
