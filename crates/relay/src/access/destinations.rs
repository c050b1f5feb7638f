//! The destinations that sessions may connect to.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::forms::Forms;
use super::nat64::Nat64Prefix;
use super::own::{MeshAddresses, OwnAddresses};
use super::rule::{Pattern, Rule};
use super::verdict::DestinationVerdict;
use super::{TooManyRules, blocks, bounded, name};

/// The allowed destinations. The default allows none, so a relay is never open by omission.
///
/// The order of the checks:
/// 1. A destination that matches a rule of `deny` is denied, even if `allow` matches it.
/// 2. Loopback, link-local, metadata, multicast and reserved addresses, the addresses of this
///    machine and those of the mesh are denied, unless a prefix in `allow` is at least as narrow as
///    the block that contains the address. `127.0.0.1:8080` allows that one port; `0.0.0.0/0:*` allows
///    none of these addresses.
/// 3. A prefix in `allow` allows the addresses that it contains. A name or `*` allows *public*
///    addresses only, so the owner of example.org's DNS cannot use a rule for example.org to reach
///    10.0.0.0/8.
///
/// An IPv4 address inside an IPv6 address (mapped, translated or tunnelled) is checked in both
/// forms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    own: OwnAddresses,
    mesh: MeshAddresses,
    nat64: Vec<Nat64Prefix>,
}

// === impl Destinations ===

impl Destinations {
    /// Allows destinations that match `allow` and not `deny`.
    ///
    /// # Errors
    /// [`TooManyRules`] if either list is too long.
    pub fn new(allow: Vec<Rule>, deny: Vec<Rule>) -> Result<Self, TooManyRules> {
        Ok(Self {
            allow: bounded(allow)?,
            deny: bounded(deny)?,
            ..Self::default()
        })
    }

    /// Sets the addresses of this machine. What they are is looked up at each check.
    pub fn set_own(&mut self, own: OwnAddresses) {
        self.own = own;
    }

    /// Sets the addresses of the relays of the mesh. What they are is looked up at each check.
    pub fn set_mesh(&mut self, mesh: MeshAddresses) {
        self.mesh = mesh;
    }

    /// Sets the prefixes of this network's NAT64. An address in one of them is checked as the IPv4
    /// address, too, that it is translated to.
    pub fn set_nat64(&mut self, prefixes: &[Nat64Prefix]) {
        self.nat64 = prefixes.to_vec();
    }

    /// Checks a destination that a client named, before any look-up.
    ///
    /// For a name, [`DestinationVerdict::Allowed`] only permits the look-up: check each resulting
    /// address with [`Destinations::check_addr`]. `host` may also be an address, with or without
    /// brackets; the verdict on an address is final.
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
        // It may resolve to an address in an allowed prefix.
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

    /// Checks an address before the relay connects to it. `by_name` is the name that resolved to
    /// this address, if any.
    pub fn check_addr(&self, addr: SocketAddr, by_name: Option<&str>) -> DestinationVerdict {
        let name = match by_name {
            Some(host) if literal(host).is_none() => match name::host_name(host) {
                Some(name) => Some(name),
                None => return DestinationVerdict::NotAName,
            },
            _ => None,
        };
        let port = addr.port();
        let forms = Forms::of(addr.ip(), &self.nat64);
        if self.deny.iter().any(|rule| denies(rule, port, forms, name)) {
            return DestinationVerdict::DeniedRule;
        }
        if let Some(verdict) = self.built_in(port, forms) {
            return verdict;
        }
        self.allowed(port, forms, name)
    }

    /// Returns whether one of `rules` matches an address, without the checks of [`Destinations::check_addr`].
    pub(crate) fn are_in(&self, rules: &[Rule], addr: SocketAddr) -> bool {
        let forms = Forms::of(addr.ip(), &self.nat64);
        rules.iter().any(|rule| {
            rule.ports.contains(addr.port())
                && match rule.pattern {
                    Pattern::Any => true,
                    Pattern::Prefix(net) => forms.alike().any(|form| net.contains(&form)),
                    Pattern::Name(_) | Pattern::Below(_) => false,
                }
        })
    }

    /// Returns the first built-in denial that no rule lifts.
    fn built_in(&self, port: u16, forms: Forms) -> Option<DestinationVerdict> {
        let mesh = |form: IpAddr| {
            let relay = self.mesh.contains(form).then_some(form);
            relay.map(|addr| (IpNet::from(addr), DestinationVerdict::MeshInternal))
        };
        let own = |form: IpAddr| {
            let own = self.own.contains(form).then_some(form);
            own.map(|addr| (IpNet::from(addr), DestinationVerdict::Own))
        };
        forms.all().find_map(|form| {
            let blocks = blocks::denied(form).copied();
            mesh(form)
                .into_iter()
                .chain(own(form))
                .chain(blocks)
                .find(|(block, _)| !self.opens(block, form, port))
                .map(|(_, verdict)| verdict)
        })
    }

    /// Returns whether a prefix in `allow` contains `form` and is no wider than `block`.
    fn opens(&self, block: &IpNet, form: IpAddr, port: u16) -> bool {
        self.allow.iter().any(|rule| match rule.pattern {
            Pattern::Prefix(net) => {
                rule.ports.contains(port) && net.contains(&form) && block.contains(&net)
            }
            _ => false,
        })
    }

    fn allowed(&self, port: u16, forms: Forms, name: Option<&str>) -> DestinationVerdict {
        let public = blocks::is_public(forms.host());
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

/// Returns whether `pattern` covers names and `name` is one of them.
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

#[cfg(test)]
mod tests;
