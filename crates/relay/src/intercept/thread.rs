//! The thread that sets interception up, tracks the devices, and removes interception.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use taut_sys::netns_lock::{Exclusive, NetnsLock};

use super::policy::{self, PolicyRoute};
use super::program::Program;
use super::{Exits, InterceptError, Method, Plan, nft, rules_of};
use crate::net::devices::devices_up;

/// The interval at which devices and the program's counters are read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The status of interception, for other threads.
#[derive(Debug, Default)]
pub(crate) struct Status(Mutex<Option<(Method, Exits)>>);

/// Intercepts until dropped.
#[derive(Debug)]
pub(crate) struct Interception {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
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
    /// Starts interception in the network namespace of the calling thread.
    ///
    /// # Errors [`InterceptError`]; nothing has changed then.
    pub(crate) fn start(plan: Plan, status: Arc<Status>) -> Result<Self, InterceptError> {
        let (stop, stopped) = channel::<()>();
        // Everything must be removed in the namespace in which it was added. A thread of its own
        // stays in that namespace.
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("intercept".into())
            .spawn(move || match Work::begin(plan, status) {
                Ok(mut work) => {
                    let _ = tell.send(Ok(()));
                    while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                        work.look();
                    }
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })
            .map_err(InterceptError::Thread)?;
        let interception = Self {
            stop: Some(stop),
            thread: Some(thread),
        };
        match told.recv() {
            Ok(begun) => begun.map(|()| interception),
            Err(_) => Err(InterceptError::Died),
        }
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        drop(self.stop.take());
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
    #[expect(dead_code, reason = "it is held, and released when it is dropped")]
    lock: NetnsLock,
    plan: Plan,
    status: Arc<Status>,
}

enum Hook {
    Program(Box<Program>),
    Table,
}

// === impl Work ===

impl Work {
    fn begin(plan: Plan, status: Arc<Status>) -> Result<Self, InterceptError> {
        taut_sys::socket::probe_transparent().map_err(|e| InterceptError::Transparent(e.into()))?;
        let lock = lock()?;
        let named = plan.takings.iter().flat_map(|taking| &taking.devices);
        for device in named {
            if if_nametoindex(device.as_str()).is_err() {
                return Err(InterceptError::NoSuchDevice(device.clone()));
            }
        }
        remove_stale()?;
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
                let policy = PolicyRoute::set_up(plan.mark, Method::Bpf)?;
                // Packets must not get the mark before the policy route exists.
                program.set_rules(rules_of(&plan.takings, |d| if_nametoindex(d).ok()))?;
                (Hook::Program(Box::new(program)), policy)
            }
            refused => {
                let policy = PolicyRoute::set_up(plan.mark, Method::Nft)?;
                match (nft::put_table(&plan), refused) {
                    (Ok(()), _) => {}
                    (Err(nft), Some(Err(InterceptError::Program(program)))) => {
                        return Err(InterceptError::Neither { program, nft });
                    }
                    (Err(nft), _) => return Err(nft.into()),
                }
                (Hook::Table, policy)
            }
        };
        let mut work = Self {
            hook,
            policy,
            lock,
            plan,
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
            Hook::Table => Method::Nft,
        }
    }

    /// Updates the attachments for devices that were added, were removed, or have a new index.
    fn look(&mut self) {
        let mut exits = Exits::default();
        if let Hook::Program(program) = &mut self.hook {
            // Rules are updated first: those of a removed device must not match another device.
            let rules = rules_of(&self.plan.takings, |d| if_nametoindex(d).ok());
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
        if let Hook::Table = self.hook
            && let Err(error) = nft::remove_table()
        {
            tracing::warn!(
                %error,
                "the table `{}` stays; `taut doctor --repair` removes it, with the policy route",
                nft::NAME
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
/// # Errors If this process may not know: it needs CAP_NET_ADMIN.
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
    let _lock = lock()?;
    remove_stale()
}

fn remove_stale() -> Result<(), InterceptError> {
    if PolicyRoute::stale()?.contains(&Method::Nft) {
        nft::remove_table()?;
    }
    Ok(PolicyRoute::remove_stale()?)
}

/// Acquires the exclusive right to intercept in this network namespace.
fn lock() -> Result<NetnsLock, InterceptError> {
    NetnsLock::take(Exclusive::Interception)
        .map_err(InterceptError::Lock)?
        .ok_or(InterceptError::Taken)
}
