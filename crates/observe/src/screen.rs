//! The terminal interface of `taut top`.
//!
//! A [`State`] holds the content of the screen and is independent of the terminal; [`draw`] draws
//! it. The loop in this file reads keys and scans connections.

mod draw;
mod state;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::state::{Action, Key, State};
use crate::filter::Filter;
use crate::observer::Observer;
use crate::scan::{ScanError, ScanSummary};
use crate::view::Sort;

/// The maximum time until a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(200);

/// The maximum number of queued events; more stay in the terminal's buffer.
const EVENTS: usize = 64;

/// Options of the screen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The text of the filter.
    pub filter: String,
    /// Time between scans.
    pub interval: Duration,
    /// The sort key at the start.
    pub sort: Sort,
}

/// Why the screen failed.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// The connections cannot be scanned.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The terminal cannot be used.
    #[error("the terminal cannot be used: {0}; use --batch, which needs none")]
    Terminal(#[from] io::Error),
}

/// Shows connections until the user quits or a signal arrives. Restores the terminal, also after a
/// panic. `missing` returns a sentence about data that a scan could not collect.
///
/// # Errors
/// [`ScreenError`]: the connections cannot be scanned, or the terminal cannot be used.
pub fn run(
    observer: &mut Observer,
    filter: Filter,
    options: &Options,
    missing: impl FnMut(&Observer, &ScanSummary) -> Option<String>,
) -> Result<(), ScreenError> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, ends.clone())?;
    }
    let mut terminal = ratatui::try_init()?;
    let state = State::new(filter, options);
    let done = show(
        &mut terminal,
        observer,
        state,
        options.interval,
        &ends,
        missing,
    );
    ratatui::restore();
    done
}

fn show(
    terminal: &mut DefaultTerminal,
    observer: &mut Observer,
    mut state: State,
    interval: Duration,
    ends: &AtomicBool,
    mut missing: impl FnMut(&Observer, &ScanSummary) -> Option<String>,
) -> Result<(), ScreenError> {
    let events = events();
    let mut next = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        // The kernel's ring buffer of ends has a limit, so it is also read between scans.
        observer.poll_ended(|ended| state.add_ended(ended));
        if next <= Instant::now() {
            if !state.paused() {
                // The filter may change before the next scan, so the table keeps all connections.
                let summary = observer.scan(&Filter::all())?;
                if let Some(sentence) = missing(observer, &summary) {
                    state.show_notice(sentence);
                }
                state.update(observer);
            }
            next = (next + interval).max(Instant::now());
        }
        terminal.draw(|frame| draw::draw(frame, &mut state))?;
        let wait = next
            .saturating_duration_since(Instant::now())
            .min(SIGNAL_POLL);
        // Handles all pending keys before drawing again.
        let mut event = match events.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => continue,
            // The thread has sent the error.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(event) => Some(event),
        };
        while let Some(come) = event {
            if let Some(key) = key(&come?) {
                match state.key(key) {
                    Action::Quit => return Ok(()),
                    Action::Refresh => state.refresh(observer),
                    Action::Draw => {}
                }
            }
            event = events.try_recv().ok();
        }
    }
    Ok(())
}

/// Returns the events of the terminal, until reading fails. A thread reads them. The thread ends
/// only with the process, because the library never returns if the terminal is gone; then a signal
/// or a failed draw ends the screen.
fn events() -> Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::sync_channel(EVENTS);
    let failed = sender.clone();
    let thread = std::thread::Builder::new().spawn(move || {
        loop {
            let event = event::read();
            let last = event.is_err();
            if sender.send(event).is_err() || last {
                return;
            }
        }
    });
    if let Err(error) = thread {
        // The channel is empty.
        let _ = failed.try_send(Err(error));
    }
    receiver
}

/// Returns the key of an event; `None` if the screen does not use it. A resize needs no key,
/// because every event redraws the screen.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        return None;
    };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Char(c) => Key::Char(*c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
