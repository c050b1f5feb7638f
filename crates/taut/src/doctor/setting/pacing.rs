//! Pacing of senders that use BBR by default.

use taut_sys::probe::Answer;

use super::{Device, Finding, Host, State, set};

/// The queueing discipline that paces, and the one that has one of it for each queue of a device.
const PACING: &str = "fq";
const MANY_QUEUES: &str = "mq";
/// Disciplines that devices get by default. Another one has been chosen by the administrator, and
/// may have classes and limits, which a replacement would delete.
const DEFAULTS: [&str; 3] = ["pfifo_fast", "fq_codel", "pfifo"];
/// What devices have that are down, and those whose driver queues itself, such as Wi-Fi.
const NO_QUEUES: [&str; 2] = ["noop", "noqueue"];

/// Whether a device paces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pacing {
    Paces,
    /// Not, and this discipline can take the place of its own.
    Not(&'static str),
    Unknown,
}

/// Checks that connections of BBR are paced by `fq`. Without it, each connection has a timer of its
/// own in TCP (since Linux 4.13), which costs CPU time and wakes for every few segments.
pub(super) fn assess(host: &Host) -> Option<Finding> {
    const ID: &str = "net.core.default_qdisc";
    // Only the first network namespace has it.
    let default = host.text(ID)?;
    let Some(control) = host.bbr() else {
        let control = host.text("net.ipv4.tcp_congestion_control")?;
        let why = format!("connections use {control}, which needs no pacing");
        return Some(Finding::fine(ID, default, why));
    };
    let timer =
        format!("each connection of {control} is paced by a timer of its own, at more CPU time");
    match &host.fq {
        Answer::Yes | Answer::NotLoaded { .. } => {}
        Answer::No(_) => {
            let why = format!("this kernel has no fq, so {timer}");
            return Some(Finding::fine(ID, default, why));
        }
        // A command that this kernel cannot run would be worse than none.
        Answer::NeedsRoot | Answer::Unknown(_) if default != PACING => {
            let state = match host.fq {
                Answer::NeedsRoot => State::NeedsRoot,
                _ => State::Unknown,
            };
            let why = format!("it cannot be told whether this kernel has fq; without it, {timer}");
            return Some(Finding::untold(ID, default, state, why));
        }
        Answer::NeedsRoot | Answer::Unknown(_) => {}
    }
    let devices = host.devices.iter();
    let devices = devices.filter(|device| !NO_QUEUES.contains(&&*device.qdisc));
    let others: Vec<_> = devices
        .map(|device| (device, pacing(device)))
        .filter(|(_, pacing)| *pacing != Pacing::Paces)
        .collect();
    let on = others
        .iter()
        .map(|(d, _)| format!("{} on {}", d.qdisc, d.name));
    let value: Vec<_> = std::iter::once(default.to_owned()).chain(on).collect();
    let value = value.join(", ");

    let first = (default != PACING).then(|| set(ID, PACING));
    let replace = others.iter().filter_map(|(device, pacing)| match pacing {
        Pacing::Not(new) => Some(format!("tc qdisc replace dev {} root {new}", device.name)),
        Pacing::Paces | Pacing::Unknown => None,
    });
    let commands: Vec<_> = first.into_iter().chain(replace).collect();
    Some(match (commands.is_empty(), others.is_empty()) {
        (true, true) => Finding::fine(ID, value, format!("it paces {control}")),
        (true, false) => Finding::untold(
            ID,
            value,
            State::Unknown,
            format!(
                "it cannot be told whether fq paces {control} there; `tc qdisc show` lists what is below"
            ),
        ),
        (false, _) => Finding::slows(
            ID,
            value,
            format!(
                "connections use {control}, and each is paced by a timer of its own, at more CPU time"
            ),
            commands.join(" && "),
        ),
    })
}

fn pacing(device: &Device) -> Pacing {
    let is_default = |qdisc: &str| DEFAULTS.contains(&qdisc);
    let below = &device.below;
    match &*device.qdisc {
        PACING => Pacing::Paces,
        MANY_QUEUES if below.is_empty() => Pacing::Unknown,
        MANY_QUEUES if below.iter().all(|qdisc| qdisc == PACING) => Pacing::Paces,
        // A new mq gets the new default for its queues.
        MANY_QUEUES
            if below
                .iter()
                .all(|qdisc| qdisc == PACING || is_default(qdisc)) =>
        {
            Pacing::Not(MANY_QUEUES)
        }
        qdisc if is_default(qdisc) => Pacing::Not(PACING),
        _ => Pacing::Unknown,
    }
}
