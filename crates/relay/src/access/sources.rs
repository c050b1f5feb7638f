//! The sources that may connect.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use strum::VariantArray;

use super::forms::Forms;
use super::rule::{self, RuleError};
use super::{TooManyRules, bounded};

/// The client addresses that may connect. The default allows all: a forward leads to one
/// destination, and the listener's address and the firewall restrict its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    allow: Option<Vec<IpNet>>,
    deny: Vec<IpNet>,
}

/// A prefix of client addresses: `10.0.0.0/8`, `192.0.2.1`, `2001:db8::/32`, `[2001:db8::]/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePrefix(pub IpNet);

/// Whether a client may connect, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum SourceVerdict {
    /// The client may connect.
    Allowed,
    /// The client is not in the list of allowed sources.
    NotListed,
    /// A prefix denies the client.
    Denied,
}

// === impl Sources ===

impl Sources {
    /// Allows sources in `allow` (`None`: all; an empty list: none) that are not in `deny`.
    ///
    /// # Errors
    /// [`TooManyRules`] if either list is too long.
    pub fn new(
        allow: Option<Vec<SourcePrefix>>,
        deny: Vec<SourcePrefix>,
    ) -> Result<Self, TooManyRules> {
        let nets = |list: Vec<SourcePrefix>| -> Result<Vec<IpNet>, TooManyRules> {
            Ok(bounded(list)?.into_iter().map(|p| p.0).collect())
        };
        Ok(Self {
            allow: allow.map(nets).transpose()?,
            deny: nets(deny)?,
        })
    }

    /// Checks the address that a client connected from. An IPv4-mapped address is checked as IPv4;
    /// an address made by a NAT64 is checked in both forms.
    pub fn check(&self, client: IpAddr) -> SourceVerdict {
        let forms = Forms::of(client, &[]);
        let within = |net: &IpNet| forms.alike().any(|form| net.contains(&form));
        if self.deny.iter().any(within) {
            return SourceVerdict::Denied;
        }
        match &self.allow {
            Some(allow) if !allow.iter().any(within) => SourceVerdict::NotListed,
            _ => SourceVerdict::Allowed,
        }
    }
}

impl FromStr for SourcePrefix {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        rule::prefix(text, text).map(Self)
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl SourceVerdict ===

impl SourceVerdict {
    /// Every verdict.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NotListed => "source_not_listed",
            Self::Denied => "source_denied",
        }
    }

    /// Returns whether the client may connect.
    pub fn is_allowed(self) -> bool {
        self == Self::Allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<SourcePrefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn check(sources: &Sources, client: &str) -> SourceVerdict {
        sources.check(client.parse().unwrap())
    }

    #[test]
    fn every_source_may_connect_without_a_list() {
        let sources = Sources::default();
        for client in ["127.0.0.1", "10.0.0.1", "1.1.1.1", "2606:4700::1111"] {
            assert_eq!(check(&sources, client), SourceVerdict::Allowed);
        }
        let nobody = Sources::new(Some(Vec::new()), Vec::new()).unwrap();
        assert_eq!(check(&nobody, "127.0.0.1"), SourceVerdict::NotListed);
    }

    #[test]
    fn a_denial_wins_over_a_permission_in_every_spelling() {
        let allow = prefixes(&["10.0.0.0/8", "2001:db8::/32", "[2001:db9::1]"]);
        let sources = Sources::new(Some(allow), prefixes(&["10.66.0.0/16"])).unwrap();
        for (client, verdict) in [
            ("10.0.0.1", SourceVerdict::Allowed),
            ("::ffff:10.0.0.1", SourceVerdict::Allowed),
            ("64:ff9b::10.0.0.1", SourceVerdict::Allowed),
            ("10.66.0.1", SourceVerdict::Denied),
            ("::ffff:10.66.0.1", SourceVerdict::Denied),
            ("2001:db8::1", SourceVerdict::Allowed),
            ("2001:db9::1", SourceVerdict::Allowed),
            ("2001:db9::2", SourceVerdict::NotListed),
            // Anyone can use a tunnel's address: it proves nothing about the host behind it.
            ("2002:a00:1::1", SourceVerdict::NotListed),
        ] {
            assert_eq!(check(&sources, client), verdict, "{client}");
        }
    }

    #[test]
    fn a_bad_prefix_says_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<SourcePrefix>().unwrap_err().to_string();
        assert!(error("10.0.0.1/8").contains("did you mean 10.0.0.0/8?"));
        assert!(error("example.org").contains("is not an address prefix"));
        assert!(error("10.0.0.0/8:80").contains("is not an address prefix"));
        assert!(error("::ffff:10.0.0.0/104").contains("IPv4 written as IPv6"));
    }
}
