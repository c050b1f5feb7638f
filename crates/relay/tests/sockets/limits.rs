//! Which clients may connect, how many sessions they may have, and how long they may be idle.

use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use taut_relay::access::{SourcePrefix, Sources};
use taut_relay::outcome::refusal::ClientRefusal;
use taut_relay::outcome::session_end::End;

use crate::mesh_rig::connect_from;
use crate::rig::*;

fn prefixes(texts: &[&str]) -> Vec<SourcePrefix> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A client that is refused.
fn expect_refusal(rig: &Rig, cause: ClientRefusal, so_far: u64) {
    expect_reset(rig.relay_addr());
    let metrics = rig.node.metrics();
    wait_until("the count", || metrics.refused(cause) == so_far + 1);
    let all = ClientRefusal::ALL
        .iter()
        .map(|cause| metrics.refused(*cause));
    assert_eq!(all.sum::<u64>(), so_far + 1);
}

#[test]
fn a_source_has_no_more_sessions_than_its_limit() {
    let rig = Rig::with(Path::Both, |config| {
        config.max_sessions_per_source = Some(2);
    });
    let mut pairs = vec![rig.pair(), rig.pair()];
    expect_refusal(&rig, ClientRefusal::SourceLimit, 0);
    // The place of an ended session is free again.
    let (client, server) = pairs.remove(0);
    drop((client, server));
    wait_until("the session's end", || rig.node.metrics().sessions() == 1);
    pairs.push(rig.pair());
    expect_refusal(&rig, ClientRefusal::SourceLimit, 1);
}

#[test]
fn a_source_opens_no_more_connections_than_its_rate_allows() {
    let rig = Rig::with(Path::Both, |config| {
        config.max_connects_per_source = 1;
    });
    let refused = || rig.node.metrics().refused(ClientRefusal::SourceRate) > 0;
    // Ten come at once; then it is one a second.
    let at_once: Vec<_> = (0..10).map(|_| rig.pair()).collect();
    // One that is reset may be so before connect(2) returns.
    let connect = |_| TcpStream::connect(rig.relay_addr());
    let _more: Vec<_> = (0..1000).map(connect).take_while(|_| !refused()).collect();
    wait_until("a refusal", refused);
    assert_eq!(rig.node.metrics().refused(ClientRefusal::SourceLimit), 0);
    drop(at_once);
}

#[test]
fn a_client_that_is_refused_because_the_node_is_full_does_not_count_for_its_source() {
    let rig = Rig::with(Path::Both, |config| {
        config.max_sessions = Some(1);
        config.max_sessions_per_source = Some(2);
        config.timeouts.queue = None;
    });
    let pair = rig.pair();
    for refused in 0..3 {
        expect_refusal(&rig, ClientRefusal::Full, refused);
    }
    drop(pair);
    wait_until("the session's end", || rig.node.metrics().sessions() == 0);
    rig.pair();
}

#[test]
fn a_forward_has_no_more_sessions_than_its_own_limit() {
    let rig = Rig::with(Path::Both, |config| {
        config.forwards[0].max_sessions = Some(1);
        config.timeouts.queue = None;
    });
    let pair = rig.pair();
    expect_refusal(&rig, ClientRefusal::ForwardFull, 0);
    drop(pair);
    wait_until("the session's end", || rig.node.metrics().sessions() == 0);
    rig.pair();
}

#[test]
fn when_the_node_is_full_an_idle_session_of_the_source_with_the_most_makes_room() {
    let rig = Rig::with(Path::Both, |config| {
        config.max_sessions = Some(3);
        config.workers = Some(1);
        config.timeouts.evict = Some(Duration::from_millis(1));
        config.timeouts.queue = None;
    });
    let metrics = rig.node.metrics();
    let connect = |source: &str| connect_from(source.parse::<IpAddr>().unwrap(), rig.relay_addr());
    let pair = |source: &str| {
        let client = connect(source).unwrap();
        (client, rig.server.accept().unwrap().0)
    };
    let (mut idlest, _far) = pair("127.0.0.1");
    let (_client, _far) = pair("127.0.0.1");
    let (mut other, mut other_far) = pair("127.0.0.2");
    // Until they have been idle for long enough, new clients are refused.
    let mut new = Vec::new();
    wait_until("room", || {
        new.extend(connect("127.0.0.3"));
        metrics.ended(End::Evicted) == 1
    });
    let _far = rig.server.accept().unwrap();
    assert_eq!(read_to_rst(&mut idlest), b"");
    // Each source has one now.
    let refused = metrics.refused(ClientRefusal::Full);
    if let Some(mut late) = connect("127.0.0.4") {
        assert_eq!(read_to_rst(&mut late), b"");
    }
    wait_until("a refusal", || {
        metrics.refused(ClientRefusal::Full) > refused
    });
    assert_eq!(metrics.ended(End::Evicted), 1);
    other.write_all(b"goes on").unwrap();
    end_writing(&other);
    assert_eq!(read_to_fin(&mut other_far), b"goes on");
}

#[test]
fn only_listed_sources_get_in() {
    let rig = Rig::with(Path::Both, |config| {
        config.forwards[0].sources =
            Sources::new(Some(prefixes(&["10.0.0.0/8"])), Vec::new()).unwrap();
    });
    expect_refusal(&rig, ClientRefusal::SourceNotListed, 0);
    let rig = Rig::with(Path::Both, |config| {
        config.forwards[0].sources = Sources::new(None, prefixes(&["127.0.0.0/8"])).unwrap();
    });
    expect_refusal(&rig, ClientRefusal::SourceDenied, 0);
    let rig = Rig::with(Path::Both, |config| {
        config.forwards[0].sources =
            Sources::new(Some(prefixes(&["127.0.0.1"])), prefixes(&["127.0.0.2"])).unwrap();
    });
    let (mut client, mut server) = rig.pair();
    client.write_all(b"listed").unwrap();
    end_writing(&client);
    assert_eq!(read_to_fin(&mut server), b"listed");
}

#[test]
fn a_session_that_is_silent_for_too_long_is_reset() {
    let rig = Rig::with(Path::Both, |config| {
        config.timeouts.idle = Some(Duration::from_millis(200));
    });
    let (mut client, mut server) = rig.pair();
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(read_to_rst(&mut server), b"");
    rig.expect_end(End::IdleTimeout);
}

#[test]
fn an_empty_source_list_allows_no_client() {
    let server = listen();
    server.set_nonblocking(true).unwrap();
    let rig = Rig::to(server, Path::Both, |config| {
        config.forwards[0].sources = Sources::new(Some(Vec::new()), Vec::new()).unwrap();
    });
    expect_refusal(&rig, ClientRefusal::SourceNotListed, 0);
    let error = rig.server.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}
