//! Starting a User Mode Linux kernel: `taut-lab kernel`, which becomes it.

use std::io;
use std::os::unix::process::CommandExt as _;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::uml::KERNEL;

/// `ptrace` on x86-64, the one architecture that Debian's package and this experiment have in common.
const PTRACE: i64 = 101;
/// PTRACE_GETREGSET and NT_X86_XSTATE of linux/ptrace.h and linux/elf.h.
const GETREGSET: u64 = 0x4204;
const XSTATE: u64 = 0x202;
/// EINVAL.
const REFUSED: u32 = 22;

/// Becomes the kernel; it returns only when it cannot.
///
/// The kernel keeps its processes' vector registers by way of ptrace, in a buffer of 2,696 bytes. On a CPU with
/// more (AMX has 11,008) the host takes back only all of them, and every process is lost at its first
/// instruction. So the question for them is refused, and the kernel keeps the 512 bytes that all x86-64
/// CPUs have. A guest is told to use no others (see [`super::uml`]).
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
