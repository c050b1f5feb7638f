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
        is_own: true,
        enter: None,
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
            "this host dropped 32 segments; 40 were lost",
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
fn losses_before_drops_were_counted_are_not_compared_with_them() {
    let samples = sender(loses);
    let context = Context {
        host_drops: vec![drop(DropPlace::Netfilter, Direction::Sent, 7, 0)],
        host_drops_since: Some(samples[7].at),
        ..Context::default()
    };
    let verdict = verdict(&Window::of(&samples).unwrap(), &context);
    assert_eq!(verdict.factor, Factor::HostDrops);
    assert_eq!(
        &*verdict.evidence()[0].text,
        "this host dropped 7 segments; 12 were lost"
    );
    // Until a second sample follows, there is nothing to compare with but all of the window.
    let context = Context {
        host_drops_since: Some(samples[10].at),
        ..context
    };
    let verdict = super::verdict(&Window::of(&samples).unwrap(), &context);
    assert_eq!(verdict.factor, Factor::Loss);
}

#[test]
fn what_was_in_flight_when_drops_began_to_be_counted_may_be_lost_without_one() {
    // Of 40 losses 24 are repaired until the data of the first sample is acknowledged.
    let samples = sender(|scan, info| {
        loses(scan, info);
        info.total_retrans =
            if scan == 0 { 0 } else { 24 } + scan.saturating_sub(1) as u32 * 16 / 9;
    });
    let few = |segments| {
        with(
            &samples,
            vec![drop(DropPlace::Netfilter, Direction::Sent, segments, 0)],
        )
        .factor
    };
    assert_eq!(few(12), Factor::HostDrops);
    // But not nearly all of them.
    assert_eq!(few(9), Factor::Loss);
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
    // The next acknowledgement makes up for a lost one.
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
    assert_eq!(full.evidence()[1].text, "this host dropped 50 segments");
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
fn what_exceeds_the_mtu_of_a_device_is_the_paths_mtu_also_on_this_host() {
    let samples = sender(|scan, info| {
        info.total_retrans = scan.min(4) as u32;
        info.retransmits = u8::from(scan < 7);
        info.snd_mss = if scan < 7 { 1448 } else { 1024 };
    });
    let of = |place| with(&samples, vec![drop(place, Direction::Sent, 4, 0)]);
    let mtu = of(DropPlace::Mtu);
    assert_eq!(mtu.factor, Factor::PathMtu);
    assert!(mtu.evidence().pop().unwrap().drop.is_some());
    assert_eq!(of(DropPlace::Netfilter).factor, Factor::HostDrops);
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
    assert_eq!(
        (verdict.factor, verdict.confidence),
        (Factor::HostDrops, Confidence::Likely)
    );
    assert_eq!(verdict.evidence()[0].text, "this host dropped 40 segments");
}

#[test]
fn a_driver_that_frees_what_it_has_sent_without_a_reason_drops_nothing() {
    let samples = sender(loses);
    let freed = HostDrop {
        reason: "NOT_SPECIFIED".into(),
        ..drop(DropPlace::Other, Direction::Sent, 3500, 0)
    };
    assert_eq!(with(&samples, vec![freed.clone()]), found(&samples));
    let full = sender(|_, _| {});
    assert_eq!(with(&full, vec![freed.clone()]), found(&full));
    // What another place drops at the same time still counts.
    let rule = drop(DropPlace::Netfilter, Direction::Sent, 34, 0);
    let verdict = with(&samples, vec![freed.clone(), rule]);
    assert_eq!(verdict.factor, Factor::HostDrops);
    assert_eq!(verdict.evidence().len(), 2, "{:?}", verdict.evidence());
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

#[test]
fn one_drop_does_not_explain_what_is_unclear() {
    let samples = sender(|_, info| info.unacked = 2);
    assert_eq!(found(&samples).factor, Factor::Unclear);
    for count in [1, 4] {
        let few = vec![drop(DropPlace::Netfilter, Direction::Sent, count, 0)];
        assert_eq!(with(&samples, few).factor, Factor::Unclear, "{count}");
    }
    // Five of a million segments.
    let many = sender(|scan, info| {
        info.unacked = 2;
        info.data_segs_out = Some(scan as u32 * 100_000);
    });
    let few = vec![drop(DropPlace::Netfilter, Direction::Sent, 5, 0)];
    assert_eq!(with(&many, few).factor, Factor::Unclear);
}

#[test]
fn packets_that_only_have_the_addresses_of_the_connection_explain_no_more_than_was_lost() {
    let samples = sender(loses);
    let forged = |data_segments| HostDrop {
        is_own: false,
        ..drop(DropPlace::ReversePath, Direction::Sent, data_segments, 0)
    };
    assert_eq!(with(&samples, vec![forged(1_000_000)]), found(&samples));
    assert_eq!(with(&samples, vec![forged(81)]), found(&samples));
    assert_eq!(with(&samples, vec![forged(40)]).factor, Factor::HostDrops);
    let without_losses = sender(|_, info| info.unacked = 2);
    let verdict = with(&without_losses, vec![forged(40)]);
    assert_eq!(verdict.factor, Factor::Unclear);
}

#[test]
fn drops_in_another_namespace_are_never_sure() {
    let samples = sender(loses);
    let away = HostDrop {
        is_own: false,
        netns: Some("router".into()),
        ..drop(DropPlace::Netfilter, Direction::Sent, 40, 0)
    };
    let verdict = with(&samples, vec![away]);
    assert_eq!(
        (verdict.factor, verdict.confidence),
        (Factor::HostDrops, Confidence::Likely)
    );
}

#[test]
fn a_timer_that_expires_at_the_end_does_not_make_lost_acknowledgements_matter() {
    let samples = sender(|scan, info| {
        loses(scan, info);
        info.retransmits = u8::from(scan == LOOKS - 1);
    });
    let acks = vec![drop(DropPlace::Netfilter, Direction::Received, 0, 40)];
    assert_eq!(with(&samples, acks), found(&samples));
}

#[test]
fn a_name_that_a_shell_would_run_is_not_part_of_a_command() {
    let remedy = |name: &str| {
        let named = HostDrop {
            device: Some(name.into()),
            ..drop(DropPlace::Qdisc, Direction::Sent, 40, 0)
        };
        with(&sender(loses), vec![named]).remedy().unwrap()
    };
    assert!(remedy("veth1@if2.7").contains("dev veth1@if2.7`"));
    for name in ["$(reboot)", "`id`", "a;b", "a&b", "-batch", "a'b", "a|b"] {
        let remedy = remedy(name);
        assert!(remedy.contains("dev DEVICE`"), "{remedy}");
        assert!(!remedy.contains(name), "{remedy}");
    }
}

#[test]
fn what_is_wrong_with_a_packet_is_said_of_the_packet() {
    let sentence = |place| {
        let one = drop(place, Direction::Sent, 30, 0);
        with(&sender(loses), vec![one]).evidence()[1].text.clone()
    };
    assert_eq!(
        sentence(DropPlace::Mtu),
        "30 segments that this end sent exceed the MTU on eth0 (NETFILTER_DROP in nf_hook_slow)"
    );
    assert!(sentence(DropPlace::Route).contains("sent had no route"));
    assert!(sentence(DropPlace::TcIngress).starts_with("a tc ingress filter on eth0 dropped 30"));
}

#[test]
fn a_command_enters_the_namespace_of_the_drops() {
    let named = HostDrop {
        enter: Some("ip netns exec far".into()),
        ..drop(DropPlace::Netfilter, Direction::Sent, 40, 0)
    };
    let remedy = with(&sender(loses), vec![named]).remedy().unwrap();
    assert!(
        remedy.contains("`ip netns exec far nft list ruleset` or `ip netns exec far iptables-save"),
        "{remedy}"
    );
}
