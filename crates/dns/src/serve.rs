//! Runs the server as a process: its ports, signals, probes and measurements.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taut_sys::Errno;
use taut_sys::datagram::UdpPort;
use taut_sys::listen::Listen;
use taut_sys::plural::counted;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::answer::Answers;
use crate::config::Config;
use crate::control::Control;
use crate::measured::Measured;
use crate::state::Shared;
use crate::{control, reading, tcp, udp};

pub use crate::control::Reread;
pub use crate::error::ServeError;

/// The time between two looks at the file of round-trip times.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// The bound ports of a server that does not answer yet.
pub struct Bound {
    /// For each thread, its sockets.
    udp: Vec<Vec<UdpPort>>,
    tcp: Vec<std::net::TcpListener>,
    metrics: Option<std::net::TcpListener>,
}

// === impl Bound ===

impl Bound {
    /// Binds the ports of `config`, so that the process can then drop its privileges.
    ///
    /// # Errors
    /// [`ServeError::Bind`].
    pub fn new(config: &Config) -> Result<Self, ServeError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = config.workers.map_or(cpus, usize::from);
        let failed = |addr: Listen, protocol, key| {
            move |source: io::Error| ServeError::Bind {
                addr,
                protocol,
                key,
                source,
            }
        };
        // Two sockets for `:PORT`, so that an answer over IPv4 has an address of IPv4.
        let listen: Vec<_> = config.listen.iter().flat_map(Listen::addrs_here).collect();
        let udp = |addr: &SocketAddr| {
            let port = UdpPort::bind(*addr, udp::RECEIVE_BUFFER);
            port.map_err(|errno| failed(Listen::At(*addr), "UDP", "listen")(errno.into()))
        };
        let udp = (0..workers).map(|_| listen.iter().map(udp).collect());
        let tcp = |addr: &SocketAddr| {
            let listener = tcp::listen(*addr);
            listener.map_err(|errno| failed(Listen::At(*addr), "TCP", "listen")(errno.into()))
        };
        Ok(Self {
            udp: udp.collect::<Result<_, _>>()?,
            tcp: listen.iter().map(tcp).collect::<Result<_, _>>()?,
            metrics: match config.metrics {
                Some(addr) => Some(addr.open().map_err(failed(addr, "TCP", "metrics"))?),
                None => None,
            },
        })
    }
}

/// Checks that a server could start with `config`, without its ports. Returns what the operator should
/// know.
///
/// # Errors
/// [`ServeError`].
pub fn check(config: &Config) -> Result<Vec<String>, ServeError> {
    let mut notes = Vec::new();
    let mut measured = Measured::default();
    reading::read_file(config, &mut measured)?;
    if let Some(path) = &config.relay_control {
        let path = path.display();
        notes.push(match reading::ask_relay(config, &mut measured) {
            Ok(_) => {
                let count = measured.live.times().len();
                format!(
                    "the relay at {path} knows {} to prefixes",
                    counted(count, "round-trip time")
                )
            }
            // The server starts all the same.
            Err(error) => format!("cannot ask the relay at {path} for round-trip times: {error}"),
        });
    }
    let nearness = measured.nearness()?;
    notes.push(format!(
        "{}, {}, round-trip times to {}",
        counted(config.relays.len(), "relay"),
        counted(config.names.len(), "name"),
        counted(nearness.len(), "prefix")
    ));
    if config.rtt_file.is_none() && config.relay_control.is_none() {
        notes.push(
            "no rtt_file and no relay_control: every client is led to the first relay that is up"
                .into(),
        );
    }
    let unprobed = config.relays.iter().filter(|relay| relay.probe.is_none());
    let unprobed: Vec<_> = unprobed.map(|relay| relay.name.as_str()).collect();
    if !unprobed.is_empty() {
        notes.push(format!(
            "relays without a probe are always considered up: {}",
            unprobed.join(", ")
        ));
    }
    Ok(notes)
}

/// Returns the answers that `config` leads to, with the times in its file and of its relay, and every relay up.
///
/// # Errors
/// [`ServeError`].
pub fn preview(config: &Config) -> Result<Answers, ServeError> {
    let mut measured = Measured::default();
    reading::read_file(config, &mut measured)?;
    reading::ask_relay(config, &mut measured).map_err(|error| ServeError::Relay {
        path: config.relay_control.clone().unwrap_or_default(),
        reason: error.to_string(),
    })?;
    control::preview(config, measured)
}

/// Runs a server until SIGTERM or SIGINT. At SIGHUP, it adopts the result of `reread`.
///
/// # Errors
/// [`ServeError`] if the server did not start, or a thread has ended.
pub fn run(config: Config, bound: Bound, reread: Reread) -> Result<(), ServeError> {
    let runtime = taut_exposition::runtime::start(2)?;
    let result = runtime.block_on(serve(config, bound, Arc::new(reread)));
    runtime.shutdown_background();
    result
}

async fn serve(config: Config, bound: Bound, reread: Arc<Reread>) -> Result<(), ServeError> {
    // Installed first, so that a signal during the start is not lost.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;

    let mut measured = Measured::default();
    reading::read_file(&config, &mut measured)?;
    let addresses = list(&config.listen);
    let mut every = config.probe_interval;
    let mut control = Control::new(config, measured)?;
    let mut lost = start(bound, control.shared())?;
    tracing::info!("answering for {} on {addresses}", control.config().zone);

    let mut probing = regularly(every);
    let mut measuring = regularly(MEASURE_EVERY);
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = int.recv() => break,
            _ = hangup.recv() => control.begin_reload(&reread),
            _ = probing.tick() => control.begin_probes(),
            _ = measuring.tick() => control.begin_measuring(),
            () = control.next() => {}
            Some(error) = lost.recv() => return Err(ServeError::Lost(error)),
        }
        // A reload may have changed it.
        let wanted = control.probe_interval();
        if wanted != every {
            every = wanted;
            probing = regularly(every);
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Ticks at once and then at this interval; a tick that comes late delays the next.
fn regularly(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Starts what answers. The returned channel reports a thread that has ended.
fn start(bound: Bound, shared: &Shared) -> Result<mpsc::Receiver<Errno>, ServeError> {
    let (ended, lost) = mpsc::channel(1);
    let workers = bound.udp.len();
    for (i, ports) in bound.udp.into_iter().enumerate() {
        let (shared, ended) = (shared.clone(), ended.clone());
        let thread = std::thread::Builder::new().name(format!("dns-{i}"));
        thread.spawn(move || {
            // A panic is reported by the panic hook, and ends the process like an error.
            let run = std::panic::AssertUnwindSafe(|| udp::run(ports, &shared, workers));
            let error = match std::panic::catch_unwind(run) {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => Errno::CANCELED,
            };
            let _ = ended.blocking_send(error);
        })?;
    }
    let open = Arc::new(tcp::Open::new());
    for listener in bound.tcp {
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(tcp::serve(listener, open.clone(), shared.clone()));
    }
    if let Some(listener) = bound.metrics {
        let addr = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        tracing::info!(%addr, "serving OpenMetrics at /metrics");
        let shared = shared.clone();
        tokio::spawn(taut_exposition::serve(listener, move || {
            shared.metrics.encode()
        }));
    }
    Ok(lost)
}

fn list(addresses: &[Listen]) -> String {
    let addresses = addresses.iter().map(Listen::to_string);
    addresses.collect::<Vec<_>>().join(", ")
}
