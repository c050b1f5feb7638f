//! Limits on the number of sessions of a relay node.

use taut_relay::config::DataPath;

use super::{Finding, Host, Severity, set};

/// The number of concurrent sessions that one relay node should hold.
const SESSIONS: u64 = 8_000;
const DESCRIPTORS_A_SESSION: u64 = 2;
const PIPES: u64 = DataPath::DEFAULT.max_pipes as u64;
const PIPE_BYTES: u64 = DataPath::DEFAULT.pipe_size as u64;
/// Descriptors for listeners, epoll instances, timers, logs and the metrics port.
const OTHER_DESCRIPTORS: u64 = 128;
/// Descriptors of a fully loaded node.
const DESCRIPTORS: u64 = SESSIONS * DESCRIPTORS_A_SESSION + PIPES * 2 + OTHER_DESCRIPTORS;
/// The smallest limit of descriptors that lets a world of the lab run with its servers.
const FEWEST_DESCRIPTORS: u64 = 256;
/// The length of a queue of incoming connections that holds the bursts a relay must accept.
const QUEUE: u64 = 1_024;

pub(super) fn assess(host: &Host) -> Vec<Finding> {
    let mut findings = vec![open_files(host)];
    findings.extend(file_max(host));
    findings.extend(pipe_pages(host));
    findings.extend(pipe_size(host));
    findings.extend(queue(
        host,
        "net.core.somaxconn",
        "connections can wait for accept",
    ));
    findings.extend(queue(
        host,
        "net.ipv4.tcp_max_syn_backlog",
        "handshakes can be in progress",
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
    // The kernel rejects a limit above fs.nr_open, so raise that first if needed.
    let raise = match host.number("fs.nr_open", 0) {
        Some(ceiling) if ceiling < wanted => format!("{} && ", set("fs.nr_open", wanted)),
        _ => String::new(),
    };
    let command = format!("{raise}prlimit --pid $$ --nofile={wanted}:{wanted}");
    if limit < FEWEST_DESCRIPTORS {
        let why = "too few descriptors for a relay or a lab world".to_owned();
        return Finding {
            severity: Severity::Blocks,
            ..Finding::slows(ID, limit, why, command)
        };
    }
    let why = format!("a relay started here holds {sessions} sessions instead of {SESSIONS}");
    Finding::slows(ID, limit, why, command)
}

fn file_max(host: &Host) -> Option<Finding> {
    const ID: &str = "fs.file-max";
    let value = host.number(ID, 0)?;
    Some(match value >= 2 * DESCRIPTORS {
        true => Finding::fine(ID, value, "enough open files for the whole machine"),
        false => {
            let why = "the machine runs out of open files before one relay is full";
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
                "the relay gets {} of its {PIPES} pipes and copies the other transfers",
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
            let why =
                format!("the kernel refuses the relay's pipes of {PIPE_BYTES} bytes, so it copies");
            Finding::slows(ID, value, why, set(ID, 1 << 20))
        }
    })
}

fn queue(host: &Host, id: &'static str, use_of: &str) -> Option<Finding> {
    let value = host.number(id, 0)?;
    Some(match value >= QUEUE {
        true => Finding::fine(id, value, "room for a burst of connections"),
        false => {
            let why = format!(
                "only {value} {use_of}; in a burst, others are delayed by a second or more"
            );
            Finding::slows(id, value, why, set(id, 4 * QUEUE))
        }
    })
}

fn ports(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.ip_local_port_range";
    let (low, high) = (host.number(ID, 0)?, host.number(ID, 1)?);
    let ports = (high + 1).saturating_sub(low);
    // A port stays in TIME_WAIT for a minute after its connection, so twice the number is needed.
    Some(match ports >= 2 * SESSIONS {
        true => Finding::fine(
            ID,
            format!("{low} {high}"),
            "enough ports for one upstream relay",
        ),
        false => {
            let why =
                format!("{ports} ports limit the sessions to one upstream relay to that number");
            Finding::slows(ID, format!("{low} {high}"), why, set(ID, "10240 65535"))
        }
    })
}
