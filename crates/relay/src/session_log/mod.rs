//! One line of JSON for each session that has ended.
//!
//! Workers never wait for it: a [`Recorder`] puts a record into a bounded queue, and one thread
//! writes. What does not fit into the queue, or cannot be written, is dropped and counted.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | records that wait | `capacity`, default [`CAPACITY`] | the record is dropped | [`Counts::dropped`] |
//! | bytes that wait in the writer | [`BUFFER`] and a line | they are written | [`Counts::failed`] if they cannot be |
//! | waiting for the writer at the end | the argument of [`SessionLog::finish`] | it is left behind | |
//!
//! Lines are written out when the queue is empty or the buffer full, so that a quiet node's log is
//! complete and a busy one's costs few system calls. A file is only ever appended to.

mod record;
mod sink;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

pub use record::{Direction, SessionId, SessionRecord};
use sink::Sink;

/// Records that wait to be written, unless it is said otherwise.
pub const CAPACITY: usize = 4096;

/// Bytes that the writer gathers before it writes.
pub const BUFFER: usize = 64 << 10;

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, written `-`.
    Stdout,
    /// A file; made with mode 0640 where there is none, for it names clients.
    File(PathBuf),
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum SessionLogError {
    /// The file cannot be opened.
    #[error("cannot open the session log {path}: {source}; choose another path or make it writable", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start the session log's writer: {0}")]
    Thread(io::Error),
}

/// What became of records so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Written.
    pub written: u64,
    /// Dropped, because too many were waiting.
    pub dropped: u64,
    /// Lost, because they could not be written.
    pub failed: u64,
}

/// The log: its writer, and what may be asked of it.
#[derive(Debug)]
pub struct SessionLog {
    recorder: Recorder,
    done: Receiver<()>,
}

/// A worker's end of the log.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Record(Box<SessionRecord>),
    /// Look at the flags.
    Wake,
}

#[derive(Debug, Default)]
struct Shared {
    reopen: AtomicBool,
    finish: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

// === impl SessionLog ===

impl SessionLog {
    /// Opens `target` and starts the writer. `capacity` records may wait, at least one.
    ///
    /// # Errors
    /// [`SessionLogError`]; nothing was started then.
    pub fn start(target: Target, capacity: usize) -> Result<Self, SessionLogError> {
        let sink = match target {
            Target::Stdout => Sink::stdout(),
            Target::File(path) => {
                Sink::file(&path).map_err(|source| SessionLogError::Open { path, source })?
            }
        };
        Self::with(sink, capacity)
    }

    fn with(sink: Sink, capacity: usize) -> Result<Self, SessionLogError> {
        let (queue, records) = mpsc::sync_channel(capacity.max(1));
        let (ended, done) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::default());
        let writer = Writer {
            records,
            sink,
            shared: shared.clone(),
        };
        std::thread::Builder::new()
            .name("taut-log".to_owned())
            .spawn(move || {
                writer.run();
                // Nobody waits when the log was dropped.
                let _ = ended.send(());
            })
            .map_err(SessionLogError::Thread)?;
        let recorder = Recorder { queue, shared };
        Ok(Self { recorder, done })
    }

    /// A handle for a worker.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Has the file opened anew by its path, as is due after it was rotated. When that fails the
    /// old one is written on, and a warning says so.
    pub fn reopen(&self) {
        self.recorder.raise(|shared| &shared.reopen);
    }

    /// What became of records so far.
    pub fn counts(&self) -> Counts {
        self.recorder.counts()
    }

    /// Writes what waits, and ends the writer. Records that come later are dropped. A writer that
    /// is stuck in a write for `limit` is left behind, and false is returned.
    pub fn finish(self, limit: Duration) -> bool {
        self.recorder.raise(|shared| &shared.finish);
        // Disconnected: it has panicked, and is gone as well.
        !matches!(
            self.done.recv_timeout(limit),
            Err(RecvTimeoutError::Timeout)
        )
    }
}

impl Drop for SessionLog {
    /// Ends the writer, without waiting for it.
    fn drop(&mut self) {
        self.recorder.raise(|shared| &shared.finish);
    }
}

// === impl Recorder ===

impl Recorder {
    /// Hands a record to the writer. Never waits: when too many wait already it is dropped and
    /// counted.
    pub fn record(&self, record: Box<SessionRecord>) {
        match self.queue.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// What became of records so far.
    pub fn counts(&self) -> Counts {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        Counts {
            written: get(&self.shared.written),
            dropped: get(&self.shared.dropped),
            failed: get(&self.shared.failed),
        }
    }

    fn raise(&self, flag: impl Fn(&Shared) -> &AtomicBool) {
        flag(&self.shared).store(true, Ordering::SeqCst);
        // A full queue needs no waking: the writer looks at the flags before it sleeps again.
        let _ = self.queue.try_send(Message::Wake);
    }
}

// === impl Writer ===

struct Writer {
    records: Receiver<Message>,
    sink: Sink,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self) {
        loop {
            let Some(message) = self.next() else {
                return self.flush();
            };
            if self.shared.reopen.swap(false, Ordering::SeqCst) {
                self.flush();
                self.sink.reopen();
            }
            if let Message::Record(record) = message {
                self.sink.add(&record);
                if self.sink.waiting() >= BUFFER {
                    self.flush();
                }
            }
        }
    }

    /// The next message; `None` when the last one has been had and the end was asked for. Before
    /// it waits for one, what was gathered is written.
    fn next(&mut self) -> Option<Message> {
        if let Ok(message) = self.records.try_recv() {
            return Some(message);
        }
        self.flush();
        if self.shared.finish.load(Ordering::SeqCst) {
            // Some may have come while it was writing.
            return self.records.try_recv().ok();
        }
        self.records.recv().ok()
    }

    fn flush(&mut self) {
        let outcome = self.sink.flush();
        let add = |figure: &AtomicU64, n| figure.fetch_add(n, Ordering::Relaxed);
        add(&self.shared.written, outcome.written);
        add(&self.shared.failed, outcome.failed);
    }
}

#[cfg(test)]
mod tests;
