//! Binds addresses, or takes over sockets that are already bound.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use taut_sys::Errno;
use taut_sys::socket::{LegOptions, Listener, is_dual_stack};

use super::error::{ListenProblem, StartError};
use super::holdings::{BoundListener, Holdings};
use crate::handover::Passed;
use crate::net::addr::{Listen, ListenAddr};
use crate::route::listener::{ListenerId, NewListener, Purpose};
use crate::worker::BACKLOG;

/// Binds the addresses of a configuration.
pub(super) struct Binder<'a> {
    /// What the node has bound already.
    before: &'a Holdings,
    /// The sockets that another process has bound, except those that have been adopted.
    inherited: Vec<Passed>,
    /// The listeners of each worker.
    listeners: Vec<Vec<NewListener>>,
}

/// Bound sockets that are not assigned to a forward or the mesh yet.
pub(super) struct Bound {
    /// The addresses that they accept connections at.
    pub(super) listen: Vec<ListenAddr>,
    /// Each worker's sockets; `None` for one that the worker already has.
    sockets: Vec<Vec<(ListenerId, Option<Arc<Listener>>)>>,
}

type Bind = fn(SocketAddr, i32, &LegOptions) -> Result<Listener, Errno>;

// === impl Binder ===

impl<'a> Binder<'a> {
    pub(super) fn new(workers: usize, before: &'a Holdings, inherited: Vec<Passed>) -> Self {
        Self {
            before,
            inherited,
            listeners: (0..workers).map(|_| Vec::new()).collect(),
        }
    }

    /// Binds each address once per worker, reusing sockets that are held or inherited. Records
    /// every address in `next`.
    pub(super) fn bind(
        &mut self,
        listen: &[Listen],
        options: &LegOptions,
        transparent: bool,
        next: &mut Holdings,
    ) -> Result<Bound, StartError> {
        let bind = match transparent {
            true => Listener::bind_transparent,
            false => Listener::bind,
        };
        let addrs = listen.iter().flat_map(|listen| {
            match dual_stack(listen, self.before, &self.inherited) {
                Some(addr) => vec![addr],
                None => listen.addrs_here(),
            }
        });
        let mut bound = Bound {
            listen: Vec::new(),
            sockets: self.listeners.iter().map(|_| Vec::new()).collect(),
        };
        for addr in addrs.collect::<Vec<_>>() {
            let asked = next.bound.iter().filter(|bound| bound.asked == addr);
            let held = match self.before.held(addr, asked.count()) {
                Some(held) => bound.keep(held),
                None => match self.take_passed(addr, options)? {
                    Some(sockets) => bound.add_passed(addr, sockets, next),
                    None => {
                        self.probe(addr, next)?;
                        bound.open(addr, bind, options, next)?
                    }
                },
            };
            next.bound.push(held);
        }
        Ok(bound)
    }

    /// Gives each worker its sockets, with their purpose.
    pub(super) fn assign(&mut self, bound: Bound, purpose: &Purpose, options: &LegOptions) {
        let listener = |(id, socket)| NewListener {
            id,
            socket,
            purpose: purpose.clone(),
            options: options.clone(),
        };
        for (worker, sockets) in self.listeners.iter_mut().zip(bound.sockets) {
            worker.extend(sockets.into_iter().map(listener));
        }
    }

    /// Returns the listeners of each worker, and the sockets that were passed for other addresses.
    pub(super) fn finish(self) -> (Vec<Vec<NewListener>>, Vec<Passed>) {
        (self.listeners, self.inherited)
    }

    /// Takes the sockets at `addr` that were passed; `None` if there is none. The node listens on all of them, because
    /// clients may wait in their queues. If there are fewer than workers, some workers share a socket.
    fn take_passed(
        &mut self,
        addr: SocketAddr,
        options: &LegOptions,
    ) -> Result<Option<Vec<Arc<Listener>>>, StartError> {
        let here = self.inherited.extract_if(.., |passed| passed.addr == addr);
        let here: Vec<_> = here.collect();
        let listener = |fd| Listener::from_fd(fd, options).map(Arc::new);
        let sockets = here.into_iter().map(|passed| listener(passed.fd));
        let shared = |sockets: Vec<Arc<Listener>>| {
            let missing = self.listeners.len().saturating_sub(sockets.len());
            let again = sockets.iter().cycle().take(missing);
            let again: Result<Vec<_>, _> =
                again.map(|socket| listener(socket.duplicate()?)).collect();
            Ok([sockets, again?].concat())
        };
        let sockets = sockets.collect::<Result<Vec<_>, Errno>>().and_then(shared);
        let sockets = sockets.map_err(|error| cannot_listen(addr, error))?;
        Ok((!sockets.is_empty()).then_some(sockets))
    }

    /// Checks that no other process listens on the address. If this node itself uses the port, the
    /// check cannot tell, and passes. It fails if the new configuration has the port already.
    fn probe(&self, addr: SocketAddr, next: &Holdings) -> Result<(), StartError> {
        match Listener::probe(addr) {
            Ok(()) => Ok(()),
            // This node itself has the port, at an address that the new configuration may drop.
            Err(Errno::ADDRINUSE) if self.before.overlaps(addr) && !next.overlaps(addr) => Ok(()),
            Err(Errno::ADDRINUSE) => {
                let mut passed = self.inherited.iter();
                let passed = passed.find(|passed| passed.addr.port() == addr.port());
                let passed = passed.map(|passed| ListenProblem::PassedAs(passed.addr));
                let reason = passed.unwrap_or(ListenProblem::InUse(addr.port()));
                Err(StartError::Listen { addr, reason })
            }
            Err(error) => Err(cannot_listen(addr, error)),
        }
    }
}

// === impl Bound ===

impl Bound {
    /// Adds an address whose sockets the workers already have.
    fn keep(&mut self, held: &BoundListener) -> BoundListener {
        for worker in &mut self.sockets {
            worker.extend(held.ids.iter().map(|&id| (id, None)));
        }
        self.listen
            .extend(accepting(held.actual, held.accepts_ipv4()));
        held.clone()
    }

    /// Adds inherited sockets, spread evenly over the workers.
    fn add_passed(
        &mut self,
        addr: SocketAddr,
        sockets: Vec<Arc<Listener>>,
        next: &mut Holdings,
    ) -> BoundListener {
        let first = sockets.first();
        let is_dual = first.is_some_and(|socket| is_dual_stack(&**socket));
        self.listen.extend(accepting(addr, is_dual));
        let mut ids = Vec::new();
        for round in sockets.chunks(self.sockets.len()) {
            let id = next.new_listener();
            ids.push(id);
            for (worker, listener) in self.sockets.iter_mut().zip(round) {
                worker.push((id, Some(listener.clone())));
            }
        }
        BoundListener {
            ids,
            asked: addr,
            actual: addr,
            listeners: sockets.iter().map(Arc::downgrade).collect(),
        }
    }

    /// Binds an address. For port 0, the kernel chooses a port for the first socket; the other
    /// workers' sockets bind the same port.
    fn open(
        &mut self,
        addr: SocketAddr,
        bind: Bind,
        options: &LegOptions,
        next: &mut Holdings,
    ) -> Result<BoundListener, StartError> {
        let mut actual = addr;
        let id = next.new_listener();
        let mut listeners = Vec::with_capacity(self.sockets.len());
        for worker in &mut self.sockets {
            let listener = bind(actual, BACKLOG, options).map_err(|e| cannot_listen(addr, e))?;
            actual = listener.local_addr().map_err(|e| cannot_listen(addr, e))?;
            let listener = Arc::new(listener);
            listeners.push(Arc::downgrade(&listener));
            worker.push((id, Some(listener)));
        }
        self.listen.push(ListenAddr(actual));
        Ok(BoundListener {
            ids: vec![id],
            asked: addr,
            actual,
            listeners,
        })
    }
}

/// Returns the address of the dual-stack socket that accepts both families of `:PORT`: one that was passed,
/// or that the node has already.
fn dual_stack(listen: &Listen, before: &Holdings, inherited: &[Passed]) -> Option<SocketAddr> {
    let Listen::All(port) = listen else {
        return None;
    };
    let addr = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
    let mut passed = inherited.iter().filter(|passed| passed.addr == addr);
    let held = before.held(addr, 0);
    let is_dual = held.is_some_and(BoundListener::accepts_ipv4)
        || passed.any(|passed| is_dual_stack(&passed.fd));
    is_dual.then_some(addr)
}

/// Returns the addresses that a socket accepts connections at. A socket bound to a specific IPv6
/// address accepts no IPv4, even if dual-stack.
fn accepting(addr: SocketAddr, accepts_ipv4: bool) -> impl Iterator<Item = ListenAddr> {
    let accepts_ipv4 = accepts_ipv4 && addr.ip() == Ipv6Addr::UNSPECIFIED;
    let ipv4 = accepts_ipv4.then(|| (Ipv4Addr::UNSPECIFIED, addr.port()).into());
    ipv4.into_iter().chain([addr]).map(ListenAddr)
}

fn cannot_listen(addr: SocketAddr, error: Errno) -> StartError {
    StartError::Listen {
        addr,
        reason: listen_problem(addr, error),
    }
}

/// Returns why listening at `addr` has failed with this error.
pub(super) fn listen_problem(addr: SocketAddr, error: Errno) -> ListenProblem {
    match error {
        Errno::ADDRINUSE => ListenProblem::InUse(addr.port()),
        Errno::ADDRNOTAVAIL => ListenProblem::NotHere,
        Errno::ACCESS => ListenProblem::Privileged,
        e => ListenProblem::Other(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_unspecified_address_accepts_ipv4_too() {
        let all = |addr: &str, is_dual| -> Vec<_> {
            let addrs = accepting(addr.parse().unwrap(), is_dual);
            addrs.map(|addr| addr.0.to_string()).collect()
        };
        assert_eq!(all("[::]:80", true), ["0.0.0.0:80", "[::]:80"]);
        assert_eq!(all("[::]:80", false), ["[::]:80"]);
        assert_eq!(all("[2001:db8::1]:80", true), ["[2001:db8::1]:80"]);
    }
}
