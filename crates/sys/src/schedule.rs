//! Scheduling attributes of the calling thread (sched(7)).

use std::io;
use std::num::NonZeroU64;

/// Reduces the calling thread's timer slack to 1 ns (PR_SET_TIMERSLACK). By default the kernel may
/// delay a timed wait by up to 50 µs to batch wake-ups.
///
/// # Errors
/// Those of `prctl`.
pub fn minimize_timer_slack() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(
        NonZeroU64::MIN,
    ))?)
}

/// Moves the calling thread to the real-time class SCHED_FIFO at `priority` (1 to 99): whenever it
/// is runnable, it runs before every SCHED_OTHER thread. Threads that it starts are SCHED_OTHER.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE, and in a cgroup without a real-time share.
pub fn set_fifo_priority(priority: i32) -> io::Result<()> {
    // SAFETY: `sched_param` is plain data for which all zeroes is a valid value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    let class = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: PID 0 is the calling thread; the kernel reads one `sched_param`, which outlives the
    // call.
    match unsafe { libc::sched_setscheduler(0, class, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the calling thread's nice value, from -20 (highest priority) to 19. On Linux, the nice
/// value is an attribute of the thread, not of the process.
///
/// # Errors
/// `PermissionDenied` if the value is lowered without CAP_SYS_NICE.
pub fn set_niceness(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}
