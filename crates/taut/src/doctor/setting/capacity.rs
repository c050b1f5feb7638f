//! Whether a node can hold the sessions it is meant for.

use taut_relay::config::DataPath;

use super::{Finding, Host, Severity, set};

/// What one relay node is meant to hold at a time.
const SESSIONS: u64 = 8_000;
const DESCRIPTORS_A_SESSION: u64 = 2;
const PIPES: u64 = DataPath::DEFAULT.max_pipes as u64;
const PIPE_BYTES: u64 = DataPath::DEFAULT.pipe_size as u64;
/// Listeners, epoll instances, timers, logs, the metrics port.
const OTHER_DESCRIPTORS: u64 = 128;
/// All of them at once.
const DESCRIPTORS: u64 = SESSIONS * DESCRIPTORS_A_SESSION + PIPES * 2 + OTHER_DESCRIPTORS;
/// Below this not even a world of the lab with its servers can be opened.
const FEWEST_DESCRIPTORS: u64 = 256;
/// A connect in flight has a place in this queue; a burst of them is what a relay is for.
const QUEUE: u64 = 1_024;

pub(super) fn judge(host: &Host) -> Vec<Finding> {
    let mut findings = vec![open_files(host)];
    findings.extend(file_max(host));
    findings.extend(pipe_pages(host));
    findings.extend(pipe_size(host));
    findings.extend(queue(
        host,
        "net.core.somaxconn",
        "connections wait to be accepted",
    ));
    findings.extend(queue(
        host,
        "net.ipv4.tcp_max_syn_backlog",
        "handshakes wait to be finished",
    ));
    findings.extend(ports(host));
    findings
}

fn open_files(host: &Host) -> Finding {
    const ID: &str = "RLIMIT_NOFILE";
    let limit = host.open_files;
    let sessions = limit.saturating_sub(PIPES * 2 + OTHER_DESCRIPTORS) / DESCRIPTORS_A_SESSION;
    if limit >= DESCRIPTORS {
        return Finding::fine(ID, limit, format!("room for {SESSIONS} sessions"));
    }
    let wanted = (2 * DESCRIPTORS).next_power_of_two();
    // Only the kernel's ceiling can stand in the way of the command; it is named then.
    let raise = match host.number("fs.nr_open", 0) {
        Some(ceiling) if ceiling < wanted => format!("{} && ", set("fs.nr_open", wanted)),
        _ => String::new(),
    };
    let command = format!("{raise}prlimit --pid $$ --nofile={wanted}:{wanted}");
    if limit < FEWEST_DESCRIPTORS {
        let why = "too few descriptors for a relay or a world of the lab".to_owned();
        return Finding {
            id: ID,
            value: limit.to_string(),
            severity: Severity::Blocks,
            why,
            command: Some(command),
        };
    }
    let why = format!("a relay of this shell holds {sessions} sessions, not {SESSIONS}");
    Finding::slows(ID, limit, why, command)
}

fn file_max(host: &Host) -> Option<Finding> {
    const ID: &str = "fs.file-max";
    let value = host.number(ID, 0)?;
    Some(match value >= 2 * DESCRIPTORS {
        true => Finding::fine(ID, value, "enough files for the whole machine"),
        false => {
            let why = "all processes together run out of files before one relay is full";
            Finding::slows(
                ID,
                value,
                why,
                set(ID, (4 * DESCRIPTORS).next_power_of_two()),
            )
        }
    })
}

fn pipe_pages(host: &Host) -> Option<Finding> {
    const ID: &str = "fs.pipe-user-pages-soft";
    let value = host.number(ID, 0)?;
    let wanted = PIPES * PIPE_BYTES / host.page;
    Some(match value {
        0 => Finding::fine(ID, value, "no limit"),
        _ if host.root => Finding::fine(ID, value, "root's pipes are not limited"),
        _ if value >= wanted => Finding::fine(ID, value, "room for the relay's pipes"),
        _ => {
            let why = format!(
                "the relay gets {} of its {PIPES} pipes; other transfers are copied",
                value * host.page / PIPE_BYTES
            );
            Finding::slows(ID, value, why, set(ID, wanted.next_power_of_two()))
        }
    })
}

fn pipe_size(host: &Host) -> Option<Finding> {
    const ID: &str = "fs.pipe-max-size";
    let value = host.number(ID, 0)?;
    Some(match value {
        _ if host.root => Finding::fine(ID, value, "root's pipes are not limited"),
        _ if value >= PIPE_BYTES => Finding::fine(ID, value, "room for the relay's pipes"),
        _ => {
            let why = format!("the relay's pipes of {PIPE_BYTES} bytes are refused: it copies");
            Finding::slows(ID, value, why, set(ID, 1 << 20))
        }
    })
}

fn queue(host: &Host, id: &'static str, what: &str) -> Option<Finding> {
    let value = host.number(id, 0)?;
    Some(match value >= QUEUE {
        true => Finding::fine(id, value, "room for a burst of connections"),
        false => {
            let why = format!("only {value} {what}; in a burst, others lose a second or more");
            Finding::slows(id, value, why, set(id, 4 * QUEUE))
        }
    })
}

fn ports(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.ip_local_port_range";
    let (low, high) = (host.number(ID, 0)?, host.number(ID, 1)?);
    let ports = (high + 1).saturating_sub(low);
    // A port rests for a minute after its connection ends (TIME_WAIT), so as many again.
    Some(match ports >= 2 * SESSIONS {
        true => Finding::fine(
            ID,
            format!("{low} {high}"),
            "enough ports to the next relay",
        ),
        false => {
            let why = format!("{ports} ports, so no more sessions than that to one next relay");
            Finding::slows(ID, format!("{low} {high}"), why, set(ID, "10240 65535"))
        }
    })
}
