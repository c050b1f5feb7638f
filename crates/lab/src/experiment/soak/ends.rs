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
use super::plan::Plan;
use super::transfer::{Comparison, Content, First, HEADER, Transfer, Way};

/// How long an end waits without a byte before it gives up a session and sends RST. It is longer
/// than the relays take to notice any fault in this experiment.
pub(super) const IDLE: Duration = Duration::from_secs(20);
/// How long a connection may take to be established.
const CONNECT: Duration = Duration::from_secs(15);
/// The maximum number of concurrent sessions; further sessions wait. About 400 sessions arrive
/// while a link is cut; many more mean that the machine cannot carry the load.
pub(super) const AT_ONCE: usize = 2_000;
/// The size of a read or write.
const CHUNK: usize = 16 << 10;
/// The pause between two checks for stalled sessions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// State shared by both ends and the watchers. Times are since `began`.
pub(super) struct Run {
    pub(super) began: Instant,
    pub(super) ledger: Ledger,
    /// Notified when the client has run all of its sessions.
    pub(super) over: Notify,
    /// Whether the run cannot continue.
    given_up: AtomicBool,
}

/// The client's totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) begun: u64,
    /// Sessions that had to wait because [`AT_ONCE`] sessions were running.
    pub(super) held_back: u64,
}

/// When a session last made progress.
struct Movement(Cell<Instant>);

// === impl Run ===

impl Run {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            ledger: Ledger::default(),
            over: Notify::new(),
            given_up: AtomicBool::new(false),
        }
    }

    /// Stops all threads.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether nothing more should start: a session was silently wrong, or the run cannot
    /// continue.
    pub(super) fn is_over_early(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) || self.ledger.is_wrong()
    }

    /// Waits until the time `at`; returns `false` if nothing should start then.
    pub(super) async fn until(&self, at: Duration) -> bool {
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

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

// === the client ===

/// Starts the plan's sessions, each at its time after the start of the run, and returns when all
/// have ended in any way. Must be called in the client's namespace.
pub(super) fn load(plan: &Plan, to: SocketAddr, run: &Arc<Run>) -> io::Result<Load> {
    runtime()?.block_on(LocalSet::new().run_until(async {
        let mut load = Load::default();
        let mut open = JoinSet::new();
        let room = Arc::new(Semaphore::new(AT_ONCE));
        for (number, at) in plan.arrivals() {
            if !run.until(at).await {
                break;
            }
            load.held_back += u64::from(room.available_permits() == 0);
            let Ok(place) = room.clone().acquire_owned().await else {
                break;
            };
            load.begun += 1;
            let (transfer, run) = (Transfer::of(plan.seed, number), run.clone());
            open.spawn_local(async move {
                run.ledger.begin(number, run.now());
                let seen = seen(ask(transfer, to).await);
                run.ledger.end(number, End::Client, seen, run.now());
                drop(place);
            });
            while open.try_join_next().is_some() {}
        }
        while open.join_next().await.is_some() {}
        Ok(load)
    }))
}

async fn ask(transfer: Transfer, to: SocketAddr) -> Result<(), Observed> {
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(to));
    let mut stream = connecting
        .await
        .map_err(|_| Observed::Broken(Break::TimedOut))?
        .map_err(broken)?;
    reset_on_close(&stream, true)?;
    let movement = Movement::new();
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
pub(super) fn serve(listener: std::net::TcpListener, seed: u64, run: &Arc<Run>) -> io::Result<()> {
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
                let (number, result) = answer(stream, seed).await;
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
async fn answer(mut stream: TcpStream, seed: u64) -> (Option<u64>, Result<(), Observed>) {
    let movement = Movement::new();
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
        reply(&mut stream, Transfer::of(seed, number), &header).await,
    )
}

async fn reply(stream: &mut TcpStream, transfer: Transfer, header: &[u8]) -> Result<(), Observed> {
    let mut comparison = transfer.comparison(Way::Up);
    comparison.take(header).map_err(Observed::Wrong)?;
    let movement = Movement::new();
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

pub(super) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

// === impl Movement ===

impl Movement {
    fn new() -> Self {
        Self(Cell::new(Instant::now()))
    }

    fn note(&self) {
        self.0.set(Instant::now());
    }

    /// Waits for `work`, but gives up if there is no progress for [`IDLE`].
    async fn watch<T>(
        &self,
        work: impl Future<Output = Result<T, Observed>>,
    ) -> Result<T, Observed> {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(POLL_INTERVAL, &mut work).await {
                Ok(done) => return done,
                Err(_) if self.0.get().elapsed() > IDLE => {
                    return Err(Observed::Broken(Break::TimedOut));
                }
                Err(_) => {}
            }
        }
    }
}
