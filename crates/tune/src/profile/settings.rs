//! Settings that are not about buffers, and are left alone unless they are asked for by the name of their profile: what each is made, and why. Pure.
//!
//! `security` has the thesis' settings (5.4.1, at its end) as they are in today's kernels. A setting that is as strict already, or stricter, stays.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use taut_observe::sanitize;
use taut_sys::route::Family;

use super::interface_name::InterfaceName;

/// Which settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The thesis' security settings.
    Security,
}

/// A setting of a namespace, or of one of its interfaces by its index. The journal has these, and no path: nothing else is ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// Whether connections can be made while the queue of those that are being made is full.
    SynCookies,
    /// After how many seconds without a word a peer is looked for, in connections of which that is asked.
    KeepaliveTime,
    /// Whether packets of IPv4 may say which way they go.
    SourceRoutes,
    /// The same of IPv6.
    Ipv6SourceRoutes,
    /// Whether redirects are believed on all interfaces.
    Redirects,
    /// Whether they are on one.
    InterfaceRedirects(u32),
    /// The same of IPv6, which has it for each interface only.
    InterfaceIpv6Redirects(u32),
}

/// What a setting may be.
enum Wanted {
    /// Off, which is zero.
    Off,
    /// On: one, if it is zero.
    On,
    /// This, or less.
    AtMost(i64),
}

// === impl Profile ===

impl Profile {
    /// The settings that a namespace has once.
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

    /// Those of each of its interfaces.
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
    /// The interface that has it, if it is one's.
    pub fn interface(self) -> Option<u32> {
        match self {
            Self::InterfaceRedirects(index) | Self::InterfaceIpv6Redirects(index) => Some(index),
            _ => None,
        }
    }

    /// The protocol of which it is.
    pub fn family(self) -> Option<Family> {
        match self {
            Self::InterfaceRedirects(_) | Self::SourceRoutes | Self::Redirects => Some(Family::V4),
            Self::InterfaceIpv6Redirects(_) | Self::Ipv6SourceRoutes => Some(Family::V6),
            // Of TCP over both.
            Self::SynCookies | Self::KeepaliveTime => None,
        }
    }

    /// Its directory, and its own name in it, below /proc/sys/net.
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

    /// Its file; `None`: an interface's, and it is not said how that is called.
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

    /// A setting that takes this one with it when it is changed: its file.
    pub fn beside(self) -> Option<&'static str> {
        match self {
            // inet_forward_change(): a host that becomes a router believes no redirects any more, and the other way round.
            Self::Redirects => Some("/proc/sys/net/ipv4/conf/all/forwarding"),
            _ => None,
        }
    }

    /// Its name, as sysctl(8) takes it, and fit for a terminal.
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

    fn wanted(self) -> Wanted {
        match self {
            Self::SynCookies => Wanted::On,
            Self::KeepaliveTime => Wanted::AtMost(1800),
            Self::Ipv6SourceRoutes => Wanted::AtMost(-1),
            Self::SourceRoutes
            | Self::Redirects
            | Self::InterfaceRedirects(_)
            | Self::InterfaceIpv6Redirects(_) => Wanted::Off,
        }
    }

    /// What it is to be made; `None`: what it is will do.
    pub fn tightened(self, now: i64) -> Option<i64> {
        match self.wanted() {
            Wanted::Off => (now != 0).then_some(0),
            Wanted::On => (now == 0).then_some(1),
            Wanted::AtMost(most) => (now > most).then_some(most),
        }
    }

    /// Why it is made that.
    pub fn because(self) -> &'static str {
        match self {
            Self::SynCookies => {
                "a flood of SYNs fills the queue of connections that are being made, and nobody else gets in"
            }
            Self::KeepaliveTime => {
                "a peer that has gone without a word is looked for only after that many seconds, and its connection keeps its memory until then"
            }
            Self::SourceRoutes => {
                "a packet that says which way it goes passes by filters, and brings the answers to an address that is forged"
            }
            Self::Ipv6SourceRoutes => {
                "a routing header of type 2, which only Mobile IPv6 needs, brings a packet to an address that it was not sent to"
            }
            Self::Redirects => {
                "whoever is in the same network can forge a redirect and have packets sent his way; a host believes it if this says so, \
                 whatever its interface's own setting says"
            }
            Self::InterfaceRedirects(_) => {
                "whoever is in the same network can forge a redirect and have packets sent his way; a host believes it if its interface says \
                 so, whatever conf.all says"
            }
            Self::InterfaceIpv6Redirects(_) => {
                "whoever is in the same network can forge a redirect and have packets sent his way; in IPv6 each interface's own setting decides"
            }
        }
    }

    /// What is expected of it.
    pub fn expected(self) -> &'static str {
        match self {
            Self::SynCookies => {
                "when that queue overflows, connections are made without a place in it; until then nothing is different"
            }
            Self::KeepaliveTime => {
                "connections that ask for keepalive, and set no time of their own, are probed after 30 minutes of silence"
            }
            Self::SourceRoutes => {
                "packets with a source route are dropped on all interfaces: each needs this setting, too"
            }
            Self::Ipv6SourceRoutes => {
                "packets with such a header are refused on all interfaces: the lesser of this and an interface's own setting holds"
            }
            Self::Redirects | Self::InterfaceRedirects(_) => {
                "when this and each interface's are off, packets go where the routes say, and nowhere else"
            }
            Self::InterfaceIpv6Redirects(_) => "packets go where the routes say, and nowhere else",
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
    fn what_is_laxer_is_made_stricter_and_nothing_is_loosened() {
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
            // The kernel takes whatever is not zero for yes.
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
    fn a_setting_is_where_the_program_says() {
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
        // As sysctl(8) takes it.
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
