//! `taut-lab kernel`: starts a User Mode Linux kernel in its own process.

use std::io;
use std::os::unix::process::CommandExt as _;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::uml::KERNEL;

/// `ptrace` on x86-64, the only architecture of both Debian's package and this experiment.
const PTRACE: i64 = 101;
/// PTRACE_GETREGSET and NT_X86_XSTATE of linux/ptrace.h and linux/elf.h.
const GETREGSET: u64 = 0x4204;
const XSTATE: u64 = 0x202;
/// The error number that a refused call returns: EINVAL.
const REFUSED: u32 = 22;

/// Replaces this process by the kernel; returns only on failure.
///
/// User Mode Linux saves its processes' vector registers through ptrace, in a buffer of 2,696
/// bytes. On a CPU with larger registers (AMX has 11,008 bytes) the host accepts only all of them,
/// and every process dies at its first instruction. So a seccomp filter refuses that request, and
/// the kernel saves the 512 bytes that all x86-64 CPUs have. Guests are configured to use
/// no other registers (see [`super::uml`]).
pub fn become_one(args: &[String]) -> io::Error {
    let filter = || -> Result<BpfProgram, seccompiler::BackendError> {
        let question = SeccompRule::new(vec![
            SeccompCondition::new(0, Qword, Eq, GETREGSET)?,
            SeccompCondition::new(2, Qword, Eq, XSTATE)?,
        ])?;
        SeccompFilter::new(
            [(PTRACE, vec![question])].into_iter().collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(REFUSED),
            std::env::consts::ARCH.try_into()?,
        )?
        .try_into()
    };
    let filtered = filter()
        .map_err(io::Error::other)
        .and_then(|filter| seccompiler::apply_filter(&filter).map_err(io::Error::other));
    match filtered {
        Ok(()) => KERNEL.command().args(args).exec(),
        Err(e) => e,
    }
}
