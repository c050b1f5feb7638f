//! Filters for connections, by address, port, process and more: `dst 10.0.0.0/8 and dport 443`.
//!
//! The syntax is that of ss, and tcpdump's for addresses and ports. A filter is parsed once, which looks up the names in it
//! ([`Names`]), and is then matched against each connection.

mod names;
mod parse;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use glob::Pattern;
use ipnet::IpNet;
use taut_sys::sock_diag::{Connection, State};

pub use self::names::{Machine, Names};
pub use self::parse::FilterError;
use crate::ended::Ended;
use crate::owner::Process;

/// An expression that matches some connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Expr);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    All,
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Is(Test),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Net(Side, Vec<IpNet>),
    Port(Side, RangeInclusive<u16>),
    /// An address and a port of the same end.
    Endpoint(Side, Vec<IpNet>, RangeInclusive<u16>),
    Uid(u32),
    Cgroup(BTreeSet<u64>),
    Pid(u32),
    Process(Pattern),
    Container(Pattern),
    Netns(Pattern),
    State(Vec<State>),
    Cc(Pattern),
}

/// The end that a test applies to. As in ss, `src` is this end and `dst` the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Local,
    Remote,
    Either,
}

/// The properties of a connection that a filter can test.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// State of the connection.
    pub state: State,
    /// Name of the congestion control.
    pub congestion_control: Option<&'a str>,
    /// The user that owns the socket.
    pub uid: u32,
    /// ID of its cgroup (v2), if it is known.
    pub cgroup: Option<u64>,
    /// Name of the network namespace.
    pub netns: &'a str,
    /// The process that owns it, if it is known.
    pub process: Option<&'a Process>,
}

// === impl Subject ===

impl<'a> Subject<'a> {
    /// Returns the properties of a connection that a filter can test.
    pub fn of(netns: &'a str, connection: &'a Connection, process: Option<&'a Process>) -> Self {
        Self {
            local: connection.local,
            remote: connection.remote,
            state: connection.state,
            congestion_control: connection.congestion_control.as_ref().map(|cc| cc.as_str()),
            uid: connection.uid,
            cgroup: connection.cgroup,
            netns,
            process,
        }
    }

    /// Returns the properties of a connection that has ended.
    pub fn of_ended(ended: &'a Ended) -> Self {
        Self {
            local: ended.local,
            remote: ended.remote,
            state: State::Closed,
            congestion_control: None,
            uid: ended.uid,
            cgroup: ended.cgroup,
            netns: &ended.netns,
            process: ended.process.as_deref(),
        }
    }
}

// === impl Filter ===

impl Filter {
    /// Returns the filter that matches every connection.
    pub fn all() -> Self {
        Self(Expr::All)
    }

    /// Parses a filter, and looks up the names in it.
    ///
    /// # Errors
    /// [`FilterError`]: it is not valid, too large, or has a name that does not exist.
    pub fn parse(text: &str, names: &dyn Names) -> Result<Self, FilterError> {
        parse::parse(text, names).map(Self)
    }

    /// Whether the filter depends on the owner of a connection.
    pub fn needs_owner(&self) -> bool {
        self.0
            .any(&|test| matches!(test, Test::Pid(_) | Test::Process(_) | Test::Container(_)))
    }

    /// Whether the filter matches every connection.
    pub fn matches_all(&self) -> bool {
        self.0 == Expr::All
    }

    /// Whether the filter matches this connection.
    pub fn matches(&self, subject: &Subject<'_>) -> bool {
        self.0.matches(subject)
    }

    /// Returns a filter that also matches the other ends of the connections that this one matches, and
    /// perhaps more. It is this one if it says nothing about addresses or ports.
    pub(crate) fn and_other_ends(&self) -> Self {
        let other_ends = self.0.of_other_end(true);
        match (&self.0, other_ends) {
            (_, Expr::All) if !self.needs_owner() => self.clone(),
            (_, Expr::All) => Self(Expr::All),
            (own, other_ends) => Self(Expr::Or(vec![own.clone(), other_ends])),
        }
    }
}

impl std::str::FromStr for Filter {
    type Err = FilterError;

    /// Parses a filter with the names of this machine.
    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse(text, &Machine)
    }
}

// === impl Expr ===

impl Expr {
    fn matches(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Not(inner) => !inner.matches(subject),
            Self::And(all) => all.iter().all(|expr| expr.matches(subject)),
            Self::Or(any) => any.iter().any(|expr| expr.matches(subject)),
            Self::Is(test) => test.matches(subject),
        }
    }

    /// Returns an expression that matches at least the other ends of what this one matches; with
    /// `is_wide` false, at most those. What one end does not tell of the other matches all or none.
    fn of_other_end(&self, is_wide: bool) -> Self {
        let each = |all: &[Self]| -> Vec<Self> {
            let all = all.iter().map(|expr| expr.of_other_end(is_wide));
            all.collect()
        };
        match self {
            Self::All => Self::All,
            Self::Not(inner) => match inner.of_other_end(!is_wide) {
                Self::Not(inner) => *inner,
                inner => Self::Not(inner.into()),
            },
            Self::And(all) => {
                let mut all = each(all);
                all.retain(|expr| *expr != Self::All);
                match all.len() {
                    0 => Self::All,
                    _ => Self::And(all),
                }
            }
            Self::Or(any) => match each(any) {
                any if any.contains(&Self::All) => Self::All,
                any => Self::Or(any),
            },
            Self::Is(test) => match (test.of_other_end(), is_wide) {
                (Some(test), _) => Self::Is(test),
                (None, true) => Self::All,
                (None, false) => Self::Not(Self::All.into()),
            },
        }
    }

    fn any(&self, of: &impl Fn(&Test) -> bool) -> bool {
        match self {
            Self::All => false,
            Self::Not(inner) => inner.any(of),
            Self::And(all) | Self::Or(all) => all.iter().any(|expr| expr.any(of)),
            Self::Is(test) => of(test),
        }
    }
}

// === impl Test ===

impl Test {
    /// Returns the test that the other end of a connection passes if this end passes this one; `None`
    /// if this end does not tell.
    fn of_other_end(&self) -> Option<Self> {
        Some(match self {
            Self::Net(side, nets) => Self::Net(side.other(), nets.clone()),
            Self::Port(side, ports) => Self::Port(side.other(), ports.clone()),
            Self::Endpoint(side, nets, ports) => {
                Self::Endpoint(side.other(), nets.clone(), ports.clone())
            }
            Self::Uid(_)
            | Self::Cgroup(_)
            | Self::Pid(_)
            | Self::Process(_)
            | Self::Container(_)
            | Self::Netns(_)
            | Self::State(_)
            | Self::Cc(_) => return None,
        })
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        let process = |of: &dyn Fn(&Process) -> bool| subject.process.is_some_and(of);
        match self {
            Self::Net(side, nets) => side.any(subject, |end| is_in(nets, end)),
            Self::Endpoint(side, nets, ports) => side.any(subject, |end| {
                is_in(nets, end) && ports.contains(&end.port())
            }),
            Self::Uid(uid) => subject.uid == *uid,
            Self::Cgroup(ids) => subject.cgroup.is_some_and(|id| ids.contains(&id)),
            Self::Port(side, ports) => side.any(subject, |end| ports.contains(&end.port())),
            Self::Pid(pid) => process(&|process| process.pid == *pid),
            Self::Process(name) => process(&|process| name.matches(&process.name)),
            Self::Container(id) => {
                process(&|process| process.container.as_ref().is_some_and(|c| id.matches(c)))
            }
            Self::Netns(name) => name.matches(subject.netns),
            Self::State(states) => states.contains(&subject.state),
            Self::Cc(name) => subject
                .congestion_control
                .is_some_and(|cc| name.matches(cc)),
        }
    }
}

// === impl Side ===

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
            Self::Either => Self::Either,
        }
    }

    fn any(self, subject: &Subject<'_>, of: impl Fn(SocketAddr) -> bool) -> bool {
        match self {
            Self::Local => of(subject.local),
            Self::Remote => of(subject.remote),
            Self::Either => of(subject.local) || of(subject.remote),
        }
    }
}

fn is_in(nets: &[IpNet], end: SocketAddr) -> bool {
    let ip = end.ip().to_canonical();
    nets.iter().any(|net| net.contains(&ip))
}

/// Returns the network of a single address.
fn single(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

#[cfg(test)]
mod tests;
