//! nftables' TPROXY, for kernels that reject the BPF program.
//!
//! One table with one chain is added and removed as a whole. Unlike the program, the table does not
//! recognise answers to SYN cookies, so new connections fail during a SYN flood.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use taut_sys::privileges::{self, Capability};

use super::Plan;

/// The name of the table, in the family `inet`. A process that replaces another one adds its own beside that
/// one's, with a number at the end.
const NAME: &str = "taut_intercept";

/// The reason why nftables cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// `nft` is missing or cannot be run.
    #[error("cannot run `nft`: {0} (it is in the package nftables)")]
    Run(#[source] io::Error),
    /// `nft` or the kernel rejected the script.
    #[error("`nft` failed: {0}")]
    Refused(String),
}

/// Adds a table and returns its name.
pub(super) fn add_table(plan: &Plan) -> Result<String, NftError> {
    let present = tables()?;
    let numbered = (2..).map(|n: u32| format!("{NAME}_{n}"));
    let mut names = std::iter::once(NAME.to_owned()).chain(numbered);
    let name = names.find(|name| !present.contains(name));
    let name = name.unwrap_or_else(|| NAME.to_owned());
    nft(&script(&name, plan, true))?;
    Ok(name)
}

/// Reduces the table to existing connections.
pub(super) fn keep_existing(name: &str, plan: &Plan) -> Result<(), NftError> {
    nft(&script(name, plan, false)).map(drop)
}

/// Removes the table `name`, if there is one.
pub(super) fn remove_table(name: &str) -> Result<(), NftError> {
    nft(&removal(name)).map(drop)
}

/// Removes the tables of all relays.
pub(super) fn remove_tables() -> Result<(), NftError> {
    let removals: String = tables()?.iter().map(|name| removal(name)).collect();
    nft(&removals).map(drop)
}

/// Returns the names of the tables that relays have added.
fn tables() -> Result<Vec<String>, NftError> {
    let listed = nft("list tables inet\n")?;
    let names = listed
        .lines()
        .filter_map(|line| line.strip_prefix("table inet "));
    let is_ours = |name: &&str| {
        let rest = name.strip_prefix(NAME);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    Ok(names.filter(is_ours).map(str::to_owned).collect())
}

/// Returns the commands that remove the table, whether or not it exists.
fn removal(name: &str) -> String {
    // Deleting a missing table is an error; adding an existing one is not.
    format!("add table inet {name}\ndelete table inet {name}\n")
}

/// Returns the commands that replace the whole table in one transaction. Without `takes_new` it is for existing
/// connections only.
fn script(name: &str, plan: &Plan, takes_new: bool) -> String {
    let mark = plan.mark;
    let mut rules = String::new();
    // Existing connections in either direction. `wildcard 0` excludes listeners on every address,
    // which would match every packet.
    let known = "meta l4proto tcp fib daddr type != local socket transparent 1 socket wildcard 0";
    let _ = writeln!(rules, "    {known} meta mark set {mark} accept");
    let takings = plan.takings.iter().flat_map(|taking| {
        let of = move |(net, listener)| (net, listener, taking);
        taking.destinations().into_iter().map(of)
    });
    let mut takings: Vec<_> = takings.collect();
    // The narrowest destination comes first, as in the program; equal ones keep their order.
    takings.sort_by_key(|(net, ..)| std::cmp::Reverse(net.prefix_len()));
    for (net, listener, taking) in takings {
        let family = if net.addr().is_ipv4() { "ip" } else { "ip6" };
        let devices: Vec<_> = taking.devices.iter().map(|d| format!("\"{d}\"")).collect();
        let devices = match devices.is_empty() {
            true => "iifname != \"lo\"".to_owned(),
            false => format!("iifname {{ {} }}", devices.join(", ")),
        };
        // nft rejects a prefix of length 0; matching the family is enough.
        let to = match net.prefix_len() {
            0 if net.addr().is_ipv4() => "meta nfproto ipv4".to_owned(),
            0 => "meta nfproto ipv6".to_owned(),
            _ => format!("{family} daddr {net}"),
        };
        let ports: Vec<_> = taking.ports.iter().map(u16::to_string).collect();
        let ports = ports.join(", ");
        let place = match listener.ip() {
            ip if ip.is_unspecified() => format!(":{}", listener.port()),
            _ => listener.to_string(),
        };
        let which = format!("{devices} {to} tcp dport {{ {ports} }}");
        // During the handshake a connection is only a request socket, to which `wildcard` does not
        // apply.
        let _ = writeln!(
            rules,
            "    {which} fib daddr type != local socket transparent 1 meta mark set {mark} accept"
        );
        if !takes_new {
            continue;
        }
        let _ = writeln!(
            rules,
            "    {which} tcp flags & (fin | syn | rst | ack) == syn fib daddr type != local \
             tproxy {family} to {place} meta mark set {mark} accept"
        );
    }
    format!(
        "{}table inet {name} {{\n  chain take {{\n    type filter hook prerouting priority mangle; \
         policy accept;\n{rules}  }}\n}}\n",
        removal(name)
    )
}

/// Runs `nft` with `script` as its input, in the network namespace of the calling thread, and returns what it
/// prints.
fn nft(script: &str) -> Result<String, NftError> {
    let start = || {
        Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    // A relay that is not root's has the capability, and its programs would not.
    let child = privileges::with_inherited(&[Capability::NetAdmin], start);
    let mut child = child
        .map_err(|e| NftError::Run(io::Error::other(e)))?
        .map_err(NftError::Run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `nft` has exited, its own message is more useful than the broken pipe.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(NftError::Run)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            Err(NftError::Refused(said))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MARK, Taking};
    use super::*;

    #[test]
    fn the_script_names_the_narrowest_destination_first_and_only_first_segments() {
        let taking = |destinations: &[&str], listen: &[&str], devices: &[&str]| Taking {
            ports: vec![80, 443],
            destinations: destinations.iter().map(|d| d.parse().unwrap()).collect(),
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
            listen: listen.iter().map(|l| l.parse().unwrap()).collect(),
        };
        let plan = Plan {
            takings: vec![
                taking(&[], &["0.0.0.0:8443", "[::]:8443"], &[]),
                taking(&["192.0.2.0/24"], &["10.0.0.1:8444"], &["eth1", "eth2"]),
            ],
            borrows: false,
            mark: MARK,
            method: None,
        };
        let existing = script(NAME, &plan, false);
        assert!(!existing.contains("tproxy") && existing.contains("socket transparent"));
        let script = script(NAME, &plan, true);
        let lines: Vec<_> = script.lines().filter(|l| l.contains("tproxy")).collect();
        let rest = "tcp dport { 80, 443 } tcp flags & (fin | syn | rst | ack) == syn \
                    fib daddr type != local tproxy";
        for (line, start, end) in [
            (
                lines[0],
                "iifname { \"eth1\", \"eth2\" } ip daddr 192.0.2.0/24",
                "ip to 10.0.0.1:8444",
            ),
            (
                lines[1],
                "iifname != \"lo\" meta nfproto ipv4",
                "ip to :8443",
            ),
            (
                lines[2],
                "iifname != \"lo\" meta nfproto ipv6",
                "ip6 to :8443",
            ),
        ] {
            let expected = format!("    {start} {rest} {end} meta mark set 29793 accept");
            assert_eq!(line, expected);
        }
        assert_eq!(lines.len(), 3);
        assert!(script.starts_with("add table inet taut_intercept\ndelete table"));
    }
}
