//! The thread that sets interception up, tracks the devices, and removes interception.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use taut_sys::netns_lock::{Exclusive, NetnsLock};

use super::policy::{self, PolicyRoute};
use super::program::Program;
use super::rules::{Matched, Rule};
use super::{Exits, InterceptError, Method, Plan, nft, rules_of};
use crate::net::devices::devices_up;

/// The interval at which devices and the program's counters are read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The listener of a draining node's rules: none.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// The status of interception, for other threads.
#[derive(Debug, Default)]
pub(crate) struct Status(Mutex<Option<(Method, Exits)>>);

/// Intercepts until dropped.
#[derive(Debug)]
pub(crate) struct Interception {
    /// A message makes the thread intercept only the packets of existing connections. Dropping it ends the
    /// thread.
    drain: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    lock: Weak<NetnsLock>,
}

// === impl Status ===

impl Status {
    /// Returns the method in use and its counters (zero with nftables).
    pub(crate) fn get(&self) -> Option<(Method, Exits)> {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    fn set(&self, method: Method, exits: Exits) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((method, exits));
    }
}

// === impl Interception ===

impl Interception {
    /// Starts interception in the network namespace of the calling thread. With the lock of the process that
    /// this one replaces, it is set up beside that process's, which stays in force.
    ///
    /// # Errors
    /// [`InterceptError`]; nothing has changed then.
    pub(crate) fn start(
        plan: Plan,
        status: Arc<Status>,
        shared: Option<OwnedFd>,
    ) -> Result<Self, InterceptError> {
        let (drain, drained) = channel::<()>();
        // Everything must be removed in the namespace in which it was added. A thread of its own
        // stays in that namespace.
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("intercept".into())
            .spawn(move || match Work::begin(plan, status, shared) {
                Ok(mut work) => {
                    let _ = tell.send(Ok(work.lock.as_ref().map(Arc::downgrade)));
                    loop {
                        match drained.recv_timeout(LOOK_EVERY) {
                            Ok(()) => work.drain(),
                            Err(RecvTimeoutError::Timeout) => work.look(),
                            Err(RecvTimeoutError::Disconnected) => break,
                        }
                    }
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })
            .map_err(InterceptError::Thread)?;
        // Dropping it waits for the thread.
        let mut interception = Self {
            drain: Some(drain),
            thread: Some(thread),
            lock: Weak::new(),
        };
        let begun = told.recv().map_err(|_| InterceptError::Died)?;
        interception.lock = begun?.unwrap_or_default();
        Ok(interception)
    }

    /// Intercepts no new connections, and goes on with the existing ones.
    pub(crate) fn drain(&self) {
        if let Some(drain) = &self.drain {
            let _ = drain.send(());
        }
    }

    /// Returns the lock, to be shared with the process that replaces this one.
    pub(crate) fn lock(&self) -> Weak<NetnsLock> {
        self.lock.clone()
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        drop(self.drain.take());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

/// The state of the thread. The order of dropping: first packets are no longer marked, then the mark loses
/// its meaning.
struct Work {
    hook: Hook,
    policy: PolicyRoute,
    /// `None` only while it ends.
    lock: Option<Arc<NetnsLock>>,
    plan: Plan,
    drains: bool,
    status: Arc<Status>,
}

enum Hook {
    Program(Box<Program>),
    /// A table of nft, by its name.
    Table(String),
}

// === impl Work ===

impl Work {
    fn begin(
        plan: Plan,
        status: Arc<Status>,
        shared: Option<OwnedFd>,
    ) -> Result<Self, InterceptError> {
        taut_sys::socket::probe_transparent().map_err(|e| InterceptError::Transparent(e.into()))?;
        let lock = lock(shared)?;
        let named = plan.takings.iter().flat_map(|taking| &taking.devices);
        for device in named {
            if if_nametoindex(device.as_str()).is_err() {
                return Err(InterceptError::NoSuchDevice(device.clone()));
            }
        }
        // What the process that this one replaces has set up is in use.
        let beside = lock.is_shared();
        if !beside {
            remove_stale()?;
        }
        let program = match plan.method {
            Some(Method::Nft) => None,
            _ => match load(&plan) {
                Ok(program) => Some(Ok(program)),
                Err(error @ InterceptError::Program(_)) if plan.method.is_none() => {
                    Some(Err(error))
                }
                Err(error) => return Err(error),
            },
        };
        let (hook, policy) = match program {
            Some(Ok(mut program)) => {
                let policy = PolicyRoute::set_up(plan.mark, Method::Bpf, beside)?;
                // Packets must not get the mark before the policy route exists.
                program.set_rules(rules_of(&plan.takings, |d| if_nametoindex(d).ok()))?;
                (Hook::Program(Box::new(program)), policy)
            }
            refused => {
                let policy = PolicyRoute::set_up(plan.mark, Method::Nft, beside)?;
                match (nft::add_table(&plan), refused) {
                    (Ok(name), _) => (Hook::Table(name), policy),
                    (Err(nft), Some(Err(InterceptError::Program(program)))) => {
                        return Err(InterceptError::Neither { program, nft });
                    }
                    (Err(nft), _) => return Err(nft.into()),
                }
            }
        };
        let mut work = Self {
            hook,
            policy,
            lock: Some(Arc::new(lock)),
            plan,
            drains: false,
            status,
        };
        tracing::info!(
            "intercepting by {}, with packets marked {:#x}",
            work.method(),
            work.plan.mark
        );
        work.look();
        Ok(work)
    }

    fn method(&self) -> Method {
        match self.hook {
            Hook::Program(_) => Method::Bpf,
            Hook::Table(_) => Method::Nft,
        }
    }

    /// Intercepts no new connections. A process that has taken over may intercept others, and has listeners
    /// at the same ports.
    fn drain(&mut self) {
        self.drains = true;
        match &self.hook {
            Hook::Program(_) => self.look(),
            Hook::Table(name) => {
                if let Err(error) = nft::keep_existing(name, &self.plan) {
                    tracing::warn!("new connections may still be intercepted: {error}");
                }
            }
        }
    }

    fn rules(&self) -> BTreeMap<Rule, Matched> {
        let mut rules = rules_of(&self.plan.takings, |d| if_nametoindex(d).ok());
        if self.drains {
            rules.values_mut().for_each(|rule| rule.listener = NOWHERE);
        }
        rules
    }

    /// Updates the attachments for devices that were added, were removed, or have a new index.
    fn look(&mut self) {
        let mut exits = Exits::default();
        let rules = self.rules();
        if let Hook::Program(program) = &mut self.hook {
            // Rules are updated first: those of a removed device must not match another device.
            let followed = program.set_rules(rules).map_err(InterceptError::from);
            let followed = followed.and_then(|()| {
                let devices = devices(&self.plan)?;
                Ok(program.set_devices(&devices)?)
            });
            if let Err(error) = followed {
                tracing::debug!(%error, "cannot intercept at a network device");
            }
            exits = program.exits().unwrap_or_default();
        }
        self.status.set(self.method(), exits);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Of the processes that share the lock, the last one removes what belongs to the namespace.
        let lock = self.lock.take().and_then(Arc::into_inner);
        match lock.map_or(Ok(None), NetnsLock::into_sole) {
            Ok(Some(lock)) => {
                self.lock = Some(Arc::new(lock));
                self.policy.remove_at_end();
            }
            Ok(None) => self.policy.leave(),
            Err(error) => {
                tracing::warn!(%error, "the policy route stays; `taut doctor --repair` removes it");
                self.policy.leave();
            }
        }
        let removed = match (&self.lock, &self.hook) {
            (Some(_), _) => remove_stale_tables(),
            (None, Hook::Table(name)) => nft::remove_table(name).map_err(InterceptError::from),
            (None, Hook::Program(_)) => Ok(()),
        };
        if let Err(error) = removed {
            tracing::warn!(
                %error,
                "a table of nft stays; `taut doctor --repair` removes it, with the policy route"
            );
            self.policy.leave();
        }
    }
}

/// Loads the program and attaches it to its devices, without rules.
fn load(plan: &Plan) -> Result<Program, InterceptError> {
    let mut program = Program::load(plan.mark, plan.borrows)?;
    let devices = devices(plan)?;
    // One attached device is enough, unless devices are named.
    program.set_devices(&devices)?;
    Ok(program)
}

/// Returns the devices to attach to: the named ones, or all. Replies to clients' addresses may
/// arrive on any device, so borrowing requires all.
fn devices(plan: &Plan) -> Result<BTreeMap<u32, String>, InterceptError> {
    let anywhere = plan.borrows || plan.takings.iter().any(|taking| taking.devices.is_empty());
    let names = match anywhere {
        true => up()?,
        false => Vec::new(),
    };
    let named = plan
        .takings
        .iter()
        .flat_map(|taking| taking.devices.clone());
    let indexed = |name: String| Some((if_nametoindex(name.as_str()).ok()?, name));
    Ok(names.into_iter().chain(named).filter_map(indexed).collect())
}

/// Returns the devices that are up, except loopback.
fn up() -> Result<Vec<String>, InterceptError> {
    let failed = |e: io::Error| InterceptError::Devices(e);
    devices_up().map_err(failed)
}

/// Returns whether any process intercepts in this network namespace.
///
/// # Errors
/// If this process may not know: it needs CAP_NET_ADMIN.
pub fn is_running() -> io::Result<bool> {
    NetnsLock::is_taken(Exclusive::Interception)
}

/// Returns whether a killed relay has left rules or routes in this network namespace.
///
/// # Errors
/// [`InterceptError`]: the kernel does not answer.
pub fn is_abandoned() -> Result<bool, InterceptError> {
    if is_running().map_err(InterceptError::Thread)? {
        return Ok(false);
    }
    let parts = policy::presence()?;
    Ok(parts.iter().any(|part| part.rule || part.route))
}

/// Removes what a killed relay has left in this network namespace.
///
/// # Errors
/// [`InterceptError`]: `Taken` while a process intercepts.
pub fn remove_abandoned() -> Result<(), InterceptError> {
    let _lock = lock(None)?;
    remove_stale()
}

fn remove_stale() -> Result<(), InterceptError> {
    remove_stale_tables()?;
    Ok(PolicyRoute::remove_stale()?)
}

/// Removes the tables of nft, if a rule records that there are some.
fn remove_stale_tables() -> Result<(), InterceptError> {
    if PolicyRoute::stale()?.contains(&Method::Nft) {
        nft::remove_tables()?;
    }
    Ok(())
}

/// Acquires the right to intercept in this network namespace: exclusively, or together with the process that
/// has `shared` it.
fn lock(shared: Option<OwnedFd>) -> Result<NetnsLock, InterceptError> {
    let lock = NetnsLock::take(Exclusive::Interception).map_err(InterceptError::Lock)?;
    let adopt = || NetnsLock::adopt(Exclusive::Interception, shared?);
    lock.or_else(adopt).ok_or(InterceptError::Taken)
}
