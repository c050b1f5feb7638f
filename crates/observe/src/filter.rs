//! Which connections are meant: `dst 10.0.0.0/8 and dport 443`, a process, a pid.
//!
//! The words are those of tcpdump and ss, read once and then asked of each connection.

mod parse;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use glob::Pattern;
use ipnet::IpNet;
use taut_sys::sock_diag::{Connection, State};

pub use self::parse::FilterError;
use crate::owner::Process;

/// An expression.
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
    Net(Side, IpNet),
    Port(Side, RangeInclusive<u16>),
    Pid(u32),
    Process(Pattern),
    Container(Pattern),
    Netns(Pattern),
    State(State),
    Cc(Pattern),
}

/// Of which end. The words `src` and `dst` are of this machine's point of view, as ss has them: this end,
/// and the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Local,
    Remote,
    Either,
}

/// What is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// This end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// State.
    pub state: State,
    /// Congestion control.
    pub congestion_control: Option<&'a str>,
    /// Namespace.
    pub netns: &'a str,
    /// Who has it, if it is known.
    pub process: Option<&'a Process>,
}

// === impl Subject ===

impl<'a> Subject<'a> {
    /// Returns what a filter can ask about a connection.
    pub fn of(netns: &'a str, connection: &'a Connection, process: Option<&'a Process>) -> Self {
        Self {
            local: connection.local,
            remote: connection.remote,
            state: connection.state,
            congestion_control: connection.congestion_control.as_ref().map(|cc| cc.as_str()),
            netns,
            process,
        }
    }
}

// === impl Filter ===

impl Filter {
    /// Every connection.
    pub fn all() -> Self {
        Self(Expr::All)
    }

    /// Whether it cannot be told without knowing who has the connection.
    pub fn asks_for_owner(&self) -> bool {
        self.0
            .any(&|test| matches!(test, Test::Pid(_) | Test::Process(_) | Test::Container(_)))
    }

    /// Whether every connection is meant.
    pub fn takes_all(&self) -> bool {
        self.0 == Expr::All
    }

    /// Whether this one is meant.
    pub fn takes(&self, subject: &Subject<'_>) -> bool {
        self.0.takes(subject)
    }
}

impl std::str::FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        parse::parse(text).map(Self)
    }
}

// === impl Expr ===

impl Expr {
    fn takes(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Not(inner) => !inner.takes(subject),
            Self::And(all) => all.iter().all(|expr| expr.takes(subject)),
            Self::Or(any) => any.iter().any(|expr| expr.takes(subject)),
            Self::Is(test) => test.takes(subject),
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
    fn takes(&self, subject: &Subject<'_>) -> bool {
        let process = |of: &dyn Fn(&Process) -> bool| subject.process.is_some_and(of);
        match self {
            Self::Net(side, net) => side.any(subject, |end| net.contains(&end.ip())),
            Self::Port(side, ports) => side.any(subject, |end| ports.contains(&end.port())),
            Self::Pid(pid) => process(&|process| process.pid == *pid),
            Self::Process(name) => process(&|process| name.matches(&process.name)),
            Self::Container(id) => {
                process(&|process| process.container.as_ref().is_some_and(|c| id.matches(c)))
            }
            Self::Netns(name) => name.matches(subject.netns),
            Self::State(state) => subject.state == *state,
            Self::Cc(name) => subject
                .congestion_control
                .is_some_and(|cc| name.matches(cc)),
        }
    }
}

// === impl Side ===

impl Side {
    fn any(self, subject: &Subject<'_>, of: impl Fn(SocketAddr) -> bool) -> bool {
        match self {
            Self::Local => of(subject.local),
            Self::Remote => of(subject.remote),
            Self::Either => of(subject.local) || of(subject.remote),
        }
    }
}

/// The network of one address.
fn single(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

#[cfg(test)]
mod tests;
