//! How the kernel schedules the calling thread.

use std::io;
use std::num::NonZeroU64;

/// Lets the calling thread's timed waits end within a nanosecond of when they are due, instead of the
/// default 50 µs that the kernel may add to batch wake-ups.
///
/// # Errors
/// Those of `prctl`.
pub fn minimize_timer_slack() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(
        NonZeroU64::MIN,
    ))?)
}

/// Puts the calling thread in the real-time class SCHED_FIFO at `priority` (1 to 99): it runs before
/// every ordinary thread whenever it can run. Threads it starts are ordinary again.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE, and in a control group without a real-time share.
pub fn set_fifo_priority(priority: i32) -> io::Result<()> {
    // SAFETY: `sched_param` is plain data for which all zeroes is a value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    let class = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: thread 0 is the caller; the kernel reads one `sched_param`, which outlives the call.
    match unsafe { libc::sched_setscheduler(0, class, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the calling thread's niceness (-20, first served, to 19). On Linux it is a thread's own.
///
/// # Errors
/// `PermissionDenied` when it is lowered without CAP_SYS_NICE.
pub fn set_niceness(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}
