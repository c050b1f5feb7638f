//! Tearing worlds down when a signal ends the process.
//!
//! A signal that kills a process runs no destructors. A program that builds worlds calls
//! [`tear_down_on_signals`] once, first thing; SIGINT and SIGTERM then tear down every world that
//! lives, and end the process as they would have.

use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::world::Record;

static LIVE: Mutex<Vec<Weak<Record>>> = Mutex::new(Vec::new());

/// Makes SIGINT, SIGTERM and SIGHUP tear down this process's worlds before they end it. A second call
/// changes nothing.
///
/// # Errors
/// When the handlers or their thread cannot be set up.
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
            // Ends the process with the signal's own status, as a shell expects.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new()
        .name("taut-lab-signal".to_owned())
        .spawn(body)?;
    Ok(())
}

/// Tears down every world of this process, as a signal does. Worlds that are still held can do
/// nothing any more after it. For programs that handle signals themselves.
pub fn tear_down_all() {
    let live = std::mem::take(&mut *LIVE.lock().unwrap_or_else(PoisonError::into_inner));
    for record in live.iter().filter_map(Weak::upgrade) {
        if let Err(e) = record.undo() {
            tracing::warn!("world {} is left to a sweep: {e}", record.id());
        }
    }
}

/// Has a world torn down with the others.
pub(crate) fn watch(record: &Arc<Record>) {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|known| known.strong_count() > 0);
    live.push(Arc::downgrade(record));
}
