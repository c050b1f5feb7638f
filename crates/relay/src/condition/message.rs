//! The sentences of the log for a change of state.

use std::net::IpAddr;
use std::time::Duration;

use taut_sys::plural::counted;

use super::Condition;

/// Returns the warning at the beginning of a condition: what is broken, how many are affected, and
/// what to do. `example` is one of the affected clients or relays.
pub(crate) fn broken(
    condition: &Condition,
    cause: &str,
    affected: u64,
    example: Option<IpAddr>,
) -> String {
    let sessions = counted(affected, "session");
    let clients = counted(affected, "client");
    let place = condition.place();
    let example = example.map_or_else(String::new, |ip| format!(", the last from {ip}"));
    match condition {
        Condition::Destination { to, .. } => {
            let (what, hint) = destination(cause);
            format!("{place}: {to} {what}; {sessions} reset so far; {hint}")
        }
        Condition::Address { addr } => {
            let (what, hint) = destination(cause);
            format!("address {addr} {what}; new sessions avoid it; {hint}")
        }
        Condition::Destinations { .. } => {
            let (_, hint) = destination(cause);
            format!(
                "{place}: most destinations cannot be reached ({cause}); {sessions} reset so far; {hint}"
            )
        }
        Condition::Peer { peer } => {
            let (what, hint) = peer_failure(cause);
            format!("next relay {peer} {what}; {sessions} reset so far; {hint}")
        }
        Condition::LookUp { name } => {
            let now = match cause {
                "no_address" => "without an address, sessions to it are reset",
                _ => "its former addresses stay in use",
            };
            format!("cannot look up {name}: {now}; check the name and /etc/resolv.conf")
        }
        Condition::LookUpLimit { member } => {
            let party = party(member.as_deref());
            let of = match cause {
                "party" => format!("for {party}"),
                _ => "in all".to_owned(),
            };
            let now = match member {
                None => "addresses are renewed later",
                Some(_) => "their sessions are reset",
            };
            format!(
                "too many names are being looked up at once {of}: {} for {party} refused so far, {now}; check the \
                 servers in /etc/resolv.conf, and which names sessions ask for: `taut relay sessions`",
                counted(affected, "look-up")
            )
        }
        Condition::MaxSessions => format!(
            "relay.max_sessions are open; {clients} reset so far{example}; raise relay.max_sessions, or find \
             out who holds so many: `taut relay sessions`"
        ),
        Condition::SourceLimit => format!(
            "a source has relay.max_sessions_per_source open; {clients} reset so far{example}; raise the \
             limit if that source is one of yours"
        ),
        Condition::SourceRate => format!(
            "a source opens more than relay.max_connects_per_source a second; {clients} reset so far{example}; \
             raise the limit if that source is one of yours"
        ),
        Condition::UnprovenRate => format!(
            "a source opens more than relay.mesh.max_connects_per_source connections a second at the mesh port \
             without proving that it is a member; {} reset so far{example}; if that is one of your relays, compare \
             the keys of both, or else keep it out with `not_from`",
            counted(affected, "connection")
        ),
        Condition::MemberLimit { member } => format!(
            "relay {member} has relay.mesh.max_sessions_per_member open; {sessions} reset so far; raise it if \
             {member} needs so many, or find out whose they are: `taut relay sessions`"
        ),
        Condition::MaxReady { member } => format!(
            "no more connections can wait at the mesh port, and relay {member} has the most; {} withdrawn so far; \
             raise relay.mesh.max_ready, or lower pool_max at {member}; if {member} should not have so many, \
             replace its key",
            counted(affected, "connection")
        ),
        Condition::Accept => format!(
            "cannot accept connections: no descriptor or memory is left; {} failed so far; check `ulimit -n`, \
             LimitNOFILE in the systemd unit, and free memory",
            counted(affected, "attempt")
        ),
        Condition::Queue { .. } => format!(
            "{place}: all places are taken; {clients} waited for one so far; raise relay.max_sessions, or the \
             max_sessions of the forward, or find out who holds so many: `taut relay sessions`"
        ),
        Condition::Refused { .. } => {
            let hint = refused(cause);
            format!("{place} refuses clients ({cause}); {clients} reset so far{example}; {hint}")
        }
        Condition::Handshakes => format!(
            "connections at the mesh port fail the handshake ({cause}); {} so far{example}; if that is one \
             of your relays, compare the keys of both",
            counted(affected, "connection")
        ),
        Condition::Etcd => format!(
            "etcd cannot be used ({cause}): the list of members stays as it is, and the relay goes on; {}",
            etcd_failure(cause)
        ),
        Condition::MembersList => format!(
            "the list of members in etcd is refused ({cause}): the former list stays in use; {}",
            refused_list(cause)
        ),
        Condition::DuplicateName => "another process has announced itself in etcd by the name of this relay; \
                                     if a second relay has the private key of this one, give it a key and a \
                                     name of its own"
            .to_owned(),
        Condition::Expiry { what } => match cause {
            "expired" => format!("the {what} has expired; {}", renewal(what)),
            _ => format!("the {what} expires within 7 days; {}", renewal(what)),
        },
    }
}

/// Returns the message at the end of a condition.
pub(crate) fn well(condition: &Condition, lasted: Duration, affected: u64) -> String {
    let lasted = humantime::format_duration(Duration::from_secs(lasted.as_secs()));
    let sessions = were(affected, "session");
    let clients = were(affected, "client");
    let place = condition.place();
    match condition {
        Condition::Destination { to, .. } => format!(
            "{place}: {to} accepts connections again after {lasted}; {sessions} reset meanwhile"
        ),
        Condition::Address { addr } => {
            format!("address {addr} accepts connections again after {lasted}")
        }
        Condition::Destinations { .. } => format!(
            "{place}: destinations can be reached again after {lasted}; {sessions} reset meanwhile"
        ),
        Condition::Peer { peer } => format!(
            "next relay {peer} can be reached again after {lasted}; {} reset meanwhile",
            were(affected, "new session")
        ),
        Condition::LookUp { name } => format!("{name} can be looked up again after {lasted}"),
        Condition::LookUpLimit { member } => format!(
            "names are looked up for {} again; {} refused in {lasted}",
            party(member.as_deref()),
            were(affected, "look-up")
        ),
        Condition::MaxSessions => {
            format!("relay.max_sessions are no longer open; {clients} reset in {lasted}")
        }
        Condition::SourceLimit => format!(
            "no source exceeds relay.max_sessions_per_source any more; {clients} reset in {lasted}"
        ),
        Condition::SourceRate => format!(
            "no source exceeds relay.max_connects_per_source any more; {clients} reset in {lasted}"
        ),
        Condition::UnprovenRate => format!(
            "no source exceeds relay.mesh.max_connects_per_source any more; {} reset in {lasted}",
            were(affected, "connection")
        ),
        Condition::MemberLimit { member } => format!(
            "relay {member} no longer exceeds relay.mesh.max_sessions_per_member; {sessions} reset in {lasted}"
        ),
        Condition::MaxReady { .. } => format!(
            "connections can wait at the mesh port again; {} withdrawn in {lasted}",
            were(affected, "connection")
        ),
        Condition::Accept => format!("connections are accepted again after {lasted}"),
        Condition::Queue { .. } => {
            let clients = counted(affected, "client");
            format!("{place} has places again; {clients} waited for one in {lasted}")
        }
        Condition::Refused { .. } => {
            format!("{place} refuses no more clients; {clients} reset in {lasted}")
        }
        Condition::Handshakes => format!(
            "no more connections at the mesh port fail the handshake; {} in {lasted}",
            counted(affected, "connection")
        ),
        Condition::Etcd => format!("etcd can be used again after {lasted}"),
        Condition::MembersList => {
            format!("the list of members in etcd is accepted again after {lasted}")
        }
        Condition::DuplicateName => {
            format!("no other process has the name of this relay in etcd any more, after {lasted}")
        }
        Condition::Expiry { what } => format!("the {what} has been renewed"),
    }
}

/// Returns what to do about etcd.
fn etcd_failure(cause: &str) -> &'static str {
    match cause {
        "tls" => "check ca_file, cert_file and key_file, and the name in the server's certificate",
        "denied" => "check the user, its password and the role that it has in etcd",
        "files" => "check that the relay's user can read the files of [relay.mesh.etcd]",
        "look_up" => "check the names of the endpoints and /etc/resolv.conf",
        _ => "check the servers and the path to them; `taut relay status` has the last error",
    }
}

/// Returns what to do about a list that is refused.
fn refused_list(cause: &str) -> &'static str {
    match cause {
        "missing" => {
            "put the signed list back, with the prefix of relay.mesh.etcd: `etcdctl put /taut/members < FILE`"
        }
        "signature" => {
            "it is not signed by relay.mesh.members_key: someone may have changed it; sign it with `taut mesh sign`"
        }
        "older" => "put the newest signed list there; someone may have brought an old one back",
        "smaller" => {
            "it has lost more than half of the members: if that is intended, sign it with `taut mesh sign --smaller`"
        }
        "same_serial" => "two lists were signed with one serial; sign it again",
        "expired" => "sign it again with `taut mesh sign`",
        "not_written" => {
            "relay.mesh.members_file cannot be written: its directory must belong to the relay's user"
        }
        _ => "`taut relay status` says what is wrong with it",
    }
}

/// Returns how something that expires is renewed.
fn renewal(what: &str) -> &'static str {
    match what {
        "list of members" => {
            "sign it again with `taut mesh sign`; the relay goes on with it meanwhile"
        }
        _ => "renew it; the relay reads the files again when it connects",
    }
}

/// Returns what is wrong with a destination, and what to do.
fn destination(cause: &str) -> (&'static str, &'static str) {
    match cause {
        "connect_refused" => (
            "refuses connections",
            "check that the server runs and listens there",
        ),
        "connect_timed_out" => (
            "does not answer",
            "check the server, its firewall and the path to it",
        ),
        "look_up_failed" => ("has no address", "check the name and /etc/resolv.conf"),
        "no_resources" => (
            "cannot be dialled: this machine has no descriptor, port or memory left",
            "check `ulimit -n` and net.ipv4.ip_local_port_range",
        ),
        _ => (
            "cannot be reached",
            "check this machine's routes and firewall: `ip route get ADDRESS`",
        ),
    }
}

/// Returns what is wrong with a peer, and what to do.
fn peer_failure(cause: &str) -> (&'static str, &'static str) {
    match cause {
        "refused" => (
            "refuses connections",
            "check that the relay runs there and that its `listen` has this port",
        ),
        "timed_out" => (
            "does not answer",
            "check that relay, its firewall and the path to it",
        ),
        "closed" => (
            "closes connections in the handshake",
            "it may hold another key or not admit this relay; its log says more",
        ),
        "rejected" => (
            "does not prove its key",
            "it may hold another key; compare the keys of both",
        ),
        "no_resources" => (
            "cannot be dialled: this machine has no descriptor, port or memory left",
            "check `ulimit -n` and net.ipv4.ip_local_port_range",
        ),
        "full" => (
            "has no room for more ready connections of this relay",
            "raise relay.mesh.max_ready there, or lower pool_min or pool_max here; sessions go on",
        ),
        _ => (
            "cannot be reached",
            "check this machine's routes and firewall: `ip route get ADDRESS`",
        ),
    }
}

/// Returns what admits refused clients.
fn refused(cause: &str) -> &'static str {
    match cause {
        "source_not_listed" => "add their prefix to `from` to admit them",
        "source_denied" => "`not_from` excludes them",
        "forward_full" => "its `max_sessions` are open; raise them, or find out who holds so many",
        "no_route" => "every relay of its routes is drained or no longer a member",
        "client_hello" => "they sent no TLS ClientHello whose server name leads to a destination",
        "proxy_header" => {
            "they lack a valid PROXY protocol header, or their address is not in `proxy_from`"
        }
        _ => "`allow` does not list where they want to go",
    }
}

/// Returns for whom names are looked up.
fn party(member: Option<&str>) -> String {
    member.map_or_else(|| "this relay".to_owned(), |name| format!("relay {name}"))
}

fn were(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what} was"),
        _ => format!("{count} {what}s were"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_without_a_client_hello_are_not_sent_to_the_list_of_destinations() {
        let refused = Condition::Refused {
            forward: "web".into(),
        };
        let said = broken(&refused, "client_hello", 2, None);
        assert!(said.contains("no TLS ClientHello"), "{said}");
        let said = broken(&refused, "destination", 2, None);
        assert!(said.contains("`allow`"), "{said}");
    }

    #[test]
    fn whose_names_are_not_looked_up_is_said() {
        let limit = Condition::LookUpLimit {
            member: Some("fra1".to_owned()),
        };
        let said = broken(&limit, "party", 3, None);
        assert!(
            said.contains("at once for relay fra1: 3 look-ups for relay fra1 refused"),
            "{said}"
        );
        assert_eq!((limit.label(), limit.subject()), ("look_up_limit", "fra1"));
    }

    #[test]
    fn a_member_that_takes_more_than_its_share_is_named() {
        let member = "fra1".to_owned();
        let full = Condition::MaxReady {
            member: member.clone(),
        };
        let said = broken(&full, "max_ready", 3, None);
        assert!(
            said.contains("relay fra1 has the most; 3 connections withdrawn"),
            "{said}"
        );
        assert_eq!(full.subject(), "fra1");
        let limit = Condition::MemberLimit { member };
        let said = broken(&limit, "member_limit", 1, None);
        assert!(said.starts_with("relay fra1 has relay.mesh.max_sessions_per_member open"));
        let full = Condition::Peer {
            peer: "fra1".into(),
        };
        let said = broken(&full, "full", 0, None);
        assert!(said.starts_with("next relay fra1 has no room"), "{said}");
    }

    #[test]
    fn clients_that_wait_are_told_of() {
        let queue = Condition::Queue {
            forward: "web".into(),
        };
        let said = broken(&queue, "full", 1, None);
        assert!(
            said.starts_with("forward web: all places are taken; 1 client waited"),
            "{said}"
        );
        let said = well(&queue, Duration::from_secs(31), 40);
        assert_eq!(
            said,
            "forward web has places again; 40 clients waited for one in 31s"
        );
    }

    #[test]
    fn a_warning_names_the_object_the_cause_the_count_and_what_to_do() {
        let dead = Condition::Destination {
            forward: "web".into(),
            to: "192.0.2.1:80".into(),
        };
        assert_eq!(
            broken(&dead, "connect_refused", 14, None),
            "forward web: 192.0.2.1:80 refuses connections; 14 sessions reset so far; check that the server \
             runs and listens there"
        );
        assert_eq!(
            well(&dead, Duration::from_millis(192_400), 1),
            "forward web: 192.0.2.1:80 accepts connections again after 3m 12s; 1 session was reset meanwhile"
        );
        let wrong_key = Condition::Peer {
            peer: "fra1".into(),
        };
        let said = broken(&wrong_key, "closed", 0, None);
        assert!(
            said.starts_with("next relay fra1 closes connections in the handshake; 0 sessions")
        );
        assert!(said.contains("another key"));
        let refused = Condition::Refused {
            forward: "web".into(),
        };
        let from = Some("198.51.100.7".parse().unwrap());
        let said = broken(&refused, "source_denied", 3, from);
        assert!(said.contains("3 clients reset so far, the last from 198.51.100.7"));
    }
}
