//! Reads and sets `net.*` sysctls of a host.

use std::io;
use std::path::{Path, PathBuf};

use taut_sys::netns::Netns;

use super::{WorldError, congestion};

/// The congestion control of new connections.
pub(crate) const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

/// The settings that every host starts with, so that a world is the same on every machine: the kernel's
/// own defaults where machines differ, and no metrics saved from one connection to the next.
pub(crate) const DEFAULTS: &[(&str, &str)] = &[
    (CONGESTION, "cubic"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    // Addresses and neighbours are configured; IPv6's own discovery would only add traffic.
    ("net.ipv6.conf.all.disable_ipv6", "0"),
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.addr_gen_mode", "1"),
];

/// Further settings of a host with several links.
pub(crate) const FORWARDING: &[(&str, &str)] = &[
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
];

/// The settings of the namespace in the middle of a netem link, which must send nothing itself.
pub(crate) const MIDDLE: &[(&str, &str)] = &[
    ("net.ipv6.conf.all.disable_ipv6", "1"),
    ("net.ipv6.conf.default.disable_ipv6", "1"),
];

/// Sets `net.*` sysctls of the host in `netns`.
pub(crate) fn set<'a>(
    netns: &Netns,
    settings: impl Iterator<Item = (&'a str, &'a str)> + Send,
) -> Result<(), WorldError> {
    // Congestion controls that the machine does not allow. They need a thread outside the host.
    let refused = netns.run(|| {
        let mut refused = Vec::new();
        for (key, value) in settings {
            match write(key, value) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied && key == CONGESTION => {
                    refused.push(value);
                }
                Err(source) => return Err(failed(netns, key, value, source)),
                Ok(()) => {}
            }
        }
        Ok(refused)
    })??;
    for name in refused {
        congestion::allowing(name, || netns.run(|| write(CONGESTION, name)))
            .map_err(|source| failed(netns, CONGESTION, name, source))??
            .map_err(|source| failed(netns, CONGESTION, name, source))?;
    }
    Ok(())
}

fn write(key: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(key)?, value)
}

/// Reads a `net.*` sysctl of the host in `netns`, with single spaces between values.
pub(crate) fn get(netns: &Netns, key: &str) -> Result<String, WorldError> {
    let read = netns.run(|| path(key).and_then(std::fs::read_to_string))?;
    let text = read.map_err(|source| failed(netns, key, "(read)", source))?;
    Ok(text.trim_end().replace('\t', " "))
}

/// Returns the file of a sysctl. Accepts only `net.*`: others would change the whole machine.
fn path(key: &str) -> io::Result<PathBuf> {
    let rest = key
        .strip_prefix("net.")
        .filter(|rest| !rest.contains(['/', '\0']));
    let rest = rest.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Path::new("/proc/sys/net").join(rest.replace('.', "/")))
}

fn failed(netns: &Netns, key: &str, value: &str, source: io::Error) -> WorldError {
    WorldError::Sysctl {
        netns: netns.name().to_owned(),
        setting: format!("{key}={value}"),
        source,
    }
}
