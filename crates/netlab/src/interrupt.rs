//! Tears worlds down when a signal ends the process.
//!
//! A signal that kills a process runs no destructors. A program that builds worlds calls
//! [`tear_down_on_signals`] once, at its start. SIGINT, SIGTERM and SIGHUP then tear down every world of
//! the process before they end it as they would have without a handler.

use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::world::record::Record;

static LIVE: Mutex<Vec<Weak<Record>>> = Mutex::new(Vec::new());

/// Makes SIGINT, SIGTERM and SIGHUP tear down this process's worlds before they end it. Further calls
/// have no effect.
///
/// # Errors
/// If the handlers or their thread cannot be set up.
pub fn tear_down_on_signals() -> io::Result<()> {
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| result = install());
    result
}

fn install() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let body = move || {
        if let Some(signal) = signals.forever().next() {
            tear_down_all();
            // A shell expects the signal in the exit status.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new()
        .name("taut-lab-signal".to_owned())
        .spawn(body)?;
    Ok(())
}

/// Tears down every world of this process, as a signal does: for programs that handle signals
/// themselves. A [`World`](crate::world::World) that still exists cannot be used afterwards.
pub fn tear_down_all() {
    let live = std::mem::take(&mut *LIVE.lock().unwrap_or_else(PoisonError::into_inner));
    for record in live.iter().filter_map(Weak::upgrade) {
        if let Err(e) = record.undo() {
            tracing::warn!(
                "world {}: cannot tear it down, the next sweep will try again: {e}",
                record.id()
            );
        }
    }
}

/// Adds a world to those that a signal tears down.
pub(crate) fn register(record: &Arc<Record>) {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|known| known.strong_count() > 0);
    live.push(Arc::downgrade(record));
}
