//! Where clients may go.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::forms::Forms;
use super::rule::{Pattern, Rule};
use super::verdict::DestinationVerdict;
use super::{TooManyRules, blocks, bounded, name};

/// The destinations that are allowed. By default none is: there is no open relay by omission.
///
/// In this order:
/// 1. What a rule of `deny` fits is denied, whatever `allow` says.
/// 2. Loopback, link-local, metadata, multicast and reserved addresses, this machine's own and the
///    mesh's are denied, unless a prefix in `allow` is as narrow as the block of such addresses or
///    narrower: `127.0.0.1:8080` opens that one door, `0.0.0.0/0:*` opens none of them.
/// 3. A prefix in `allow` allows what it contains. A name or `*` allows *public* addresses only:
///    whoever runs example.org's DNS does not thereby reach 10.0.0.0/8.
///
/// IPv4 addresses that are written as IPv6 (mapped, translated, in a tunnel's address) are judged
/// as both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    own: Vec<IpAddr>,
    mesh: Vec<IpNet>,
}

// === impl Destinations ===

impl Destinations {
    /// Allows what `allow` says and `deny` does not take back.
    ///
    /// # Errors
    /// [`TooManyRules`] in one of the two.
    pub fn new(allow: Vec<Rule>, deny: Vec<Rule>) -> Result<Self, TooManyRules> {
        Ok(Self {
            allow: bounded(allow)?,
            deny: bounded(deny)?,
            ..Self::default()
        })
    }

    /// Says which addresses this machine has. Those that are denied anyway (127.0.0.1) need not be
    /// left out.
    pub fn set_own(&mut self, own: impl IntoIterator<Item = IpAddr>) {
        // 127.0.0.1 is loopback; were it "own" too, a rule for 127.0.0.0/8 would not open it.
        self.own = own
            .into_iter()
            .map(|addr| addr.to_canonical())
            .filter(|&addr| blocks::denied(addr).next().is_none())
            .collect();
    }

    /// Says what belongs to the mesh itself: the relays' own addresses, and prefixes that only
    /// relays may reach.
    pub fn set_mesh(&mut self, mesh: impl IntoIterator<Item = IpNet>) {
        self.mesh = mesh.into_iter().map(canonical).collect();
    }

    /// Judges a destination that a client named, before anything is looked up. Of a name,
    /// [`DestinationVerdict::Allowed`] means only that it may be looked up: each address that comes of it is
    /// to be judged by [`Destinations::check_addr`]. `host` may also be an address, with or without
    /// brackets; that is then judged for good.
    pub fn check_name(&self, host: &str, port: u16) -> DestinationVerdict {
        if let Some(ip) = literal(host) {
            return self.check_addr(SocketAddr::new(ip, port), None);
        }
        let Some(name) = name::host_name(host) else {
            return DestinationVerdict::NotAName;
        };
        let fits = |rule: &&Rule| rule.ports.contains(port);
        let denies = |rule: &Rule| match &rule.pattern {
            Pattern::Any => true,
            pattern => names(pattern, name),
        };
        if self.deny.iter().filter(fits).any(denies) {
            return DestinationVerdict::DeniedRule;
        }
        // It may have an address in an allowed prefix, which only its addresses can tell.
        let allows = |rule: &Rule| match &rule.pattern {
            Pattern::Any | Pattern::Prefix(_) => true,
            pattern => names(pattern, name),
        };
        if self.allow.iter().filter(fits).any(allows) {
            DestinationVerdict::Allowed
        } else {
            DestinationVerdict::NotListed
        }
    }

    /// Judges an address that is about to be connected to; `by_name` is the name that was looked up
    /// for it, if one was.
    pub fn check_addr(&self, addr: SocketAddr, by_name: Option<&str>) -> DestinationVerdict {
        let name = match by_name {
            Some(host) if literal(host).is_none() => match name::host_name(host) {
                Some(name) => Some(name),
                None => return DestinationVerdict::NotAName,
            },
            _ => None,
        };
        let port = addr.port();
        let forms = Forms::of(addr.ip());
        if self.deny.iter().any(|rule| denies(rule, port, forms, name)) {
            return DestinationVerdict::DeniedRule;
        }
        if let Some(verdict) = self.built_in(port, forms) {
            return verdict;
        }
        self.allowed(port, forms, name)
    }

    /// The first built-in denial that no rule lifts.
    fn built_in(&self, port: u16, forms: Forms) -> Option<DestinationVerdict> {
        let mesh = |form: IpAddr| {
            let own = self.mesh.iter().filter(move |net| net.contains(&form));
            own.map(|&net| (net, DestinationVerdict::MeshInternal))
        };
        let own = |form: IpAddr| {
            let own = self.own.iter().filter(move |&&addr| addr == form);
            own.map(|&addr| (IpNet::from(addr), DestinationVerdict::Own))
        };
        forms.all().find_map(|form| {
            let blocks = blocks::denied(form).copied();
            mesh(form)
                .chain(own(form))
                .chain(blocks)
                .find(|(block, _)| !self.opens(block, form, port))
                .map(|(_, verdict)| verdict)
        })
    }

    /// Whether `allow` names `form` by a prefix that is no wider than `block`.
    fn opens(&self, block: &IpNet, form: IpAddr, port: u16) -> bool {
        self.allow.iter().any(|rule| match rule.pattern {
            Pattern::Prefix(net) => {
                rule.ports.contains(port) && net.contains(&form) && block.contains(&net)
            }
            _ => false,
        })
    }

    fn allowed(&self, port: u16, forms: Forms, name: Option<&str>) -> DestinationVerdict {
        let public = forms.alike().any(blocks::is_public);
        let mut verdict = DestinationVerdict::NotListed;
        for rule in self.allow.iter().filter(|rule| rule.ports.contains(port)) {
            match &rule.pattern {
                Pattern::Prefix(net) if forms.alike().any(|form| net.contains(&form)) => {
                    return DestinationVerdict::Allowed;
                }
                Pattern::Prefix(_) => {}
                Pattern::Any if public => return DestinationVerdict::Allowed,
                Pattern::Any => verdict = DestinationVerdict::NotPublic,
                pattern if name.is_some_and(|name| names(pattern, name)) => {
                    if public {
                        return DestinationVerdict::Allowed;
                    }
                    verdict = DestinationVerdict::NotPublic;
                }
                Pattern::Name(_) | Pattern::Below(_) => {}
            }
        }
        verdict
    }
}

fn denies(rule: &Rule, port: u16, forms: Forms, name: Option<&str>) -> bool {
    rule.ports.contains(port)
        && match &rule.pattern {
            Pattern::Any => true,
            Pattern::Prefix(net) => forms.all().any(|form| net.contains(&form)),
            pattern => name.is_some_and(|name| names(pattern, name)),
        }
}

/// Whether `pattern` is of names and `name` one of them.
fn names(pattern: &Pattern, name: &str) -> bool {
    match pattern {
        Pattern::Name(own) => name::same(name, own),
        Pattern::Below(parent) => name::is_below(name, parent),
        Pattern::Prefix(_) | Pattern::Any => false,
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
}

/// An IPv4-mapped prefix as the IPv4 prefix that it is.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let v4 = v6.addr().to_ipv4_mapped();
    v4.zip(v6.prefix_len().checked_sub(96))
        .and_then(|(addr, len)| IpNet::new(addr.into(), len).ok())
        .unwrap_or(net)
}

#[cfg(test)]
mod tests;
