//! The settings of each profile, with the required values and the reasons. Pure.
//!
//! `security` contains the settings of the thesis (end of 5.4.1), as they exist in today's kernels.
//! A setting that is already as strict, or stricter, stays.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use taut_observe::sanitize;
use taut_sys::route::Family;

use super::interface_name::InterfaceName;

/// A named set of settings, which are changed only on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The security settings of the thesis.
    Security,
}

/// A setting of a namespace, or of one of its interfaces by index. The journal stores these values
/// instead of paths, so that no other file is ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// Whether SYN cookies accept connections when the SYN queue is full.
    SynCookies,
    /// The seconds of silence after which keepalive probes a peer, on sockets that enable it.
    KeepaliveTime,
    /// Whether IPv4 packets with a source route are accepted.
    SourceRoutes,
    /// Whether IPv6 packets with a routing header are accepted.
    Ipv6SourceRoutes,
    /// Whether ICMP redirects are accepted on all interfaces.
    Redirects,
    /// Whether ICMP redirects are accepted on one interface.
    InterfaceRedirects(u32),
    /// Whether ICMPv6 redirects are accepted on one interface; IPv6 has no setting for all.
    InterfaceIpv6Redirects(u32),
}

/// The values that a setting may have.
enum Allowed {
    /// Only zero is allowed.
    Off,
    /// Any value except zero is allowed.
    On,
    /// This value or a smaller one is allowed.
    AtMost(i64),
}

// === impl Profile ===

impl Profile {
    /// Returns the settings that exist once in a namespace.
    pub fn of_namespace(self) -> &'static [Setting] {
        match self {
            Self::Security => &[
                Setting::SynCookies,
                Setting::KeepaliveTime,
                Setting::SourceRoutes,
                Setting::Ipv6SourceRoutes,
                Setting::Redirects,
            ],
        }
    }

    /// Returns the settings of the interface with this index.
    pub fn of_interface(self, index: u32) -> [Setting; 2] {
        match self {
            Self::Security => [
                Setting::InterfaceRedirects(index),
                Setting::InterfaceIpv6Redirects(index),
            ],
        }
    }
}

// === impl Setting ===

impl Setting {
    /// Returns the index of the interface that the setting belongs to, if any.
    pub fn interface(self) -> Option<u32> {
        match self {
            Self::InterfaceRedirects(index) | Self::InterfaceIpv6Redirects(index) => Some(index),
            _ => None,
        }
    }

    /// Returns the protocol that the setting applies to; `None` for TCP over both.
    pub fn family(self) -> Option<Family> {
        match self {
            Self::InterfaceRedirects(_) | Self::SourceRoutes | Self::Redirects => Some(Family::V4),
            Self::InterfaceIpv6Redirects(_) | Self::Ipv6SourceRoutes => Some(Family::V6),
            Self::SynCookies | Self::KeepaliveTime => None,
        }
    }

    /// Returns the directory below /proc/sys/net, and the name in it.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::SynCookies => ("ipv4", "tcp_syncookies"),
            Self::KeepaliveTime => ("ipv4", "tcp_keepalive_time"),
            Self::SourceRoutes => ("ipv4/conf/all", "accept_source_route"),
            Self::Ipv6SourceRoutes => ("ipv6/conf/all", "accept_source_route"),
            Self::Redirects => ("ipv4/conf/all", "accept_redirects"),
            Self::InterfaceRedirects(_) => ("ipv4/conf", "accept_redirects"),
            Self::InterfaceIpv6Redirects(_) => ("ipv6/conf", "accept_redirects"),
        }
    }

    /// Returns the path of the file; `None` if the setting belongs to an interface and `interface`
    /// is `None`.
    pub fn path(self, interface: Option<InterfaceName>) -> Option<PathBuf> {
        let (directory, name) = self.place();
        let mut path = PathBuf::from("/proc/sys/net");
        path.push(directory);
        if self.interface().is_some() {
            path.push(OsStr::from_bytes(interface?.as_bytes()));
        }
        path.push(name);
        Some(path)
    }

    /// Returns the path of a setting whose change makes the kernel change this one, too.
    pub fn companion(self) -> Option<&'static str> {
        match self {
            // inet_forward_change(): a host that becomes a router stops accepting redirects, and
            // the other way round.
            Self::Redirects => Some("/proc/sys/net/ipv4/conf/all/forwarding"),
            _ => None,
        }
    }

    /// Returns the name for sysctl(8), without control characters.
    pub fn name(self, interface: Option<InterfaceName>) -> String {
        let (directory, name) = self.place();
        let directory = directory.replace('/', ".");
        match self.interface() {
            None => format!("net.{directory}.{name}"),
            Some(index) => {
                let of = interface.map(|name| sanitize::text(name.as_bytes()).replace('.', "/"));
                let of = of.unwrap_or_else(|| format!("(interface {index})"));
                format!("net.{directory}.{of}.{name}")
            }
        }
    }

    fn allowed(self) -> Allowed {
        match self {
            Self::SynCookies => Allowed::On,
            Self::KeepaliveTime => Allowed::AtMost(1800),
            Self::Ipv6SourceRoutes => Allowed::AtMost(-1),
            Self::SourceRoutes
            | Self::Redirects
            | Self::InterfaceRedirects(_)
            | Self::InterfaceIpv6Redirects(_) => Allowed::Off,
        }
    }

    /// Returns the value to set; `None` if the present one is strict enough.
    pub fn tightened(self, now: i64) -> Option<i64> {
        match self.allowed() {
            Allowed::Off => (now != 0).then_some(0),
            Allowed::On => (now == 0).then_some(1),
            Allowed::AtMost(most) => (now > most).then_some(most),
        }
    }

    /// Returns the reason for changing the setting.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SynCookies => {
                "a flood of SYNs fills the SYN queue, and no other connection is accepted"
            }
            Self::KeepaliveTime => {
                "the connection of a peer that vanished keeps its memory until keepalive probes it, after this many seconds"
            }
            Self::SourceRoutes => {
                "a packet with a source route bypasses filters, and makes replies to a forged source address reach its sender"
            }
            Self::Ipv6SourceRoutes => {
                "a routing header of type 2, which only Mobile IPv6 needs, delivers a packet to an address other than its destination"
            }
            Self::Redirects => {
                "any host in the same network can forge a redirect and attract packets; a host accepts redirects if this setting is on, \
                 whatever the interface's own setting is"
            }
            Self::InterfaceRedirects(_) => {
                "any host in the same network can forge a redirect and attract packets; a host accepts redirects if the interface's setting \
                 is on, whatever conf.all is"
            }
            Self::InterfaceIpv6Redirects(_) => {
                "any host in the same network can forge a redirect and attract packets; in IPv6 each interface's own setting decides"
            }
        }
    }

    /// Returns the expected effect of the change.
    pub fn expected(self) -> &'static str {
        match self {
            Self::SynCookies => {
                "when the SYN queue overflows, connections are accepted without an entry in it; until then nothing changes"
            }
            Self::KeepaliveTime => {
                "connections that enable keepalive without a time of their own are probed after 30 minutes of silence"
            }
            Self::SourceRoutes => {
                "packets with a source route are dropped on all interfaces: accepting them needs this setting and the interface's"
            }
            Self::Ipv6SourceRoutes => {
                "packets with such a header are dropped on all interfaces: the lower of this and the interface's own setting applies"
            }
            Self::Redirects | Self::InterfaceRedirects(_) => {
                "when this and each interface's setting are off, only the routing table decides where packets go"
            }
            Self::InterfaceIpv6Redirects(_) => "only the routing table decides where packets go",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn all() -> Vec<Setting> {
        let profile = Profile::Security;
        let mut all = profile.of_namespace().to_vec();
        all.extend(profile.of_interface(7));
        all
    }

    #[test]
    fn lax_settings_are_tightened_and_none_is_loosened() {
        for (setting, now, to) in [
            (Setting::SynCookies, 0, Some(1)),
            (Setting::SynCookies, 1, None),
            (Setting::SynCookies, 2, None),
            (Setting::KeepaliveTime, 7200, Some(1800)),
            (Setting::KeepaliveTime, 1801, Some(1800)),
            (Setting::KeepaliveTime, 1800, None),
            (Setting::KeepaliveTime, 60, None),
            (Setting::SourceRoutes, 1, Some(0)),
            (Setting::SourceRoutes, 0, None),
            // The kernel treats any value except zero as on.
            (Setting::SourceRoutes, -1, Some(0)),
            (Setting::Ipv6SourceRoutes, 1, Some(-1)),
            (Setting::Ipv6SourceRoutes, 0, Some(-1)),
            (Setting::Ipv6SourceRoutes, -1, None),
            (Setting::Ipv6SourceRoutes, -2, None),
            (Setting::Redirects, 1, Some(0)),
            (Setting::Redirects, 0, None),
            (Setting::InterfaceRedirects(7), 1, Some(0)),
            (Setting::InterfaceRedirects(7), 0, None),
            (Setting::InterfaceIpv6Redirects(7), 1, Some(0)),
            (Setting::InterfaceIpv6Redirects(7), 0, None),
        ] {
            assert_eq!(setting.tightened(now), to, "{setting:?} {now}");
        }
        for setting in all() {
            for now in -3..9000 {
                let to = setting.tightened(now);
                assert_eq!(to.and_then(|to| setting.tightened(to)), None, "{setting:?}");
            }
        }
    }

    #[test]
    fn each_setting_has_its_path_and_name() {
        let name = InterfaceName::new(b"eth0.100");
        let paths = all().into_iter().map(|setting| setting.path(name).unwrap());
        let expected = [
            "ipv4/tcp_syncookies",
            "ipv4/tcp_keepalive_time",
            "ipv4/conf/all/accept_source_route",
            "ipv6/conf/all/accept_source_route",
            "ipv4/conf/all/accept_redirects",
            "ipv4/conf/eth0.100/accept_redirects",
            "ipv6/conf/eth0.100/accept_redirects",
        ];
        let expected = expected.map(|path| Path::new("/proc/sys/net").join(path));
        assert_eq!(paths.collect::<Vec<_>>(), expected);
        assert_eq!(Setting::InterfaceRedirects(7).path(None), None);
        assert_eq!(
            Setting::InterfaceRedirects(7).name(name),
            "net.ipv4.conf.eth0/100.accept_redirects"
        );
        let odd = InterfaceName::new(b"a\x1b[2J\xff");
        assert_eq!(
            Setting::InterfaceIpv6Redirects(7).name(odd),
            "net.ipv6.conf.a\u{fffd}[2J\u{fffd}.accept_redirects"
        );
        assert_eq!(
            Setting::Redirects.name(None),
            "net.ipv4.conf.all.accept_redirects"
        );
    }
}
