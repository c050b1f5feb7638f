//! Both ends of the sessions: socket code without decisions.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, LocalSet};

use super::ledger::{Break, End, Ledger, Observed};
use super::transfer::{Comparison, Content, First, HEADER, Traffic, Transfer, Way};

/// The maximum number of concurrent sessions; further sessions wait. About 400 sessions arrive
/// while a link is cut; many more mean that the machine cannot carry the load.
pub(in crate::experiment) const AT_ONCE: usize = 2_000;
/// The size of a read or write.
const CHUNK: usize = 16 << 10;
/// The pause between two checks for stalled sessions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// State shared by both ends and the watchers. Times are since `began`.
pub(in crate::experiment) struct Run {
    pub(in crate::experiment) began: Instant,
    patience: Patience,
    pub(in crate::experiment) ledger: Ledger,
    /// Notified when the client has run all of its sessions.
    pub(in crate::experiment) over: Notify,
    /// Whether the run cannot continue.
    given_up: AtomicBool,
}

/// How long an end waits before it gives up a session and sends RST.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Patience {
    /// For a connection to be established.
    pub(in crate::experiment) connect: Duration,
    /// For the next byte.
    pub(in crate::experiment) idle: Duration,
}

/// The client's totals.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::experiment) struct Load {
    pub(in crate::experiment) begun: u64,
    /// Sessions that had to wait because [`AT_ONCE`] sessions were running.
    pub(in crate::experiment) held_back: u64,
}

/// When a session last made progress, and how long it may go without.
struct Movement {
    last: Cell<Instant>,
    limit: Duration,
}

// === impl Run ===

impl Run {
    pub(in crate::experiment) fn new(patience: Patience) -> Self {
        Self {
            began: Instant::now(),
            patience,
            ledger: Ledger::default(),
            over: Notify::new(),
            given_up: AtomicBool::new(false),
        }
    }

    /// Stops all threads.
    pub(in crate::experiment) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether nothing more should start: a session was silently wrong, or the run cannot
    /// continue.
    pub(in crate::experiment) fn is_over_early(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) || self.ledger.is_wrong()
    }

    /// Waits until the time `at`; returns `false` if nothing should start then.
    pub(in crate::experiment) async fn until(&self, at: Duration) -> bool {
        loop {
            let left = at.saturating_sub(self.now());
            if self.is_over_early() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            tokio::time::sleep(left.min(POLL_INTERVAL)).await;
        }
    }

    pub(in crate::experiment) fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

// === the client ===

/// Starts the sessions of `arrivals`, each at its time after the start of the run, and returns when
/// all have ended in any way. Must be called in the client's namespace.
pub(in crate::experiment) fn load(
    traffic: Traffic,
    arrivals: impl Iterator<Item = (u64, Duration)>,
    to: SocketAddr,
    run: &Arc<Run>,
) -> io::Result<Load> {
    runtime()?.block_on(LocalSet::new().run_until(async {
        let mut load = Load::default();
        let mut open = JoinSet::new();
        let room = Arc::new(Semaphore::new(AT_ONCE));
        for (number, at) in arrivals {
            if !run.until(at).await {
                break;
            }
            load.held_back += u64::from(room.available_permits() == 0);
            let Ok(place) = room.clone().acquire_owned().await else {
                break;
            };
            load.begun += 1;
            let (transfer, run) = (Transfer::of(traffic, number), run.clone());
            open.spawn_local(async move {
                run.ledger.begin(number, run.now());
                let seen = seen(ask(transfer, to, &run).await);
                run.ledger.end(number, End::Client, seen, run.now());
                drop(place);
            });
            while open.try_join_next().is_some() {}
        }
        while open.join_next().await.is_some() {}
        Ok(load)
    }))
}

async fn ask(transfer: Transfer, to: SocketAddr, run: &Run) -> Result<(), Observed> {
    let connecting = tokio::time::timeout(run.patience.connect, TcpStream::connect(to));
    let mut stream = connecting
        .await
        .map_err(|_| Observed::Broken(Break::TimedOut))?
        .map_err(broken)?;
    reset_on_close(&stream, true)?;
    let movement = Movement::new(run.patience.idle);
    let ended = Notify::new();
    let (mut from, mut into) = stream.split();
    let receive = async {
        let comparison = transfer.comparison(Way::Down);
        receive(&mut from, comparison, &movement).await?;
        ended.notify_one();
        Ok(())
    };
    let send = async {
        let mut content = transfer.content(Way::Up);
        if transfer.first == First::Server {
            let second_half = transfer.up / 2;
            send(&mut into, &mut content, second_half, &movement).await?;
            ended.notified().await;
        }
        send(&mut into, &mut content, 0, &movement).await?;
        into.shutdown().await.map_err(broken)
    };
    movement
        .watch(async { tokio::try_join!(send, receive) })
        .await?;
    reset_on_close(&stream, false)
}

// === the server ===

/// Serves all connections until the client has run its sessions and all have ended here too. Must
/// be called in the server's namespace.
pub(in crate::experiment) fn serve(
    listener: std::net::TcpListener,
    traffic: Traffic,
    run: &Arc<Run>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    runtime()?.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::from_std(listener)?;
        let mut open = JoinSet::new();
        let mut over = pin!(run.over.notified());
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    // The connection was reset in the accept queue.
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(e) => return Err(e),
                },
                () = &mut over => break,
            };
            let run = run.clone();
            open.spawn_local(async move {
                let (number, result) = answer(stream, traffic, &run).await;
                match number {
                    Some(number) => {
                        let seen = seen(result);
                        run.ledger.end(number, End::Server, seen, run.now());
                    }
                    None => run.ledger.nameless(seen(result)),
                }
            });
            while open.try_join_next().is_some() {}
        }
        while open.join_next().await.is_some() {}
        Ok(())
    }))
}

/// Serves one session. Returns its number, if it is known, and its result.
async fn answer(
    mut stream: TcpStream,
    traffic: Traffic,
    run: &Run,
) -> (Option<u64>, Result<(), Observed>) {
    let movement = Movement::new(run.patience.idle);
    let mut header = [0; HEADER];
    let begin = async {
        reset_on_close(&stream, true)?;
        stream.read_exact(&mut header).await.map_err(|e| {
            // The stream ended in order before or within a header.
            if e.kind() == io::ErrorKind::UnexpectedEof {
                return Observed::Wrong(super::transfer::Wrong::Short {
                    arrived: 0,
                    missing: HEADER as u64,
                });
            }
            broken(e)
        })
    };
    if let Err(seen) = movement.watch(begin).await {
        return (None, Err(seen));
    }
    let number = Transfer::number_in(&header);
    (
        Some(number),
        reply(&mut stream, Transfer::of(traffic, number), &header, run).await,
    )
}

async fn reply(
    stream: &mut TcpStream,
    transfer: Transfer,
    header: &[u8],
    run: &Run,
) -> Result<(), Observed> {
    let mut comparison = transfer.comparison(Way::Up);
    comparison.take(header).map_err(Observed::Wrong)?;
    let movement = Movement::new(run.patience.idle);
    let ended = Notify::new();
    let (mut from, mut into) = stream.split();
    let receive = async {
        receive(&mut from, comparison, &movement).await?;
        ended.notify_one();
        Ok(())
    };
    let send = async {
        let mut content = transfer.content(Way::Down);
        if transfer.first == First::Client {
            // The trailer states that all bytes have arrived, so it waits for them.
            let trailer = content.left() - transfer.down;
            send(&mut into, &mut content, trailer, &movement).await?;
            ended.notified().await;
        }
        send(&mut into, &mut content, 0, &movement).await?;
        into.shutdown().await.map_err(broken)
    };
    movement
        .watch(async { tokio::try_join!(send, receive) })
        .await?;
    reset_on_close(stream, false)
}

// === both ends ===

/// Sends until `rest` bytes of `content` are left.
async fn send(
    into: &mut WriteHalf<'_>,
    content: &mut Content,
    rest: u64,
    movement: &Movement,
) -> Result<(), Observed> {
    let mut chunk = vec![0; CHUNK];
    while content.left() > rest {
        let room = CHUNK.min(usize::try_from(content.left() - rest).unwrap_or(CHUNK));
        let n = content.fill(&mut chunk[..room]);
        let mut bytes = &chunk[..n];
        while !bytes.is_empty() {
            let n = into.write(bytes).await.map_err(broken)?;
            movement.note();
            bytes = &bytes[n..];
        }
    }
    Ok(())
}

/// Receives to the end of the stream.
async fn receive(
    from: &mut ReadHalf<'_>,
    mut comparison: Comparison,
    movement: &Movement,
) -> Result<(), Observed> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = from.read(&mut chunk).await.map_err(broken)?;
        movement.note();
        if n == 0 {
            return comparison.end().map_err(Observed::Wrong);
        }
        comparison.take(&chunk[..n]).map_err(Observed::Wrong)?;
    }
}

fn seen(result: Result<(), Observed>) -> Observed {
    result.err().unwrap_or(Observed::Exact)
}

fn broken(e: io::Error) -> Observed {
    Observed::Broken(match e.kind() {
        io::ErrorKind::ConnectionRefused => Break::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected => Break::Reset,
        io::ErrorKind::TimedOut => Break::TimedOut,
        _ => Break::Other,
    })
}

/// Sets whether close() sends an RST. It does so until a session is complete, so that giving up
/// differs from finishing.
fn reset_on_close(stream: &TcpStream, on: bool) -> Result<(), Observed> {
    set_socket_linger(stream, on.then_some(Duration::ZERO)).map_err(|e| broken(e.into()))
}

pub(in crate::experiment) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

// === impl Movement ===

impl Movement {
    fn new(limit: Duration) -> Self {
        Self {
            last: Cell::new(Instant::now()),
            limit,
        }
    }

    fn note(&self) {
        self.last.set(Instant::now());
    }

    /// Waits for `work`, but gives up if there is no progress for too long.
    async fn watch<T>(
        &self,
        work: impl Future<Output = Result<T, Observed>>,
    ) -> Result<T, Observed> {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(POLL_INTERVAL, &mut work).await {
                Ok(done) => return done,
                Err(_) if self.last.get().elapsed() > self.limit => {
                    return Err(Observed::Broken(Break::TimedOut));
                }
                Err(_) => {}
            }
        }
    }
}
