//! Other programs that change what Taut changes, or get between a relay and its sockets.

use super::{Finding, Host, State};

/// A program that conflicts with a job of Taut.
struct Conflict {
    /// Its name, as in `/proc/PID/comm`.
    name: &'static str,
    /// What happens if both run.
    why: &'static str,
    /// Stops it, now and at the next boot.
    command: &'static str,
}

const CONFLICTS: &[Conflict] = &[Conflict {
    name: "bpftune",
    why: "it changes the buffer limits and congestion controls that taut tune and taut guest change",
    command: "systemctl disable --now bpftune",
}];

/// The names of the programs that conflict.
pub(crate) const CONFLICTING: &[&str] = &{
    let mut names = [""; CONFLICTS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = CONFLICTS[i].name;
        i += 1;
    }
    names
};

pub(super) fn assess(host: &Host) -> Vec<Finding> {
    let conflicts = CONFLICTS.iter().map(|conflict| conflicting(host, conflict));
    conflicts.chain([sockmap(host)]).collect()
}

fn conflicting(host: &Host, conflict: &Conflict) -> Finding {
    let Conflict { name, why, command } = *conflict;
    match host.running.iter().find(|(running, _)| *running == name) {
        None => Finding::fine(
            name,
            "not running",
            "nothing else changes what Taut changes",
        ),
        Some((_, pid)) => Finding::slows(
            name,
            format!("running, process {pid}"),
            why,
            command.to_owned(),
        ),
    }
}

/// Checks for BPF programs at a sockmap. Agents that observe applications put the sockets of every
/// process into one; Linux then takes data from a relay's sockets before it can be spliced
/// (commit 929e30f93125 counts it wrongly, too). It passes on whole segments, even if part of one
/// has arrived before (docs/design/relay.md).
fn sockmap(host: &Host) -> Finding {
    const ID: &str = "sockmap";
    let Some(programs) = &host.sockmap_programs else {
        return Finding::untold(
            ID,
            "unknown",
            State::NeedsRoot,
            "only root can list BPF programs, and so find an agent between a relay and its sockets",
        );
    };
    let Some((_, first)) = programs.first() else {
        return Finding::fine(
            ID,
            "no programs",
            "no agent is between a relay and its sockets",
        );
    };
    let named = |(name, id): &(String, u32)| format!("{name} (BPF program {id})");
    let all: Vec<_> = programs.iter().map(named).collect();
    let why = "an agent takes data from sockets with BPF; if it takes a relay's, the relay copies instead \
               of splicing, and Linux can deliver bytes twice after a retransmission; exclude taut in \
               the agent's configuration. This shows the program:";
    Finding::slows(
        ID,
        all.join(", "),
        why,
        format!("bpftool prog show id {first}"),
    )
}
