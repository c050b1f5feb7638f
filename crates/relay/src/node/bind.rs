//! Binds addresses, or takes over sockets that are already bound.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use taut_sys::Errno;
use taut_sys::socket::{LegOptions, Listener, is_dual_stack};

use super::holdings::{BoundListener, Holdings};
use super::{ListenProblem, StartError};
use crate::handover::Passed;
use crate::net::addr::{Listen, ListenAddr};
use crate::route::listener::{ListenerId, NewListener, Purpose};
use crate::worker::BACKLOG;

/// The addresses of a list, and the sockets of each worker for them.
type Bound = (
    Vec<ListenAddr>,
    Vec<Vec<(ListenerId, Option<Arc<Listener>>)>>,
);

/// Binds every address once per worker, unless it is already bound.
pub(super) fn bind(
    listen: &[Listen],
    workers: usize,
    options: &LegOptions,
    before: &Holdings,
    next: &mut Holdings,
    transparent: bool,
    inherited: &mut Vec<Passed>,
) -> Result<Bound, StartError> {
    let listen_on = match transparent {
        true => Listener::bind_transparent,
        false => Listener::bind,
    };
    let mut own = Vec::new();
    let mut opened: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    let addrs = listen
        .iter()
        .flat_map(|listen| match dual_stack(listen, before, inherited) {
            Some(addr) => vec![addr],
            None => listen.addrs_here(),
        });
    for addr in addrs.collect::<Vec<_>>() {
        let problem = |e| StartError::Listen {
            addr,
            reason: listen_problem(addr, e),
        };
        let nth = next
            .bound
            .iter()
            .filter(|bound| bound.asked == addr)
            .count();
        if let Some(held) = before.held(addr, nth) {
            for worker in &mut opened {
                worker.extend(held.ids.iter().map(|&id| (id, None)));
            }
            own.extend(accepting(held.actual, held.accepts_ipv4()));
            next.bound.push(held.clone());
            continue;
        }
        let sockets = adopt(inherited, addr, workers, options).map_err(problem)?;
        if let Some(socket) = sockets.first() {
            own.extend(accepting(addr, is_dual_stack(socket)));
            let mut ids = Vec::new();
            for round in sockets.chunks(workers) {
                let id = next.new_listener();
                ids.push(id);
                for (worker, listener) in opened.iter_mut().zip(round) {
                    worker.push((id, Some(listener.clone())));
                }
            }
            next.bound.push(BoundListener {
                ids,
                asked: addr,
                actual: addr,
                listeners: sockets.iter().map(Arc::downgrade).collect(),
            });
            continue;
        }
        match Listener::probe(addr) {
            Ok(()) => {}
            // This node itself uses the port, at an address that it may be about to give up.
            Err(Errno::ADDRINUSE) if before.overlaps(addr) && !next.overlaps(addr) => {}
            Err(Errno::ADDRINUSE) => {
                let passed = inherited.iter().find(|p| p.addr.port() == addr.port());
                let passed = passed.map(|passed| ListenProblem::PassedAs(passed.addr));
                let reason = passed.unwrap_or(ListenProblem::InUse(addr.port()));
                return Err(StartError::Listen { addr, reason });
            }
            Err(e) => return Err(problem(e)),
        }
        // For port 0, the kernel chooses a port for the first socket; the others share it.
        let mut actual = addr;
        let id = next.new_listener();
        let mut listeners = Vec::with_capacity(workers);
        for worker in &mut opened {
            let listener = listen_on(actual, BACKLOG, options).map_err(problem)?;
            actual = listener.local_addr().map_err(problem)?;
            let listener = Arc::new(listener);
            listeners.push(Arc::downgrade(&listener));
            worker.push((id, Some(listener)));
        }
        own.push(ListenAddr(actual));
        next.bound.push(BoundListener {
            ids: vec![id],
            asked: addr,
            actual,
            listeners,
        });
    }
    Ok((own, opened))
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

/// Returns the addresses that a socket accepts connections at. At a specific address of IPv6 it gets none of IPv4,
/// although it may be dual-stack.
fn accepting(addr: SocketAddr, accepts_ipv4: bool) -> impl Iterator<Item = ListenAddr> {
    let accepts_ipv4 = accepts_ipv4 && addr.ip() == Ipv6Addr::UNSPECIFIED;
    let ipv4 = accepts_ipv4.then(|| (Ipv4Addr::UNSPECIFIED, addr.port()).into());
    ipv4.into_iter().chain([addr]).map(ListenAddr)
}

/// Removes the sockets at `addr` from `inherited`. The node listens on all of them, because clients
/// may wait in their queues. If there are fewer than `workers`, some workers share a socket.
fn adopt(
    inherited: &mut Vec<Passed>,
    addr: SocketAddr,
    workers: usize,
    options: &LegOptions,
) -> Result<Vec<Arc<Listener>>, Errno> {
    let (here, elsewhere) = std::mem::take(inherited)
        .into_iter()
        .partition::<Vec<_>, _>(|passed| passed.addr == addr);
    *inherited = elsewhere;
    let mut sockets = Vec::with_capacity(here.len().max(workers));
    for Passed { fd, .. } in here {
        sockets.push(Arc::new(Listener::from_fd(fd, options)?));
    }
    for i in sockets.len()..workers {
        let Some(socket) = sockets.get(i % sockets.len().max(1)) else {
            break;
        };
        let shared = Listener::from_fd(socket.duplicate()?, options)?;
        sockets.push(Arc::new(shared));
    }
    Ok(sockets)
}

/// Gives each worker its listeners of one purpose.
pub(super) fn assign(
    listeners: &mut [Vec<NewListener>],
    opened: Vec<Vec<(ListenerId, Option<Arc<Listener>>)>>,
    purpose: &Purpose,
    options: &LegOptions,
) {
    let listener = |(id, socket)| NewListener {
        id,
        socket,
        purpose: purpose.clone(),
        options: options.clone(),
    };
    for (worker, opened) in listeners.iter_mut().zip(opened) {
        worker.extend(opened.into_iter().map(listener));
    }
}

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
