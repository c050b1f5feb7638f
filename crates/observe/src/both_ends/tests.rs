use proptest::prelude::*;

use super::*;
use crate::fuzzing;
use crate::tcp_settings::TcpSettings;

const HERE: &str = "10.0.0.1:5201";
const THERE: &str = "192.0.2.2:40000";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A line as `taut why --json` prints it, for the end `THERE`.
fn line(local: &str, remote: &str, sequence: Option<(u32, u32)>, verdict: &str) -> String {
    let sequence = sequence.map_or("null".to_owned(), |(sent, received)| {
        format!(r#"{{"sent":{sent},"received":{received}}}"#)
    });
    format!(
        r#"{{"local":"{local}","remote":"{remote}","sequence":{sequence},"process":{{"pid":7,"name":"curl"}},"verdict":{verdict}}}"#
    )
}

fn says(factor: &str, confidence: &str, shares: &[(&str, f64)]) -> String {
    let shares: Vec<_> = shares.iter().map(|(f, w)| format!("\"{f}\":{w}")).collect();
    let weight = shares.first().map_or("0", |_| "0.9");
    format!(
        r#"{{"factor":"{factor}","confidence":"{confidence}","weight":{weight},"shares":{{{}}},"evidence":[{{"text":"seen there"}}],"remedy":"do it there"}}"#,
        shares.join(",")
    )
}

fn report(verdict: &str) -> Report {
    Report::parse(&line(THERE, HERE, None, verdict)).unwrap()
}

fn verdict(shares: &[(Factor, f64)]) -> Verdict {
    let next = shares.get(1).map_or(0.0, |share| share.1);
    Verdict {
        factor: shares[0].0,
        confidence: confidence(shares[0].1, next),
        weight: shares[0].1,
        shares: shares.to_vec(),
        causes: Vec::new(),
        gain: None,
        settings: TcpSettings::default(),
        ends: None,
    }
}

/// Returns what both say: this end is the sender.
fn joint(here: &[(Factor, f64)], there: &str) -> Joint {
    let report = report(there);
    let other = report.find(addr(HERE), addr(THERE), None).unwrap();
    Joint::of(&verdict(here), true, other).unwrap()
}

#[test]
fn the_end_that_knows_decides() {
    use Factor::*;
    // The receiver knows whether it is its application or its buffer.
    let reads_slowly = says(
        "receiver-application",
        "sure",
        &[("receiver-application", 0.9)],
    );
    let both = joint(&[(ReceiveBuffer, 0.8)], &reads_slowly);
    assert_eq!(
        (both.factor, both.confidence, both.shown_by),
        (ReceiverApplication, Confidence::Sure, End::There)
    );
    // The receiver sees nothing: the sender's factor stays.
    let nothing = says("peer", "sure", &[("peer", 1.0)]);
    let both = joint(&[(Loss, 0.9)], &nothing);
    assert_eq!((both.factor, both.shown_by), (Loss, End::Here));
    // The receiver denies what the sender supposes: the sender's next factor.
    let both = joint(&[(ReceiverApplication, 0.6), (Link, 0.4)], &nothing);
    assert_eq!((both.factor, both.shown_by), (Link, End::Here));
    // The sender's kernel has measured for how long the window was used up.
    let both = joint(&[(ReceiveBuffer, 0.6), (SenderApplication, 0.3)], &nothing);
    assert_eq!((both.factor, both.shown_by), (ReceiveBuffer, End::Here));
    // The sender sees a descheduled machine, and the receiver knows that it is its own.
    let away = says("descheduled", "likely", &[("descheduled", 0.74)]);
    let both = joint(&[(Descheduled, 0.6)], &away);
    assert_eq!((both.factor, both.shown_by), (Descheduled, End::There));
    // A quota stops the reader.
    let shares = [("cpu-quota", 0.7), ("receiver-application", 0.2)];
    let both = joint(
        &[(ReceiverApplication, 0.9)],
        &says("cpu-quota", "likely", &shares),
    );
    assert_eq!((both.factor, both.shown_by), (CpuQuota, End::There));
}

#[test]
fn losses_are_drops_if_the_receivers_kernel_names_them() {
    use Factor::*;
    let dropped = says("host-drops", "likely", &[("host-drops", 0.74)]);
    for lost in [Loss, RateLimit, Timeouts] {
        let both = joint(&[(lost, 1.0)], &dropped);
        assert_eq!(
            (both.factor, both.confidence, both.shown_by),
            (HostDrops, Confidence::Likely, End::There)
        );
    }
    // A small share is less than what the sender knows.
    let unclear = says("peer", "likely", &[("peer", 0.6), ("host-drops", 0.3)]);
    assert_eq!(joint(&[(Loss, 1.0)], &unclear).factor, Loss);
}

#[test]
fn the_time_that_a_sender_waits_for_the_window_is_not_that_of_drops() {
    use Factor::*;
    let shares = [("host-drops", 0.5), ("receive-buffer", 0.2)];
    let dropped = says("host-drops", "likely", &shares);
    let waits = [(ReceiveBuffer, 0.6), (ReceiverApplication, 0.4)];
    let both = joint(&waits, &dropped);
    assert_eq!((both.factor, both.weight), (ReceiveBuffer, 1.0));
    let only = says("host-drops", "likely", &[("host-drops", 0.55)]);
    let both = joint(&waits, &only);
    assert_eq!((both.factor, both.shown_by), (ReceiveBuffer, End::Here));
}

#[test]
fn a_small_share_of_the_receivers_does_not_take_the_senders_whole_claim() {
    let shares = [("receiver-application", 0.8), ("receive-buffer", 0.19)];
    let there = says("receiver-application", "sure", &shares);
    let both = joint(&[(Factor::ReceiverApplication, 0.9)], &there);
    assert_eq!(
        (both.factor, both.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
}

#[test]
fn the_receivers_end_takes_what_the_sender_says() {
    let paced = says("pacing", "sure", &[("pacing", 0.95)]);
    let report = report(&paced);
    let other = report.find(addr(HERE), addr(THERE), None).unwrap();
    let both = Joint::of(&verdict(&[(Factor::Peer, 1.0)]), false, other).unwrap();
    assert_eq!(
        (both.factor, both.confidence, both.shown_by),
        (Factor::Pacing, Confidence::Sure, End::There)
    );
    assert_eq!(other.remedy(), Some("do it there"));
}

#[test]
fn sequence_numbers_find_a_connection_behind_address_translation() {
    let nothing = says("peer", "sure", &[]);
    let lines = [
        line(
            "172.16.0.9:443",
            "198.51.100.1:6000",
            Some((5_000, 900)),
            &nothing,
        ),
        // A SYN counts as a byte at the end that sent it.
        line(
            "172.16.0.9:443",
            "198.51.100.1:6001",
            Some((77, u32::MAX)),
            &nothing,
        ),
        // The same addresses as this end's by accident, and another connection.
        line(THERE, HERE, Some((1, 2)), &nothing),
    ];
    let report = Report::parse(&lines.join("\n")).unwrap();
    let base = |sent, received| Some(SequenceBase { sent, received });
    let found = report.find(addr(HERE), addr(THERE), base(0, 77)).unwrap();
    assert_eq!(found.remote, addr("198.51.100.1:6001"));
    assert!(!found.has_addresses(addr(HERE), addr(THERE)));
    assert!(
        report
            .find(addr(HERE), addr(THERE), base(300_000, 77))
            .is_none()
    );
    // Without sequence numbers the addresses are all there is.
    assert_eq!(
        report.find(addr(HERE), addr(THERE), None).unwrap().remote,
        addr(HERE)
    );
}

#[test]
fn an_address_is_the_same_in_both_notations() {
    let report = Report::parse(&line(
        "[::ffff:192.0.2.2]:40000",
        HERE,
        None,
        &says("peer", "sure", &[]),
    ))
    .unwrap();
    assert!(report.find(addr(HERE), addr(THERE), None).is_some());
}

#[test]
fn a_line_that_is_no_report_is_an_error_with_its_number() {
    let text = format!(
        "{}\n{{\"ended\":{{}}}}\n\nsudo: a password is required\n",
        line(THERE, HERE, None, "null")
    );
    let error = Report::parse(&text).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("line 4 is not of `taut why --json`: "),
        "{error}"
    );
}

#[test]
fn text_of_the_other_end_cannot_move_the_cursor() {
    let hostile = r#"{"factor":"a-new-one","confidence":"sure","weight":1e400,"evidence":[{"text":"\u001b[2J"}],"remedy":"\u202ex"}"#;
    assert!(Report::parse(&line(THERE, HERE, None, hostile)).is_err());
    let odd = hostile
        .replace("1e400", "7")
        .replace("sure", "\\u001b]0;x\\u0007");
    let error = Report::parse(&line(THERE, HERE, None, &odd))
        .unwrap_err()
        .to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
    let report = report(&hostile.replace("1e400", "7"));
    let other = report.find(addr(HERE), addr(THERE), None).unwrap();
    assert_eq!(other.evidence().next(), Some("\u{fffd}[2J"));
    assert_eq!(other.remedy(), Some("\u{fffd}x"));
    // A factor of a later version is none that is known here.
    let both = Joint::of(&verdict(&[(Factor::Link, 0.8)]), true, other).unwrap();
    assert_eq!(both.factor, Factor::Link);
}

fn shares() -> impl Strategy<Value = Vec<(Factor, f64)>> {
    prop::collection::vec(
        (prop::sample::select(Factor::ALL.to_vec()), -1.0..2.0),
        1..5,
    )
}

proptest! {
    #[test]
    fn any_text_is_a_report_or_an_error(text in ".{0,200}") {
        fuzzing::both_ends(text.as_bytes());
    }

    #[test]
    fn a_changed_report_is_a_report_or_an_error(at: prop::sample::Index, byte: u8) {
        let verdict = says("cpu-quota", "likely", &[("cpu-quota", 0.6), ("loss", 0.3)]);
        let mut text = line(THERE, HERE, Some((5, 6)), &verdict).into_bytes();
        *at.get_mut(&mut text) = byte;
        fuzzing::both_ends(&text);
    }

    /// Whatever the ends say, the verdict is not `peer`, and its figures are in range.
    #[test]
    fn two_ends_never_leave_it_to_the_peer(here in shares(), there in shares(), sends: bool) {
        let named: Vec<_> = there.iter().map(|(factor, weight)| (factor.name(), *weight)).collect();
        let report = report(&says(there[0].0.name(), "likely", &named));
        let other = report.find(addr(HERE), addr(THERE), None).unwrap();
        let both = Joint::of(&verdict(&here), sends, other).unwrap();
        prop_assert!(both.factor != Factor::Peer);
        prop_assert!((0.0..=1.0).contains(&both.weight));
    }
}
