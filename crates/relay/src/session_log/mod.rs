//! One line of JSON for each session that has ended.
//!
//! Workers never wait for the log: a [`Recorder`] puts a record into a bounded queue, and one
//! thread writes. Records that do not fit into the queue or cannot be written are dropped and
//! counted.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | queued records | `capacity`, default [`CAPACITY`] | the record is dropped |
//! [`Counts::dropped`] |
//! | bytes in the writer's buffer | [`BUFFER`] and a line | they are written | [`Counts::failed`]
//! if they cannot be |
//! | waiting for the writer at the end | the argument of [`SessionLog::finish`] | the writer is
//! abandoned | |
//!
//! Lines are written when the queue is empty or the buffer is full, so that the log of a quiet node
//! is up to date and the log of a busy node costs few system calls. Files are only appended to.

mod record;
mod sink;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

pub use record::{DirectionRecord, SessionId, SessionRecord};
use sink::Sink;

/// The default capacity of the queue, in records.
pub const CAPACITY: usize = 4096;

/// The number of bytes that the writer collects before it writes.
pub const BUFFER: usize = 64 << 10;

/// The destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, written `-`.
    Stdout,
    /// A file, opened for appending; created with mode 0640, because the log names clients.
    File(PathBuf),
}

/// The reason why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionLogError {
    /// The file cannot be opened.
    #[error("cannot open the session log {path}: {source}; choose another path or make it writable", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start the session log's writer: {0}")]
    Thread(io::Error),
}

/// The number of records by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were written.
    pub written: u64,
    /// Records dropped because the queue was full.
    pub dropped: u64,
    /// Records lost because they could not be written.
    pub failed: u64,
}

/// The session log: a handle to its writer.
#[derive(Debug)]
pub struct SessionLog {
    recorder: Recorder,
    done: Receiver<()>,
}

/// A worker's handle, for submitting records.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Record(Box<SessionRecord>),
    /// Tells the writer to check its flags.
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
    /// Opens `target` and starts the writer. The queue holds `capacity` records, at least one.
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
                // Fails only if the log was dropped.
                let _ = ended.send(());
            })
            .map_err(SessionLogError::Thread)?;
        let recorder = Recorder { queue, shared };
        Ok(Self { recorder, done })
    }

    /// Returns a handle for a worker.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Reopens the file by its path, as needed after log rotation. If that fails, the old file
    /// stays in use and a warning is logged.
    pub fn reopen(&self) {
        self.recorder.raise(|shared| &shared.reopen);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.recorder.counts()
    }

    /// Writes queued records and ends the writer. Later records are dropped. Returns `false` if the
    /// writer stays blocked for `limit`; it is abandoned then.
    pub fn finish(self, limit: Duration) -> bool {
        self.recorder.raise(|shared| &shared.finish);
        // A disconnected channel means that the writer panicked.
        !matches!(
            self.done.recv_timeout(limit),
            Err(RecvTimeoutError::Timeout)
        )
    }
}

impl Drop for SessionLog {
    /// Ends the writer without waiting for it.
    fn drop(&mut self) {
        self.recorder.raise(|shared| &shared.finish);
    }
}

// === impl Recorder ===

impl Recorder {
    /// Submits a record. Never waits: if the queue is full, the record is dropped and counted.
    pub fn record(&self, record: Box<SessionRecord>) {
        match self.queue.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the counts so far.
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
        // A full queue needs no wake-up: the writer checks the flags before it sleeps again.
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

    /// Returns the next message, or `None` after the last one once the end was requested. Flushes
    /// the buffer before waiting.
    fn next(&mut self) -> Option<Message> {
        if let Ok(message) = self.records.try_recv() {
            return Some(message);
        }
        self.flush();
        if self.shared.finish.load(Ordering::SeqCst) {
            // More messages may have arrived during the write.
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
