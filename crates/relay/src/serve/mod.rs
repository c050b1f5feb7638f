//! Runs a node as a process: signals, metrics over HTTP, and periodic look-ups of names.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rtnetlink::MulticastGroup;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};

use taut_sys::control_socket::ControlError;

use crate::config::Config;
use crate::etcd::{self, FirstListError};
use crate::handover::{HandoverError, Inherited, Passed};
use crate::metrics::Metrics;
use crate::net::addr::Listen;
use crate::net::names;
use crate::net::netlink::Changes;
use crate::net::targets::Targets;
use crate::node::{CONDITION_INTERVAL, LOOK_UPS, Node, SharedHandle, StartError, WorkerLost};

mod checks;
mod commands;
mod pages;
mod takeover;

pub use commands::ControlSocket;

use pages::Pages;
use takeover::{Offer, Takeover};

/// The interval at which a draining node logs the number of remaining sessions.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

/// How long a relay that is asked to stop during its start may take to finish starting. Opening
/// listeners takes no time; looking up names may take long.
const START_GRACE: Duration = Duration::from_secs(1);

/// The interval at which the file of members is checked for a change.
const MEMBERS_EVERY: Duration = Duration::from_secs(1);

/// The interval at which the addresses of this machine are read if the kernel does not report changes, or
/// reading has failed.
const ADDRESSES_EVERY: Duration = Duration::from_secs(1);

/// How long a look-up waits for a slot of [`LOOK_UPS`] before it looks for one again.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);

/// The number of concurrent look-ups of members that the configuration does not name, and of names without an
/// address. Other operators choose the former, and slow ones must leave threads for the rest.
const LOOK_UPS_OF_OTHERS: usize = 4;

/// The interval at which names without an address are looked up.
const WITHOUT_ADDRESS_EVERY: Duration = Duration::from_secs(5);

/// The reason why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no list of members, and none in etcd.
    #[error(transparent)]
    List(#[from] FirstListError),
    /// The process cannot listen on the address of the metrics or of the admin page.
    #[error("cannot serve {what} on {addr}: {source}; choose another relay.{key}")]
    Page {
        /// What was to be served, in words.
        what: &'static str,
        /// The key of the configuration.
        key: &'static str,
        /// The address.
        addr: Listen,
        /// The system's error.
        source: std::io::Error,
    },
    /// The handover from the previous process or to the next one failed.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The previous process intercepts, and its release does not hand that over.
    #[error(
        "the running relay intercepts connections, and its version does not hand that over; it continues. Stop it \
         first, and start this one then"
    )]
    NotPassedOn,
    /// This process is to replace another one, and there is none.
    #[error("no relay hands its sockets over{}", at(.0))]
    NobodyToReplace(Option<PathBuf>),
    /// Commands cannot be taken at the configured socket.
    #[error("{0}; change relay.control")]
    Commands(#[from] ControlError),
    /// A worker was lost.
    #[error(transparent)]
    Lost(#[from] WorkerLost),
    /// The control thread's own set-up failed.
    #[error("cannot set up signals and timers: {0}")]
    Control(#[from] std::io::Error),
}

fn at(path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => format!(
            " at {}; is one running with this configuration?",
            path.display()
        ),
        None => ": relay.handover or relay.control is \"off\"".to_owned(),
    }
}

/// What a process begins with.
#[derive(Default)]
pub struct Beginning {
    /// The sockets that the service manager has bound.
    pub inherited: Vec<Passed>,
    /// The control socket, if it is open already.
    pub control: Option<ControlSocket>,
    /// Whether the process replaces a running one. If there is none, it does not start.
    pub replaces: bool,
}

/// Reloads the configuration; see [`reload`].
type Reload = Arc<dyn Fn() -> Result<Vec<String>, String> + Send + Sync>;

/// Reads the configuration file again. The error is a sentence.
pub type Reread = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// Runs a node until SIGTERM or SIGINT has drained it. A second signal, or `timeouts.drain`, resets
/// the remaining sessions. At SIGHUP, the node adopts the result of `reread`.
///
/// With `handover` in the configuration, the sockets of a running process are taken over, and that process drains.
///
/// # Errors
/// [`ServeError`] if the node did not start (nothing is left running then) or a worker was
/// lost.
pub fn run(config: &Config, beginning: Beginning, reread: Reread) -> Result<(), ServeError> {
    // The workers have their own threads; this one has little to do.
    let runtime = taut_exposition::runtime::start(LOOK_UPS)?;
    let result = runtime.block_on(serve(config, beginning, reread));
    // A look-up that hangs must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn serve(config: &Config, beginning: Beginning, reread: Reread) -> Result<(), ServeError> {
    let Beginning {
        mut inherited,
        control,
        replaces,
    } = beginning;
    // Installed first, so that a signal during the start is not lost.
    let mut stop = Stop::listen()?;
    let hangup = signal(SignalKind::hangup())?;
    // Before the start reads the addresses, so that no change is missed.
    let addresses = Changes::listen(&[MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr]);

    let mut taken = Takeover::begin(config, replaces).await?;
    let Inherited {
        sockets,
        interception,
    } = taken.inherited();
    inherited.extend(sockets);
    let pages = Pages::listen(config, &mut inherited)?;
    if let Some(mesh) = &config.mesh {
        tokio::select! {
            first = etcd::first_list(mesh) => first?,
            () = stop.asked() => return Ok(()),
        }
    }
    // The start looks up names, which may take long.
    let mut start = tokio::task::spawn_blocking({
        let config = config.clone();
        let inherited = Inherited {
            sockets: inherited,
            interception,
        };
        move || Node::start_with(&config, inherited)
    });
    let started = tokio::select! {
        started = &mut start => started,
        () = stop.asked() => {
            // Its listeners may be open already, and the sessions that it has accepted are drained.
            let Ok(started) = timeout(START_GRACE, start).await else {
                return Ok(());
            };
            let mut node = node_of(started).map_err(|error| taken.explain(error))?;
            return drain(&mut node, config.timeouts.drain, stop.asked()).await;
        }
    };
    let mut node = node_of(started).map_err(|error| taken.explain(error))?;
    let (served, offered) = pages.serve(&node)?;
    let replaces = taken.replaces();
    let _life = taken.serving().await;
    let control = commands::listen(config, control, replaces)?;
    let offer = Offer::start(config, control.is_some(), replaces, &node.handle(), offered)?;
    let offer = Arc::new(offer);
    watch(&node, addresses);
    let reload: Reload = {
        let (node, offer) = (node.handle(), offer.clone());
        Arc::new(move || {
            let done = reload(&node, &reread);
            offer.renew(&node);
            done
        })
    };
    let asked_to_drain = Arc::new(Notify::new());
    if let Some(control) = control {
        commands::start(
            control,
            commands::Commands {
                node: node.handle(),
                metrics: node.metrics(),
                reload: reload.clone(),
                offer: offer.clone(),
                drain: asked_to_drain.clone(),
            },
        )?;
    }
    tokio::spawn(reload_at(hangup, reload));

    let is_replaced = tokio::select! {
        ended = node.ended() => return Ok(ended?),
        () = stop.asked() => false,
        () = asked_to_drain.notified() => false,
        () = offer.taken() => true,
    };
    if is_replaced {
        tracing::info!("another process has taken over the listening sockets");
        // Scrapes and looks at the page from now on must reach the other process.
        served.iter().for_each(JoinHandle::abort);
    }
    // A remaining offer would keep ports open although no process accepts.
    offer.end();
    let hurry = async {
        stop.asked().await;
        // The service manager stops all processes of a service with one signal each. If the one that serves has
        // ended, it starts the service again when all others have, too.
        if is_replaced && !offer.successor_has_ended() {
            stop.asked().await;
        }
    };
    drain(&mut node, config.timeouts.drain, hurry).await
}

/// Starts the tasks that look after a running node.
fn watch(node: &Node, addresses: io::Result<Changes>) {
    tokio::spawn(look_up_again(node.handle()));
    tokio::spawn(look_up_others(node.handle()));
    tokio::spawn(watch_members(node.handle()));
    tokio::spawn(etcd::follow(node.handle()));
    tokio::spawn(watch_addresses(node.handle(), addresses));
    tokio::spawn(checks::run(node.handle()));
    tokio::spawn(report_conditions(node.handle(), node.metrics()));
}

fn node_of(started: Result<Result<Node, StartError>, JoinError>) -> Result<Node, StartError> {
    started.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
}

/// Waits for SIGTERM or SIGINT.
struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }
}

/// Adopts changes of the list of members.
async fn watch_members(node: Arc<SharedHandle>) {
    let mut version = None;
    loop {
        sleep(MEMBERS_EVERY).await;
        let node = node.clone();
        // Reading may block. A panic is reported by the panic hook and must not end the watch.
        let known = version.clone();
        let look = tokio::task::spawn_blocking(move || node.look_at_members(known));
        version = look.await.unwrap_or(version);
    }
}

/// Follows the addresses of this machine.
async fn watch_addresses(node: Arc<SharedHandle>, changes: io::Result<Changes>) {
    if let Err(error) = &changes {
        tracing::warn!(
            "cannot follow the addresses of this machine: {error}; they are read every second"
        );
    }
    loop {
        // Also at the start, in case the notifications cannot be had.
        let node = node.clone();
        let read = tokio::task::spawn_blocking(move || node.read_own_addresses()).await;
        match &changes {
            Ok(changes) if matches!(read, Ok(true)) => {
                changes.next().await;
                changes.drain();
            }
            _ => sleep(ADDRESSES_EVERY).await,
        }
    }
}

/// Reloads the configuration at each SIGHUP. Signals that arrive during one reload count as one.
async fn reload_at(mut hangup: Signal, reload: Reload) {
    while hangup.recv().await.is_some() {
        let reload = reload.clone();
        // A reload looks up names, which may take long. A panic is reported by the panic hook and
        // must not prevent later reloads.
        let _ = tokio::task::spawn_blocking(move || match reload() {
            Ok(_) => tracing::info!("SIGHUP: the configuration has been read again"),
            Err(error) => tracing::error!("SIGHUP: {error}; keeping the former configuration"),
        })
        .await;
    }
}

/// Reads the configuration again and adopts it. Returns the sentences on settings that need a
/// restart, or on what prevents the reload.
fn reload(node: &SharedHandle, reread: &Reread) -> Result<Vec<String>, String> {
    match reread() {
        Ok(config) => node.reload(&config).map_err(|error| error.to_string()),
        Err(error) => {
            // It may have been rotated, whatever the configuration says.
            node.reopen_log();
            Err(error)
        }
    }
}

async fn drain(
    node: &mut Node,
    patience: Duration,
    hurry: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let metrics = node.metrics();
    tracing::info!(
        sessions = metrics.sessions(),
        patience = %humantime::format_duration(patience),
        "draining: no new connections"
    );
    node.drain();
    let deadline = sleep_until(Instant::now() + patience);
    let mut report = interval_at(Instant::now() + DRAIN_REPORT, DRAIN_REPORT);
    tokio::pin!(deadline, hurry);
    loop {
        tokio::select! {
            ended = node.ended() => {
                tracing::info!("stopped; all sessions have ended");
                return Ok(ended?);
            }
            () = &mut deadline => break,
            () = &mut hurry => break,
            _ = report.tick() => tracing::info!(sessions = metrics.sessions(), "draining"),
        }
    }
    tracing::warn!(
        sessions = metrics.sessions(),
        "stopped; resetting the remaining sessions"
    );
    node.stop();
    Ok(node.ended().await?)
}

/// Logs what breaks and what is well again.
async fn report_conditions(node: Arc<SharedHandle>, metrics: Metrics) {
    let mut ticks = tokio::time::interval(CONDITION_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        node.report_conditions(&metrics, std::time::Instant::now());
    }
}

/// Repeats look-ups; names and interval may change. A slow look-up delays no other look-up and is not started
/// twice.
async fn look_up_again(node: Arc<SharedHandle>) {
    let mut under_way: Vec<(Arc<Targets>, JoinHandle<()>)> = Vec::new();
    loop {
        sleep(node.resolve_interval()).await;
        under_way.retain(|(_, look_up)| !look_up.is_finished());
        for targets in node.names() {
            if under_way.iter().any(|(t, _)| Arc::ptr_eq(t, &targets)) {
                continue;
            }
            while under_way.len() >= LOOK_UPS {
                sleep(LOOK_UP_PAUSE).await;
                under_way.retain(|(_, look_up)| !look_up.is_finished());
            }
            let look_up = tokio::spawn(refresh(node.clone(), targets.clone()));
            under_way.push((targets, look_up));
        }
    }
}

/// Looks up a destination, and adopts what was found on a thread that may block.
async fn refresh(node: Arc<SharedHandle>, targets: Arc<Targets>) {
    let found = names::look_up_again(targets.destination()).await;
    // A panic is reported by the panic hook, and must not end the look-ups.
    let _ = tokio::task::spawn_blocking(move || node.adopt_addresses(&targets, found)).await;
}

/// Looks up the names of members that the configuration does not name, when there may be new ones and at the
/// resolver's interval, and names without an address every [`WITHOUT_ADDRESS_EVERY`]; at most
/// [`LOOK_UPS_OF_OTHERS`] at a time.
async fn look_up_others(node: Arc<SharedHandle>) {
    let mut all = false;
    let mut all_at = Instant::now() + node.resolve_interval();
    loop {
        let mut look_ups = JoinSet::new();
        let names = node.names_without_address(all);
        let pause = match names.is_empty() {
            true => node.resolve_interval(),
            false => WITHOUT_ADDRESS_EVERY.min(node.resolve_interval()),
        };
        for targets in names {
            if look_ups.len() >= LOOK_UPS_OF_OTHERS {
                look_ups.join_next().await;
            }
            look_ups.spawn(refresh(node.clone(), targets));
        }
        while look_ups.join_next().await.is_some() {}
        tokio::select! {
            () = node.unknown.notified() => {},
            () = sleep_until(all_at.min(Instant::now() + pause)) => {},
        }
        all = Instant::now() >= all_at;
        if all {
            all_at = Instant::now() + node.resolve_interval();
        }
    }
}
