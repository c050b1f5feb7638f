//! The thread that keeps the routes up to date and removes them at the end.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rtnetlink::packet_route::route::RouteMessage;
use taut_sys::netns_lock::{Exclusive, NetnsLock};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::netlink::{self, GROUPS, Netlink};
use super::plan::{Plan, Without, choose, copy, plan};
use super::{Job, LOOK_AT_LEAST, LOOK_AT_MOST, PROTOCOL, RouteMetricsError, TABLE};
use crate::net::netlink::{ATTEMPTS, Changes};

/// Keeps routes with an initial window until dropped.
#[derive(Debug)]
pub struct RouteMetrics {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

// === impl RouteMetrics ===

impl RouteMetrics {
    /// Adds the routes in the network namespace of the calling thread and follows changes. While
    /// another process keeps routes for its own relays, this one adds none.
    ///
    /// # Errors
    /// [`RouteMetricsError`]; nothing has changed then.
    pub fn start(job: Job) -> Result<Self, RouteMetricsError> {
        let stop = Arc::new(Notify::new());
        // Routes must be removed in the namespace in which they were added. A thread of its own
        // stays in that namespace.
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("turbo-routes".into())
            .spawn({
                let stop = stop.clone();
                move || run(job, &stop, &tell)
            })
            .map_err(RouteMetricsError::Thread)?;
        // Dropping `routes` waits for the thread.
        let routes = Self {
            stop,
            thread: Some(thread),
        };
        match told.recv() {
            Ok(begun) => begun.map(|()| routes),
            Err(_) => Err(RouteMetricsError::Died),
        }
    }
}

impl Drop for RouteMetrics {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

/// Removes what a killed process has left behind, for a node that keeps no routes itself.
pub(crate) fn remove_stale() {
    let removed = std::thread::Builder::new()
        .name("turbo-routes".into())
        // Dropping the lock removes everything.
        .spawn(|| drop(RouteLock::take()))
        .map(JoinHandle::join);
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove routes that a killed relay may have left");
    }
}

/// Returns whether a killed relay has left rules or routes in this network namespace.
///
/// # Errors
/// [`RouteMetricsError`]: the kernel does not answer.
pub fn is_abandoned() -> Result<bool, RouteMetricsError> {
    if NetnsLock::is_taken(Exclusive::RouteMetrics).map_err(RouteMetricsError::Lock)? {
        return Ok(false);
    }
    runtime()?.block_on(async {
        let netlink = Netlink::connect()?;
        let is_any = async { Ok(netlink::is_any(&netlink.handle).await) };
        netlink.run(is_any).await
    })
}

/// Removes what a killed relay has left in this network namespace.
///
/// # Errors
/// [`RouteMetricsError`]: `Taken` while a relay runs that sets such routes.
pub fn remove_abandoned() -> Result<(), RouteMetricsError> {
    let lock = RouteLock::take().map_err(RouteMetricsError::Lock)?;
    // Dropping the lock removes everything.
    lock.map(drop).ok_or(RouteMetricsError::Taken)
}

type Begun = Result<(), RouteMetricsError>;

fn run(job: Job, stop: &Notify, tell: &SyncSender<Begun>) {
    // Dropped outside the runtime, because removing the routes needs a runtime; also after a panic.
    let mut held = None;
    let status = job.status.clone();
    let ended = runtime().and_then(|runtime| runtime.block_on(follow(job, stop, &mut held, tell)));
    drop(held);
    status.set(0, 0);
    if let Err(error) = ended {
        // Only the first error is received.
        if let Err(unheard) = tell.try_send(Err(error)) {
            tracing::error!(?unheard, "route metrics have stopped");
        }
    }
}

/// Keeps the routes until `stop` is notified.
async fn follow(
    job: Job,
    stop: &Notify,
    held: &mut Option<RouteLock>,
    tell: &SyncSender<Begun>,
) -> Result<(), RouteMetricsError> {
    let changes = Changes::listen(&GROUPS).map_err(RouteMetricsError::Netlink)?;
    let mut work = Work {
        job,
        netlink: Netlink::connect()?,
        put: BTreeMap::new(),
        said: BTreeMap::new(),
        said_too_many: false,
        said_taken: false,
        said_error: false,
    };
    let mut begun = false;
    loop {
        changes.drain();
        let looked = work.look(held).await;
        let is_done = looked.is_ok();
        match looked {
            Err(error) if !begun => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut work.said_error, true) {
                    tracing::warn!("{error}; it is tried again every second");
                }
            }
            Ok(()) => work.said_error = false,
        }
        if !std::mem::replace(&mut begun, true) {
            let _ = tell.send(Ok(()));
        }
        let mut schedule = Schedule::new(Instant::now(), is_done && held.is_some());
        loop {
            // If a check is due anyway, notifications can wait in the socket.
            let waits = !schedule.is_asked;
            tokio::select! {
                () = stop.notified() => return Ok(()),
                () = sleep_until(schedule.next()) => break,
                () = changes.next(), if waits => schedule.ask(),
                () = work.job.changed.notified(), if waits => schedule.ask(),
            }
        }
    }
}

/// Decides when to check the routes again. Pure.
struct Schedule {
    looked: Instant,
    is_asked: bool,
}

// === impl Schedule ===

impl Schedule {
    /// Records a check. If it failed, or another process keeps the routes (`is_done` is false), the next
    /// check is soon.
    fn new(looked: Instant, is_done: bool) -> Self {
        Self {
            looked,
            is_asked: !is_done,
        }
    }

    /// Records a change.
    fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Returns when to check: at once for a change after a quiet time, later for changes that
    /// follow.
    fn next(&self) -> Instant {
        match self.is_asked {
            true => self.looked + LOOK_AT_MOST,
            false => self.looked + LOOK_AT_LEAST,
        }
    }
}

/// The state of the thread.
struct Work {
    job: Job,
    netlink: Netlink,
    /// The relay's routes as it requested them.
    put: BTreeMap<IpAddr, RouteMessage>,
    /// The reasons already logged for addresses without a route.
    said: BTreeMap<IpAddr, Without>,
    said_too_many: bool,
    said_taken: bool,
    said_error: bool,
}

// === impl Work ===

impl Work {
    /// Checks all routes and corrects them.
    async fn look(&mut self, held: &mut Option<RouteLock>) -> Result<(), RouteMetricsError> {
        if self.netlink.is_closed() {
            self.netlink = Netlink::connect()?;
        }
        let netlink = self.netlink.clone();
        netlink.run(self.correct(held)).await
    }

    async fn correct(&mut self, held: &mut Option<RouteLock>) -> Result<(), RouteMetricsError> {
        if held.is_none() {
            *held = RouteLock::take().map_err(RouteMetricsError::Lock)?;
            if held.is_none() {
                if !std::mem::replace(&mut self.said_taken, true) {
                    tracing::info!("another relay here sets route metrics; waiting until it ends");
                }
                return Ok(());
            }
            // A killed process may have left these behind.
            netlink::remove_all(&self.netlink.handle).await;
        }
        netlink::ensure_rules(&self.netlink.handle).await?;
        let (chosen, too_many) = choose((self.job.wanted)());
        let mut copies = BTreeMap::new();
        let mut without = BTreeMap::new();
        for address in chosen {
            let matched = netlink::matched(&self.netlink.handle, address).await;
            let copy = matched
                .ok_or(Without::NoRoute)
                .and_then(|matched| copy(address, &matched, self.job.segments));
            match copy {
                Ok(copy) => drop(copies.insert(address, copy)),
                Err(why) => drop(without.insert(address, why)),
            }
        }
        let found = netlink::found(&self.netlink.handle).await;
        let Plan {
            put,
            remove,
            occupied,
        } = plan(&copies, &self.put, &found);
        without.extend(occupied.into_iter().map(|a| (a, Without::Occupied)));
        self.put.retain(|address, _| copies.contains_key(address));
        for address in remove {
            self.remove(address).await;
        }
        for (address, route) in put {
            let is_new = !self.put.contains_key(&address);
            match netlink::put(&self.netlink.handle, route.clone()).await {
                Ok(()) => {
                    self.put.insert(address, route);
                    if is_new {
                        let segments = self.job.segments;
                        tracing::info!(%address, segments, "connections to this relay begin with a larger window");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, %address, "cannot add a route");
                    without.insert(address, Without::Refused);
                    // No route is better than one that leads where the real route no longer does.
                    if !is_new {
                        self.remove(address).await;
                    }
                }
            }
        }
        self.say(&without, too_many);
        self.put.retain(|address, _| !without.contains_key(address));
        let status = &self.job.status;
        status.set(self.put.len(), without.len() + too_many);
        Ok(())
    }

    async fn remove(&mut self, address: IpAddr) {
        self.put.remove(&address);
        if let Err(error) = netlink::remove(&self.netlink.handle, address).await {
            // The route may have disappeared with its device.
            tracing::debug!(%error, %address, "cannot remove a route with an initial window");
        }
    }

    /// Logs, once per address, the reason why it has no route.
    fn say(&mut self, without: &BTreeMap<IpAddr, Without>, too_many: usize) {
        for (address, why) in without {
            if self.said.insert(*address, *why) != Some(*why) {
                let why = why.reason();
                tracing::info!(%address, why, "connections to this relay begin with 10 segments");
            }
        }
        self.said.retain(|address, _| without.contains_key(address));
        if too_many > 0 && !std::mem::replace(&mut self.said_too_many, true) {
            let why = Without::TooMany.reason();
            tracing::warn!(
                relays = too_many,
                why,
                "connections to some relays begin with 10 segments"
            );
        }
    }
}

/// The exclusive right to keep the routes. Dropping it removes the routes. Of two processes, one keeps
/// its routes and the other takes over when the first ends; neither removes the other's routes.
struct RouteLock {
    #[expect(dead_code, reason = "it is held, and released when it is dropped")]
    lock: NetnsLock,
}

// === impl RouteLock ===

impl RouteLock {
    /// Takes the lock. Returns `None` if another process has it.
    fn take() -> io::Result<Option<Self>> {
        let lock = NetnsLock::take(Exclusive::RouteMetrics)?;
        Ok(lock.map(|lock| Self { lock }))
    }
}

impl Drop for RouteLock {
    fn drop(&mut self) {
        let remove = || {
            runtime()?.block_on(async {
                let netlink = Netlink::connect()?;
                let remove = async {
                    netlink::remove_all(&netlink.handle).await;
                    Ok(())
                };
                netlink.run(remove).await
            })
        };
        let mut removed = Err(RouteMetricsError::Lost);
        for _ in 0..ATTEMPTS {
            removed = remove();
            if !matches!(removed, Err(RouteMetricsError::Lost)) {
                break;
            }
        }
        if let Err(error) = removed {
            tracing::warn!(
                "{error}; the routes stay; `ip rule flush protocol {PROTOCOL}` and `ip route flush table \
                 {TABLE}` take them away, with -6 for IPv6"
            );
        }
    }
}

fn runtime() -> Result<Runtime, RouteMetricsError> {
    taut_exposition::runtime::build(Builder::new_current_thread().enable_io().enable_time())
        .map_err(RouteMetricsError::Netlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_after_quiet_is_checked_at_once_and_others_once_a_second() {
        let looked = Instant::now();
        let mut schedule = Schedule::new(looked, true);
        assert_eq!(schedule.next(), looked + LOOK_AT_LEAST);
        schedule.ask();
        schedule.ask();
        // After a quiet time, this is in the past.
        assert_eq!(schedule.next(), looked + LOOK_AT_MOST);
    }

    #[tokio::test]
    async fn routes_that_another_process_has_are_tried_again_soon() {
        let looked = Instant::now();
        let schedule = Schedule::new(looked, false);
        assert_eq!(schedule.next(), looked + LOOK_AT_MOST);
    }
}
