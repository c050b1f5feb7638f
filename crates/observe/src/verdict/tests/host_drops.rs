//! Losses that are drops on this machine.

use super::*;

fn drop(
    place: DropPlace,
    direction: Direction,
    data_segments: u64,
    other_segments: u64,
) -> HostDrop {
    HostDrop {
        place,
        reason: "NETFILTER_DROP".into(),
        function: Some("nf_hook_slow".into()),
        device: Some("eth0".into()),
        netns: None,
        direction,
        data_segments,
        other_segments,
    }
}

/// A sender that loses 40 of 3,500 segments without a queue. Its window is a sawtooth.
fn loses(scan: u64, info: &mut TcpInfo) {
    info.total_retrans = scan as u32 * 4;
    let rate = |scan: u64| 350_000 + 100_000 * (scan % 4);
    info.bytes_acked = Some((0..scan).map(rate).sum());
}

fn with(samples: &[Sample], host_drops: Vec<HostDrop>) -> Verdict {
    let context = Context {
        host_drops,
        ..Context::default()
    };
    verdict(&Window::of(samples).unwrap(), &context)
}

#[test]
fn losses_that_are_drops_on_this_host_are_named_with_their_place() {
    let samples = sender(loses);
    assert_eq!(found(&samples).factor, Factor::Loss);
    let drops = vec![
        drop(DropPlace::Netfilter, Direction::Sent, 30, 4),
        drop(DropPlace::Qdisc, Direction::Sent, 2, 0),
    ];
    let verdict = with(&samples, drops);
    assert_eq!(
        (verdict.factor, verdict.confidence),
        (Factor::HostDrops, Confidence::Sure)
    );
    let evidence = verdict.evidence();
    let texts: Vec<_> = evidence.iter().map(|one| &*one.text).collect();
    assert_eq!(
        texts,
        [
            "32 of 40 lost segments were dropped on this host",
            "a rule of netfilter (nftables or iptables) on eth0 dropped 34 segments that this end sent (NETFILTER_DROP in \
             nf_hook_slow)",
            "the queueing discipline on eth0 dropped 2 segments that this end sent (NETFILTER_DROP in nf_hook_slow)",
        ]
    );
    assert!(verdict.remedy().unwrap().contains("nft list ruleset"));
    let json = serde_json::to_value(&verdict).unwrap();
    assert_eq!(json["factor"], "host-drops");
    assert_eq!(json["evidence"][1]["drop"]["place"], "netfilter");
    assert_eq!(json["evidence"][0].get("drop"), None);
}

#[test]
fn a_few_drops_are_evidence_and_not_the_cause() {
    let samples = sender(loses);
    let few = with(
        &samples,
        vec![drop(DropPlace::Netfilter, Direction::Sent, 5, 0)],
    );
    assert_eq!(few.factor, Factor::Loss);
    let last = &few.evidence().pop().unwrap();
    assert!(last.drop.is_some(), "{last:?}");
    assert!(few.remedy().unwrap().contains("repair what loses packets"));
    // A lost acknowledgement is made up for by the next one.
    let acks = with(
        &samples,
        vec![drop(DropPlace::Netfilter, Direction::Received, 0, 100)],
    );
    assert_eq!(acks, found(&samples));
}

#[test]
fn a_full_path_stays_one_whatever_drops_packets() {
    let samples = sender(|_, _| {});
    let full = with(
        &samples,
        vec![drop(DropPlace::Qdisc, Direction::Sent, 50, 0)],
    );
    assert_eq!((full.factor, full.remedy()), (Factor::Link, None));
    assert_eq!(
        full.evidence()[1].text,
        "50 segments were dropped on this host"
    );
}

#[test]
fn a_long_queue_on_this_host_is_a_queue_unless_it_is_that_of_a_tap_device() {
    let samples = sender(|scan, info| {
        info.rtt = Some(Duration::from_millis(90));
        info.total_retrans = scan as u32;
    });
    let of = |place| with(&samples, vec![drop(place, Direction::Sent, 10, 0)]).factor;
    assert_eq!(of(DropPlace::Qdisc), Factor::Queue);
    assert_eq!(of(DropPlace::TapQueue), Factor::HostDrops);
}

#[test]
fn silence_is_explained_by_drops_in_either_direction_and_of_any_segment() {
    let samples = sender(|scan, info| {
        info.retransmits = 3;
        info.total_retrans = scan as u32;
    });
    assert_eq!(found(&samples).factor, Factor::Timeouts);
    let acks = with(
        &samples,
        vec![drop(DropPlace::ReversePath, Direction::Received, 0, 12)],
    );
    assert_eq!(acks.factor, Factor::HostDrops);
    let mut handshake = samples.clone();
    for sample in &mut handshake {
        sample.connection.state = State::SynSent;
    }
    let syn = with(
        &handshake,
        vec![drop(DropPlace::TapQueue, Direction::Sent, 0, 3)],
    );
    assert_eq!(
        (syn.factor, syn.confidence),
        (Factor::HostDrops, Confidence::Sure)
    );
    assert!(syn.remedy().unwrap().contains("eth0"), "{syn:?}");
}

#[test]
fn what_never_left_is_not_counted_as_lost() {
    // No rule names a factor: the congestion window has room, and a segment waits.
    let samples = sender(|_, info| info.unacked = 2);
    assert_eq!(found(&samples).factor, Factor::Unclear);
    let verdict = with(
        &samples,
        vec![drop(DropPlace::Netfilter, Direction::Sent, 40, 0)],
    );
    assert_eq!(verdict.factor, Factor::HostDrops);
    assert_eq!(
        verdict.evidence()[0].text,
        "40 segments were dropped on this host"
    );
}

#[test]
fn a_driver_that_frees_what_it_has_sent_without_a_reason_drops_nothing() {
    let samples = sender(loses);
    let freed = HostDrop {
        reason: "NOT_SPECIFIED".into(),
        ..drop(DropPlace::Other, Direction::Sent, 3500, 0)
    };
    assert_eq!(with(&samples, vec![freed.clone()]).factor, Factor::Loss);
    let lost = HostDrop {
        data_segments: 34,
        ..freed
    };
    assert_eq!(with(&samples, vec![lost]).factor, Factor::HostDrops);
}

#[test]
fn a_receiver_knows_what_is_dropped_before_it() {
    let samples: Vec<_> = (0..LOOKS)
        .map(|scan| {
            sample(scan * 500, |info| {
                info.bytes_received = Some(scan * 500_000);
                info.data_segs_in = Some(scan as u32 * 350);
            })
        })
        .collect();
    assert_eq!(found(&samples).factor, Factor::Peer);
    let of = |segments| {
        let drops = vec![drop(
            DropPlace::ReceiveBuffer,
            Direction::Received,
            segments,
            0,
        )];
        let verdict = with(&samples, drops);
        (verdict.factor, verdict.confidence)
    };
    assert_eq!(of(3), (Factor::Peer, Confidence::Likely));
    assert_eq!(of(30), (Factor::HostDrops, Confidence::Likely));
}
