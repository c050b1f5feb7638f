//! Runtimes of jobs. Tokio panics where the system has no descriptors or threads for them; here that is an
//! error.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// How long an idle thread for calls that block is kept: a year.
const FOR_GOOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether tokio has set up signals, which it does once for the process.
static HAS_SIGNALS: AtomicBool = AtomicBool::new(false);

/// Returns a runtime on one thread with at most `blocking` threads for calls that block.
///
/// Tokio sets up signals at the first use of one, and starts the first thread for calls that block when
/// there is a call. Both are made here, and stay.
///
/// # Errors
/// Those of the system, which lacks threads or descriptors.
pub fn start(blocking: usize) -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    let builder = builder
        .enable_all()
        .max_blocking_threads(blocking)
        .thread_keep_alive(FOR_GOOD);
    let runtime = build(builder)?;
    without_panic(|| {
        let _inside = runtime.enter();
        drop(runtime.spawn_blocking(|| ()));
        signal(SignalKind::hangup()).map(drop)
    })?;
    Ok(runtime)
}

/// Builds a runtime. The first one of a process sets up signals.
///
/// # Errors
/// Those of the system, which lacks descriptors.
pub fn build(builder: &mut Builder) -> io::Result<Runtime> {
    if HAS_SIGNALS.load(Ordering::Acquire) {
        return builder.build();
    }
    let runtime = without_panic(|| builder.build())?;
    HAS_SIGNALS.store(true, Ordering::Release);
    Ok(runtime)
}

/// Runs `job`; its panic becomes an error. Meanwhile, panics of other threads are not printed.
fn without_panic<T>(job: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // The hook is that of the process: two that exchange it at once would lose it.
    static HOOK: Mutex<()> = Mutex::new(());
    let _alone = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = std::panic::catch_unwind(AssertUnwindSafe(job));
    std::panic::set_hook(hook);
    done.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(io::Error::other(
            said.unwrap_or("tokio panicked").to_owned(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let error = without_panic::<()>(|| panic!("no {}", "descriptors")).unwrap_err();
        assert_eq!(error.to_string(), "no descriptors");
        assert!(without_panic(|| Ok(())).is_ok());
    }
}
