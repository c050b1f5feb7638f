//! Answers over TCP (RFC 7766), for queries whose answers are too large for UDP and for networks that
//! have used their rate there.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | connections of a network (IPv4 /24, IPv6 /56) | 32; of an IPv6 /48: 64 | the newest is closed, `taut_dns_tcp_refused_total` |
//! | connections | 512 | the one that was idle longest is closed, `taut_dns_tcp_displaced_total` |
//! | a query | [`QUERY`] bytes | the connection is closed |
//! | time for a query to arrive, for an answer to leave | [`PATIENCE`] | the same, `taut_dns_tcp_timed_out_total` |
//! | time for all of a connection | [`LIFE`] | the same |
//! | queries of a connection | [`QUERIES`] | it is closed after the last answer |

mod connections;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use taut_sys::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{error::Elapsed, sleep, timeout};

use self::connections::{Admission, Connections, Id};
use crate::answer::{Asker, Transport};
use crate::state::{Shared, seconds_since_1970};

/// The longest query.
const QUERY: usize = 4096;
/// The longest wait for the whole of the next query, and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest life of a connection. A resolver that has more to ask connects again (RFC 7766 section 6.2.3).
const LIFE: Duration = Duration::from_secs(30);
/// The length of the accept queue.
const BACKLOG: i32 = 256;
/// The most queries of a connection.
const QUERIES: usize = 128;
/// The pause after a failed accept, for lack of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// The open connections.
pub(crate) struct Open(Mutex<Connections<Arc<Notify>>>);

/// A connection that is counted in [`Open`]; dropping it ends that.
struct Counted {
    open: Arc<Open>,
    id: Id,
    /// Another connection needs the place.
    displaced: Arc<Notify>,
    shared: Shared,
}

/// Listens at `addr`; an address of IPv6 takes no IPv4, as over UDP.
///
/// # Errors
/// `EADDRINUSE`, `EACCES` and others of socket(2), bind(2) and listen(2).
pub(crate) fn listen(addr: SocketAddr) -> Result<std::net::TcpListener, Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    bind(&fd, &addr)?;
    listen(&fd, BACKLOG)?;
    Ok(fd.into())
}

/// Accepts connections at `listener`, and does not return.
pub(crate) async fn serve(listener: TcpListener, open: Arc<Open>, shared: Shared) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a TCP connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let source = peer.ip().to_canonical();
        let Some(counted) = Counted::take(&open, source, &shared) else {
            shared.metrics.tcp_refused.inc();
            continue;
        };
        tokio::spawn(async move {
            let metrics = &counted.shared.metrics;
            tokio::select! {
                ended = timeout(LIFE, answer_all(stream, source, &counted)) => {
                    if let Err(_) | Ok(Err(Ended::TimedOut)) = ended {
                        metrics.tcp_timed_out.inc();
                    }
                }
                () = counted.displaced.notified() => {
                    metrics.tcp_displaced.inc();
                }
            }
        });
    }
}

/// Why a connection ended before its last answer.
enum Ended {
    /// The client was too slow.
    TimedOut,
    /// The connection broke, or the client closed it.
    Closed,
}

async fn answer_all(mut stream: TcpStream, source: IpAddr, counted: &Counted) -> Result<(), Ended> {
    let shared = &counted.shared;
    let (mut query, mut answer, mut framed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..QUERIES {
        timeout(PATIENCE, read_query(&mut stream, &mut query)).await??;
        counted.open.lock().on_query(counted.id, Instant::now());
        let current = shared.current.load_full();
        let asker = Asker {
            source,
            transport: Transport::Tcp,
            now: seconds_since_1970(),
        };
        let reply = current.answers.respond(&query, asker, &mut answer);
        shared
            .metrics
            .count(Transport::Tcp, &reply, &current.relay_metrics);
        if answer.is_empty() {
            return Ok(());
        }
        framed.clear();
        // An answer over TCP has at most 65,535 bytes.
        framed.extend(u16::try_from(answer.len()).unwrap_or(0).to_be_bytes());
        framed.extend_from_slice(&answer);
        timeout(PATIENCE, stream.write_all(&framed)).await??;
    }
    Ok(())
}

/// Reads the next query, with its length before it (RFC 1035 section 4.2.2).
async fn read_query(stream: &mut TcpStream, query: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    query.resize(length, 0);
    stream.read_exact(query).await.map(drop)
}

// === impl Open ===

impl Open {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Connections::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Connections<Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Counted ===

impl Counted {
    fn take(open: &Arc<Open>, source: IpAddr, shared: &Shared) -> Option<Self> {
        let closer = Arc::new(Notify::new());
        let admission = open.lock().admit(source, closer.clone(), Instant::now());
        let Admission::Taken { id, displaced } = admission else {
            return None;
        };
        if let Some(displaced) = displaced {
            displaced.notify_one();
        }
        shared.metrics.tcp_connections.inc();
        Some(Self {
            open: open.clone(),
            id,
            displaced: closer,
            shared: shared.clone(),
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.lock().on_end(self.id);
        self.shared.metrics.tcp_connections.dec();
    }
}

// === impl Ended ===

impl From<Elapsed> for Ended {
    fn from(_: Elapsed) -> Self {
        Self::TimedOut
    }
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}
