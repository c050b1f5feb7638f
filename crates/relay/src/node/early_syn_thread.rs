//! The thread that reads early SYN events and sends them to workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Waker};

use crate::early_syn::{
    Devices, EarlySyn, EarlySynError, Limits, PendingTable, Watch, read_syncookies_sent,
};
use crate::worker::mailbox::{Mailbox, Message};

/// The interval at which the SYN cookie counter is read and new devices are attached.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The thread that reads events. Dropping it ends the thread and detaches the program.
#[derive(Debug)]
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

// === impl Reader ===

impl Reader {
    /// Watches for the SYNs of `watch`, in which forwards have their numbers.
    ///
    /// # Errors
    /// [`ReaderError`]; nothing stays attached then.
    pub(crate) fn start(
        devices: Devices,
        watch: Watch,
        limits: Limits,
        table: Arc<PendingTable>,
        mailboxes: Vec<Arc<Mailbox>>,
    ) -> Result<Self, ReaderError> {
        let waker = Arc::new(Waker::new()?);
        let stop = Arc::new(AtomicBool::new(false));
        // The program's handle stays on the thread that created it; that thread reports the result
        // here.
        let (tell, told) = sync_channel(1);
        let begin = {
            let (waker, stop) = (waker.clone(), stop.clone());
            move || -> Result<Work, ReaderError> {
                let early_syn = EarlySyn::attach(devices, &watch, limits.events_per_second)?;
                let poller = Poller::new()?;
                poller.add(early_syn.poll_fd(), 1, Interest::Read)?;
                poller.add(&*waker, 0, Interest::Read)?;
                Ok(Work {
                    early_syn,
                    poller,
                    table,
                    mailboxes,
                    stop,
                })
            }
        };
        let thread = std::thread::Builder::new()
            .name("early-syn".into())
            .spawn(move || match begin() {
                Ok(work) => {
                    let _ = tell.send(Ok(()));
                    work.run();
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })
            .map_err(ReaderError::Thread)?;
        let reader = Self {
            stop,
            waker,
            thread: Some(thread),
        };
        match told.recv() {
            Ok(Ok(())) => Ok(reader),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ReaderError::Died),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

/// The reason why early SYN cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// SYNs cannot be watched.
    #[error(transparent)]
    Watch(#[from] EarlySynError),
    /// The kernel has no descriptor or memory for a poller.
    #[error("early SYN: cannot wait for events: {0}")]
    Poller(#[from] Errno),
    /// The system cannot start a thread.
    #[error("early SYN: cannot start its thread: {0}")]
    Thread(std::io::Error),
    /// The thread panicked.
    #[error("early SYN: its thread panicked (a bug: please report what the log says)")]
    Died,
}

/// The state of the thread.
struct Work {
    early_syn: EarlySyn,
    poller: Poller,
    table: Arc<PendingTable>,
    mailboxes: Vec<Arc<Mailbox>>,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn run(mut self) {
        let (mut reports, mut events) = (Vec::new(), Vec::new());
        let mut look_at = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let wait = look_at.saturating_duration_since(Instant::now());
            if let Err(error) = self.poller.wait(Some(wait), &mut reports) {
                tracing::error!(%error, "early SYN has stopped; upstream legs are dialled at accept");
                return;
            }
            let now = Instant::now();
            self.early_syn.take(&mut events);
            for syn in events.drain(..) {
                let Some(worker) = self.table.admit(&syn, self.mailboxes.len(), now) else {
                    continue;
                };
                let _ = self.mailboxes[worker].post(Message::Syn {
                    connection: syn.connection(),
                    forward: syn.listener,
                });
            }
            self.expire(now);
            if now >= look_at {
                look_at = now + LOOK_EVERY;
                self.look(now);
            }
        }
    }

    /// Notifies workers of the clients that have not come in time.
    fn expire(&mut self, now: Instant) {
        for (connection, worker) in self.table.expire(now) {
            let _ = self.mailboxes[worker].post(Message::NoClient { connection });
        }
    }

    /// Reads the kernel's counters and attaches to new devices.
    fn look(&mut self, now: Instant) {
        let cookies = read_syncookies_sent().ok();
        self.table.note(self.early_syn.exits().ok(), cookies, now);
        if let Err(error) = self.early_syn.refresh() {
            tracing::debug!(%error, "cannot watch a network device");
        }
    }
}
