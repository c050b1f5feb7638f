//! What the words of a filter stand for: networks, ports, states.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net};
use taut_sys::sock_diag::State;

use crate::filter::single;

pub(super) fn network(word: &str) -> Option<IpNet> {
    let word = word.trim_start_matches('[').trim_end_matches(']');
    let address = word.parse::<IpAddr>().ok().map(single);
    address.or_else(|| word.parse().ok()).map(canonical)
}

/// Returns a network of IPv4-mapped addresses (RFC 4291 section 2.5.5.2) as one of IPv4, which a socket of both
/// families also has.
fn canonical(net: IpNet) -> IpNet {
    let v4 = match net {
        IpNet::V4(_) => None,
        IpNet::V6(of) => of
            .addr()
            .to_ipv4_mapped()
            .zip(of.prefix_len().checked_sub(96)),
    };
    let v4 = v4.and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    v4.map_or(net, IpNet::V4)
}

pub(super) fn ports(word: &str) -> Option<RangeInclusive<u16>> {
    match word.split_once('-') {
        None => word.parse().ok().map(|port| port..=port),
        Some((from, to)) => {
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some(from..=to)
        }
    }
}

/// Parses the name of a state in the spelling of RFC 9293 or ss, or of ss's name for several, in
/// upper or lower case. Returns no state for one whose sockets are not shown; `None` if there is no
/// such name.
pub(super) fn states(name: &str) -> Option<Vec<State>> {
    const ALL: [State; 9] = [
        State::Established,
        State::SynSent,
        State::SynRecv,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::LastAck,
        State::Closing,
        State::Closed,
    ];
    let all_but = |without: &[State]| {
        let all = ALL.into_iter();
        Some(all.filter(|state| !without.contains(state)).collect())
    };
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|c| c.to_ascii_lowercase()).collect()
    };
    let name = match &*letters(name) {
        "all" => return all_but(&[]),
        "connected" => return all_but(&[State::Closed]),
        "synchronized" => return all_but(&[State::Closed, State::SynSent]),
        "bucket" => return Some(vec![State::SynRecv]),
        "big" => return all_but(&[State::SynRecv]),
        "listening" | "listen" | "timewait" => return Some(Vec::new()),
        "estab" => "established".to_owned(),
        "synrecv" => "synreceived".to_owned(),
        other => other.to_owned(),
    };
    let found = ALL.into_iter().find(|state| letters(state.name()) == name);
    found.map(|state| vec![state])
}
