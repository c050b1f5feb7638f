//! Interception: connections that pass through this machine, addressed to somebody else, come to a
//! `transparent` forward.
//!
//! [`Interception`] makes the kernel do so for as long as it lives: a BPF program at the devices,
//! or nftables where the kernel does not take it, and the policy route without which neither works.
//! `docs/design/interception.md` has the data path and what is left behind by a kill.

mod nft;
mod policy;
mod program;
mod rules;
mod thread;
mod wire;

use std::io;

pub use nft::NftError;
pub use policy::{PRIORITY, PolicyError, Presence, TABLE, presence};
pub use program::ProgramError;
pub(crate) use rules::rules_of;
pub use rules::{RULES_MAX, Taking};
pub use thread::is_running;
pub(crate) use thread::{Interception, Status};
pub use wire::{Exit, Exits};

/// The mark of intercepted packets, unless another is configured.
pub const MARK: u32 = 0x7461;

/// How packets are given to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By a BPF program at the devices (`bpf_sk_assign`).
    Bpf,
    /// By nftables' TPROXY.
    Nft,
}

/// What is to be intercepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Of each transparent forward, in their order: of two that are equally narrow the first
    /// takes it.
    pub(crate) takings: Vec<Taking>,
    /// Upstream connections have clients' addresses, and their replies are to be brought back.
    pub(crate) borrows: bool,
    /// What packets that are taken are marked with.
    pub(crate) mark: u32,
    /// `None`: BPF, and where the kernel does not take it, nftables.
    pub(crate) method: Option<Method>,
}

/// Why nothing can be intercepted.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    /// Sockets may not have others' addresses.
    #[error(
        "interception: this process may not use addresses that are not this machine's \
         (IP_TRANSPARENT): {0}; it needs CAP_NET_ADMIN, or root"
    )]
    Transparent(#[source] io::Error),
    /// Another process does.
    #[error(
        "interception: another relay intercepts on this machine already; `ss -xlp src @{}` shows \
         which, stop it or put both into one configuration",
        thread::LOCK
    )]
    Taken,
    /// A device that was asked for is not there.
    #[error("interception: there is no network device `{0}`; `ip link` lists those there are")]
    NoSuchDevice(String),
    /// The devices cannot be listed.
    #[error("interception: cannot list the network devices: {0}")]
    Devices(#[source] io::Error),
    /// The policy route cannot be set up.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The program cannot be used, though it was asked for.
    #[error("interception: {0}; without `intercept_by` nftables is tried then")]
    Program(#[from] ProgramError),
    /// nftables cannot be used, though it was asked for.
    #[error("interception: {0}")]
    Nft(#[from] NftError),
    /// Neither can be used.
    #[error("interception: {program}; and instead of it, {nft}. `taut doctor` shows what there is")]
    Neither {
        /// Of BPF.
        program: ProgramError,
        /// Of nftables.
        nft: NftError,
    },
    /// The system has no thread or descriptor for it.
    #[error("interception: cannot start its thread: {0}")]
    Thread(#[source] io::Error),
    /// The thread met a state that must not be.
    #[error("interception: its thread panicked (a bug: please report what the log says)")]
    Died,
}
