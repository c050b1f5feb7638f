//! `taut top` at a terminal.
//!
//! What is shown is a [`State`], which knows no terminal; [`draw`] puts it into cells; this loop
//! reads keys and looks at connections in between.

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

use self::state::{Key, State, Then};
use crate::filter::Filter;
use crate::observer::Observer;
use crate::scan::{ScanError, ScanSummary};
use crate::view::Sort;

/// A signal that is to end it is heeded within this time.
const HEED: Duration = Duration::from_millis(200);

/// Keys that wait to be heeded; more wait in the terminal.
const EVENTS: usize = 64;

/// How it begins.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which connections, as it was typed.
    pub filter: String,
    /// Between looks.
    pub interval: Duration,
    /// By what lines are sorted.
    pub sort: Sort,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// There is nothing to see.
    #[error(transparent)]
    Look(#[from] ScanError),
    /// The terminal.
    #[error("the terminal cannot be used: {0} (--batch needs none)")]
    Terminal(#[from] io::Error),
}

/// Shows connections until its user quits, or a signal ends it. The terminal is put back as it was, also after a
/// panic.
///
/// # Errors
/// [`ScreenError`].
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
        if next <= Instant::now() {
            if !state.paused() {
                // The filter may change before the next look.
                let summary = observer.scan(&Filter::all())?;
                if let Some(sentence) = missing(observer, &summary) {
                    state.say(sentence);
                }
                state.look(observer);
            }
            next = (next + interval).max(Instant::now());
        }
        terminal.draw(|frame| draw::draw(frame, &mut state))?;
        let wait = next.saturating_duration_since(Instant::now()).min(HEED);
        // All that has come, before it is drawn again.
        let mut event = match events.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => continue,
            // It has said why.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(event) => Some(event),
        };
        while let Some(come) = event {
            if let Some(key) = key(&come?) {
                match state.key(key) {
                    Then::Quit => return Ok(()),
                    Then::Choose => state.choose(observer),
                    Then::Nothing => {}
                }
            }
            event = events.try_recv().ok();
        }
    }
    Ok(())
}

/// What comes from the terminal, until it cannot be read any more. On a thread of its own, which ends with the
/// process: of a terminal that has gone away the library never returns, and then it is up to the signal, or to
/// what cannot be drawn any more, to end it.
fn events() -> Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::sync_channel(EVENTS);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let last = event.is_err();
            if sender.send(event).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// What a key means; `None`: nothing here. A change of size is drawn as every event is.
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
