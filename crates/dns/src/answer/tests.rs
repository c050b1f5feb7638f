use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hickory_proto::rr::{RData, Record};
use proptest::collection::vec;
use proptest::prelude::*;

use hickory_proto::rr::rdata::opt::ClientSubnet;

use super::*;
use crate::cookie::Cookie;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Relay 0 has both families, 1 only IPv4, 2 only IPv6. Clients in 203.0.113.0/24 are nearest to 1,
/// others in 203.0.112.0/20 to 0, and those in 2001:db8:c::/48 to 2.
fn answers() -> Answers {
    let servers = vec![
        (name("ns1.x.example."), vec![IpAddr::from([192, 0, 2, 53])]),
        (name("ns2.other.example."), Vec::new()),
    ];
    let mut zone = Zone::new(name("x.example."), name("host.x.example."), 7, servers).unwrap();
    zone.add(name("www.x.example."), Node::Steered(Vec::new()))
        .unwrap();
    zone.add(name("only0.sub.x.example."), Node::Steered(vec![0]))
        .unwrap();
    let ms = Duration::from_millis;
    let measured = [
        ("203.0.112.0/20", 0, 10),
        ("203.0.112.0/20", 1, 20),
        ("203.0.113.0/24", 1, 5),
        ("2001:db8:c::/48", 2, 5),
    ];
    let measured = measured.map(|(net, relay, rtt)| (net.parse().unwrap(), relay, ms(rtt)));
    let relay = |i: u8| Relay {
        name: format!("r{i}"),
        v4: (i != 2).then(|| Ipv4Addr::new(198, 51, 100, i)),
        v6: (i != 1).then(|| Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, i.into())),
        up: Arc::new(AtomicBool::new(true)),
    };
    Answers {
        zone,
        relays: (0..3).map(relay).collect(),
        nearness: Arc::new(Nearness::new(measured).unwrap()),
        ttl: 30,
        cookies: Cookies::new([7; 16]),
    }
}

struct Ask {
    name: &'static str,
    kind: RecordType,
    edns: bool,
    subnet: Option<ClientSubnet>,
    cookie: Vec<u8>,
}

fn ask(name: &'static str, kind: RecordType) -> Ask {
    Ask {
        name,
        kind,
        edns: true,
        subnet: None,
        cookie: Vec::new(),
    }
}

impl Ask {
    fn subnet(self, net: &str) -> Self {
        Self {
            subnet: Some(net.parse::<ipnet::IpNet>().unwrap().into()),
            ..self
        }
    }

    fn cookie(self, cookie: &[u8]) -> Self {
        Self {
            cookie: cookie.to_vec(),
            ..self
        }
    }

    fn without_edns(self) -> Self {
        Self {
            edns: false,
            ..self
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name(self.name), self.kind));
        if self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(1232);
            if let Some(subnet) = self.subnet {
                edns.options_mut().insert(EdnsOption::Subnet(subnet));
            }
            if !self.cookie.is_empty() {
                let cookie = EdnsOption::Unknown(EdnsCode::Cookie.into(), self.cookie.clone());
                edns.options_mut().insert(cookie);
            }
            message.set_edns(edns);
        }
        message.to_vec().unwrap()
    }

    fn over(&self, answers: &Answers, transport: Transport) -> (Message, Reply) {
        let (query, mut bytes) = (self.bytes(), Vec::new());
        let reply = answers.respond(&query, by(transport), &mut bytes);
        (Message::from_vec(&bytes).unwrap(), reply)
    }

    fn tcp(&self, answers: &Answers) -> (Message, Reply) {
        self.over(answers, Transport::Tcp)
    }
}

const RESOLVER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

fn by(transport: Transport) -> Asker {
    Asker {
        source: RESOLVER,
        transport,
        now: 1_000_000,
    }
}

fn addresses(message: &Message) -> Vec<String> {
    let address = |record: &Record| match &record.data {
        RData::A(a) => a.0.to_string(),
        RData::AAAA(a) => a.0.to_string(),
        other => format!("{other:?}"),
    };
    message.answers.iter().map(address).collect()
}

fn scope(message: &Message) -> Option<(u8, u8)> {
    match message.edns.as_ref()?.option(EdnsCode::Subnet)? {
        EdnsOption::Subnet(subnet) => Some((subnet.source_prefix(), subnet.scope_prefix())),
        _ => None,
    }
}

#[test]
fn the_relay_nearest_to_the_resolver_is_the_answer() {
    let (message, reply) = ask("www.x.example.", RecordType::A).over(&answers(), Transport::Udp);
    assert_eq!(addresses(&message), ["198.51.100.1"]);
    assert!(message.metadata.authoritative && message.metadata.recursion_desired);
    assert_eq!(message.answers[0].ttl, 30);
    assert_eq!(
        reply.choice.map(|c| (c.relay, c.by)),
        Some((1, By::Resolver))
    );
    assert_eq!(scope(&message), None);
}

#[test]
fn a_subnet_in_the_query_decides_and_the_scope_says_for_whom_the_answer_holds() {
    let answers = answers();
    let near = |net: &str| {
        let (message, reply) = ask("www.x.example.", RecordType::A)
            .subnet(net)
            .tcp(&answers);
        (
            addresses(&message),
            scope(&message),
            reply.choice.unwrap().by,
        )
    };
    assert_eq!(
        near("203.0.114.0/24"),
        (vec!["198.51.100.0".into()], Some((24, 23)), By::Subnet)
    );
    assert_eq!(
        near("203.0.113.0/24"),
        (vec!["198.51.100.1".into()], Some((24, 24)), By::Subnet)
    );
    // Nothing is known of this subnet, but of the resolver.
    assert_eq!(
        near("192.0.2.0/24"),
        (vec!["198.51.100.1".into()], Some((24, 5)), By::Resolver)
    );
    // The client does not want its subnet to be used.
    assert_eq!(
        near("0.0.0.0/0"),
        (vec!["198.51.100.1".into()], Some((0, 0)), By::Resolver)
    );
}

#[test]
fn a_scope_may_be_longer_than_the_subnet_of_the_query() {
    let (message, _) = ask("www.x.example.", RecordType::A)
        .subnet("203.0.0.0/16")
        .tcp(&answers());
    assert_eq!(scope(&message), Some((16, 18)));
}

#[test]
fn each_family_gets_the_nearest_relay_that_has_an_address_of_it() {
    let answers = answers();
    let (message, _) = ask("www.x.example.", RecordType::AAAA).tcp(&answers);
    assert_eq!(addresses(&message), ["2001:db8:a::"], "relay 1 has no IPv6");
    let (message, _) = ask("www.x.example.", RecordType::A)
        .subnet("2001:db8:c::/48")
        .tcp(&answers);
    assert_eq!(addresses(&message), ["198.51.100.1"], "relay 2 has no IPv4");
}

#[test]
fn a_relay_that_is_down_is_not_an_answer_unless_all_are() {
    let answers = answers();
    let set = |up: [bool; 3]| {
        let relays = answers.relays.iter().zip(up);
        relays.for_each(|(relay, up)| relay.up.store(up, Ordering::Relaxed));
        let (message, reply) = ask("www.x.example.", RecordType::A).tcp(&answers);
        (addresses(&message).remove(0), reply.choice.unwrap().blind)
    };
    assert_eq!(set([true, false, true]), ("198.51.100.0".into(), false));
    assert_eq!(set([false, true, true]), ("198.51.100.1".into(), false));
    assert_eq!(set([false, false, true]), ("198.51.100.1".into(), true));
}

#[test]
fn a_name_leads_only_to_its_own_relays() {
    let (message, reply) = ask("only0.sub.x.example.", RecordType::A).tcp(&answers());
    assert_eq!(addresses(&message), ["198.51.100.0"]);
    assert_eq!(reply.choice.unwrap().by, By::Resolver);
}

#[test]
fn a_client_of_whom_nothing_is_known_gets_the_first_relay_that_is_up() {
    let answers = answers();
    let (query, mut bytes) = (ask("www.x.example.", RecordType::A).bytes(), Vec::new());
    let asker = Asker {
        source: "198.18.0.1".parse().unwrap(),
        ..by(Transport::Tcp)
    };
    let reply = answers.respond(&query, asker, &mut bytes);
    assert_eq!(
        reply.choice.map(|c| (c.relay, c.by)),
        Some((0, By::Fallback))
    );
}

#[test]
fn what_does_not_exist_is_answered_with_the_soa_and_what_is_elsewhere_is_refused() {
    let answers = answers();
    let asked = |name, kind| {
        let (message, _) = ask(name, kind).tcp(&answers);
        let soa = message.authorities.iter();
        let soa = soa
            .filter(|record| record.record_type() == RecordType::SOA)
            .count();
        (
            message.metadata.response_code,
            message.metadata.authoritative,
            soa,
            message.answers.len(),
        )
    };
    use ResponseCode::{NXDomain, NoError, Refused};
    assert_eq!(
        asked("no.x.example.", RecordType::A),
        (NXDomain, true, 1, 0)
    );
    assert_eq!(
        asked("no.www.x.example.", RecordType::A),
        (NXDomain, true, 1, 0)
    );
    assert_eq!(
        asked("www.x.example.", RecordType::TXT),
        (NoError, true, 1, 0)
    );
    assert_eq!(
        asked("sub.x.example.", RecordType::A),
        (NoError, true, 1, 0)
    );
    assert_eq!(asked("x.example.", RecordType::A), (NoError, true, 1, 0));
    assert_eq!(
        asked("www.x.example.", RecordType::NS),
        (NoError, true, 1, 0)
    );
    assert_eq!(asked("example.", RecordType::A), (Refused, false, 0, 0));
    assert_eq!(asked(".", RecordType::NS), (Refused, false, 0, 0));
    assert_eq!(
        asked("x.example.", RecordType::AXFR),
        (Refused, false, 0, 0)
    );
    assert_eq!(asked("x.example.", RecordType::SOA), (NoError, true, 0, 1));
    assert_eq!(asked("x.example.", RecordType::NS), (NoError, true, 0, 2));
    assert_eq!(
        asked("ns1.x.example.", RecordType::A),
        (NoError, true, 0, 1)
    );
    assert_eq!(
        asked("ns1.x.example.", RecordType::AAAA),
        (NoError, true, 1, 0)
    );
    assert_eq!(
        asked("www.x.example.", RecordType::ANY),
        (NoError, true, 0, 1)
    );
}

#[test]
fn the_soa_of_a_negative_answer_says_how_long_it_may_be_kept() {
    let (message, _) = ask("no.X.example.", RecordType::A).tcp(&answers());
    let soa = &message.authorities[0];
    assert_eq!(
        (soa.name.clone(), soa.ttl),
        (name("x.example."), NEGATIVE_TTL)
    );
    let RData::SOA(data) = &soa.data else {
        panic!("{soa:?}")
    };
    assert_eq!(
        (data.minimum, &data.mname),
        (NEGATIVE_TTL, &name("ns1.x.example."))
    );
}

#[test]
fn an_answer_that_would_amplify_says_that_it_is_too_large() {
    let answers = answers();
    let negative = ask("no.x.example.", RecordType::A);
    let (message, reply) = negative.over(&answers, Transport::Udp);
    assert!(message.metadata.truncation && reply.truncated);
    assert_eq!(message.metadata.response_code, ResponseCode::NXDomain);
    assert!(message.authorities.is_empty());
    let (message, _) = negative.tcp(&answers);
    assert!(!message.metadata.truncation && !message.authorities.is_empty());
    // 32 bytes of a query without EDNS have room for one address of IPv4.
    let (message, _) = ask("www.x.example.", RecordType::A)
        .without_edns()
        .over(&answers, Transport::Udp);
    assert!(message.metadata.truncation || addresses(&message) == ["198.51.100.1"]);
}

#[test]
fn a_source_over_its_rate_is_sent_to_tcp() {
    let asked = ask("www.x.example.", RecordType::A);
    let (message, reply) = asked.over(&answers(), Transport::UdpTruncated);
    assert!(message.metadata.truncation && message.answers.is_empty());
    assert_eq!(reply.choice, None);
}

#[test]
fn messages_that_are_no_queries_of_this_kind_get_a_header_or_nothing() {
    let answers = answers();
    let good = ask("www.x.example.", RecordType::A).bytes();
    let code = |change: &dyn Fn(&mut Vec<u8>)| {
        let (mut query, mut bytes) = (good.clone(), Vec::new());
        change(&mut query);
        let reply = answers.respond(&query, by(Transport::Udp), &mut bytes);
        // An empty OPT record has 11 bytes.
        assert!(reply.code == Some(ResponseCode::NoError) || bytes.len() <= HEADER + 11);
        reply.code
    };
    assert_eq!(code(&|_| ()), Some(ResponseCode::NoError));
    // An answer: answering it could go on for ever.
    assert_eq!(code(&|q| q[2] |= 0x80), None);
    assert_eq!(code(&|q| q.truncate(11)), None);
    assert_eq!(code(&|q| q[2] |= 5 << 3), Some(ResponseCode::NotImp));
    assert_eq!(code(&|q| q[5] = 2), Some(ResponseCode::FormErr));
    assert_eq!(code(&|q| q[7] = 1), Some(ResponseCode::FormErr));
    assert_eq!(code(&|q| q[10] = 255), Some(ResponseCode::FormErr));
    assert_eq!(code(&|q| q.push(0)), Some(ResponseCode::FormErr));
    assert_eq!(code(&|q| q.truncate(20)), Some(ResponseCode::FormErr));
    // The question's name is a pointer into the header.
    let pointer =
        |q: &mut Vec<u8>| *q = [&[0; 5][..], &[1, 0, 0, 0, 0, 0, 0, 0xc0, 4, 0, 1, 0, 1]].concat();
    assert_eq!(code(&pointer), Some(ResponseCode::FormErr));
    // As many bytes behind it as the pointer is shorter than the name.
    let pointer = |q: &mut Vec<u8>| {
        *q = [
            &[2, 52, 1, 0, 0, 1][..],
            &[0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 1, 0, 1, 9, 9],
        ]
        .concat();
    };
    assert_eq!(code(&pointer), Some(ResponseCode::FormErr));
}

#[test]
fn an_unknown_version_of_edns_is_named_as_such() {
    let mut query = ask("www.x.example.", RecordType::A).bytes();
    let version = query.len() - 5;
    query[version] = 1;
    let mut bytes = Vec::new();
    let reply = answers().respond(&query, by(Transport::Udp), &mut bytes);
    assert_eq!(reply.code, Some(ResponseCode::BADVERS));
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!(
        u16::from(message.metadata.response_code),
        u16::from(ResponseCode::BADVERS)
    );
    assert_eq!(message.edns.unwrap().version(), 0);
}

#[test]
fn a_subnet_with_a_scope_or_with_bits_beyond_its_length_is_malformed() {
    let answers = answers();
    let code = |address: &str, source, scope| {
        let mut asked = ask("www.x.example.", RecordType::A);
        asked.subnet = Some(ClientSubnet::new(address.parse().unwrap(), source, scope));
        let mut bytes = Vec::new();
        answers
            .respond(&asked.bytes(), by(Transport::Udp), &mut bytes)
            .code
    };
    assert_eq!(code("203.0.113.0", 24, 0), Some(ResponseCode::NoError));
    assert_eq!(code("203.0.113.0", 24, 24), Some(ResponseCode::FormErr));
    assert_eq!(code("203.0.113.1", 31, 0), Some(ResponseCode::FormErr));
    assert_eq!(code("2001:db8::", 56, 0), Some(ResponseCode::NoError));
    assert_eq!(code("2001:db8:0:1::", 63, 0), Some(ResponseCode::FormErr));
}

#[test]
fn the_case_of_the_question_is_kept() {
    let mut query = ask("www.x.example.", RecordType::A).bytes();
    query[13..16].copy_from_slice(b"wWW");
    let mut bytes = Vec::new();
    let reply = answers().respond(&query, by(Transport::Udp), &mut bytes);
    assert!(reply.choice.is_some());
    assert_eq!(bytes[12..31], query[12..31]);
}

fn cookie_of(message: &Message) -> Option<Vec<u8>> {
    match message.edns.as_ref()?.option(EdnsCode::Cookie)? {
        EdnsOption::Unknown(_, cookie) => Some(cookie.clone()),
        _ => None,
    }
}

#[test]
fn a_client_over_its_rate_gets_a_cookie_that_proves_its_address() {
    let answers = answers();
    let asked = ask("www.x.example.", RecordType::A).cookie(&[1; 8]);
    let (message, reply) = asked.over(&answers, Transport::UdpTruncated);
    assert!(message.metadata.truncation);
    assert_eq!(reply.cookie, Some(Proof::New));
    let cookie = cookie_of(&message).unwrap();
    assert_eq!((cookie.len(), &cookie[..8]), (LENGTH, &[1; 8][..]));
    let asked = ask("www.x.example.", RecordType::A).cookie(&cookie);
    let proof = |source: &str| answers.proof(&asked.bytes(), source.parse().unwrap(), 1_000_060);
    assert_eq!(proof(&RESOLVER.to_string()), Some(Proof::Proven));
    assert_eq!(proof("203.0.113.8"), Some(Proof::Invalid));
    let (message, reply) = asked.over(&answers, Transport::Udp);
    assert_eq!(addresses(&message), ["198.51.100.1"]);
    assert_eq!(reply.cookie, Some(Proof::Proven));
    assert!(cookie_of(&message).is_some());
}

/// A client that has sent a cookie discards an answer without one (RFC 7873 section 5.3).
#[test]
fn every_answer_to_a_cookie_has_one_and_a_proven_one_ends_the_bound() {
    let answers = answers();
    let names = [
        "www.x.example.",
        "no.x.example.",
        "x.example.",
        "elsewhere.example.",
    ];
    let kinds = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::HTTPS,
        RecordType::NS,
    ];
    for (name, kind) in names
        .iter()
        .flat_map(|name| kinds.map(|kind| (*name, kind)))
    {
        let asked = ask(name, kind).cookie(&[1; 8]);
        let (message, _) = asked.over(&answers, Transport::Udp);
        let cookie = cookie_of(&message).unwrap();
        let (complete, reply) = asked.tcp(&answers);
        assert_eq!(cookie_of(&complete), Some(cookie.clone()), "{name} {kind}");
        // With the server's part there is the whole answer over UDP, too.
        let asked = ask(name, kind).cookie(&cookie);
        let (message, proven) = asked.over(&answers, Transport::Udp);
        assert_eq!(proven.code, reply.code, "{name} {kind}");
        assert!(!message.metadata.truncation, "{name} {kind}");
        assert_eq!(message.answers, complete.answers, "{name} {kind}");
        assert_eq!(message.authorities, complete.authorities, "{name} {kind}");
    }
}

#[test]
fn a_query_without_a_question_gets_a_cookie() {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    let with = |options: Option<Vec<u8>>| {
        let mut edns = Edns::new();
        if let Some(cookie) = options {
            let cookie = EdnsOption::Unknown(EdnsCode::Cookie.into(), cookie);
            edns.options_mut().insert(cookie);
        }
        edns
    };
    let mut ask = |edns| {
        message.set_edns(edns);
        let mut bytes = Vec::new();
        answers().respond(&message.to_vec().unwrap(), by(Transport::Udp), &mut bytes);
        Message::from_vec(&bytes).unwrap()
    };
    let answer = ask(with(Some(vec![1; 8])));
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert_eq!(cookie_of(&answer).unwrap().len(), LENGTH);
    let answer = ask(with(None));
    assert_eq!(answer.metadata.response_code, ResponseCode::FormErr);
}

/// A query with these options, which may be malformed.
fn with_options(flags: u8, options: &[u8]) -> Vec<u8> {
    let mut query = ask("www.x.example.", RecordType::A).bytes();
    query[2] |= flags;
    let length = query.len();
    query[length - 2..].copy_from_slice(&u16::try_from(options.len()).unwrap().to_be_bytes());
    query.extend(options);
    query
}

#[test]
fn an_error_has_an_opt_record_if_the_query_has_one() {
    let code = |query: &[u8]| {
        let mut bytes = Vec::new();
        answers().respond(query, by(Transport::Udp), &mut bytes);
        let answer = Message::from_vec(&bytes).unwrap();
        (answer.metadata.response_code, answer.edns.is_some())
    };
    let truncated_cookie = [0, 10, 0, 3, 1, 1, 1];
    assert_eq!(
        code(&with_options(0, &truncated_cookie)),
        (ResponseCode::FormErr, true)
    );
    // An address of a family that does not exist.
    let strange = [0, 8, 0, 5, 0, 9, 8, 0, 1];
    assert_eq!(
        code(&with_options(0, &strange)),
        (ResponseCode::FormErr, true)
    );
    assert_eq!(code(&with_options(0x20, &[])), (ResponseCode::NotImp, true));
    let plain = ask("www.x.example.", RecordType::A).without_edns();
    let mut plain = plain.bytes();
    plain.push(0);
    assert_eq!(code(&plain), (ResponseCode::FormErr, false));
    // One that is cut off would make the answer longer than 1.5 times the query.
    plain.pop();
    plain.extend([0, 0, 41]);
    plain[11] = 1;
    assert_eq!(code(&plain), (ResponseCode::FormErr, false));
}

#[test]
fn a_subnet_of_no_family_stays_unknown() {
    let empty = [0, 8, 0, 4, 0, 0, 0, 0];
    let cookie = [&[0, 10, 0, 8][..], &[1; 8]].concat();
    for options in [
        empty.to_vec(),
        [&cookie[..], &empty].concat(),
        [&empty[..], &cookie].concat(),
    ] {
        let mut bytes = Vec::new();
        let query = with_options(0, &options);
        let reply = answers().respond(&query, by(Transport::Tcp), &mut bytes);
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(reply.code, Some(ResponseCode::NoError), "{options:?}");
        assert_eq!(reply.choice.unwrap().by, By::Resolver);
        assert_eq!(cookie_of(&message).is_some(), options.len() > empty.len());
    }
}

#[test]
fn a_cookie_of_a_wrong_length_is_malformed() {
    for length in [1, 7, 9, 15, 41] {
        let asked = ask("www.x.example.", RecordType::A).cookie(&vec![1; length]);
        let (_, reply) = asked.over(&answers(), Transport::Udp);
        assert_eq!(reply.code, Some(ResponseCode::FormErr), "{length}");
    }
}

/// A message that is nearly a query: well-formed parts in any combination.
fn nearly_a_query() -> impl Strategy<Value = Vec<u8>> {
    let label = prop_oneof![
        Just(b"www".to_vec()),
        Just(b"x".to_vec()),
        Just(b"eXample".to_vec()),
        Just(b"ns1".to_vec()),
        vec(any::<u8>(), 1..64),
    ];
    let in_zone = any::<bool>();
    let kind = prop_oneof![
        Just(1u16),
        Just(2),
        Just(6),
        Just(28),
        Just(255),
        Just(252),
        any::<u16>()
    ];
    let option = (
        prop_oneof![3 => Just(8u16), 1 => Just(10u16), 1 => any::<u16>()],
        prop_oneof![
            (1u16..3, 0u8..130, vec(any::<u8>(), 0..17)).prop_map(|(family, source, address)| {
                let head = [family.to_be_bytes(), [source, 0]].concat();
                [head, address].concat()
            }),
            vec(any::<u8>(), 0..40),
            vec(any::<u8>(), 8..=8),
            any::<[u8; 8]>().prop_map(|client| {
                // One that is right for the first of the senders in `fuzzing::query`.
                let (cookies, cookie) = (Cookies::new([7; 16]), Cookie::read(&client).unwrap());
                cookies.answer(&cookie, RESOLVER, 1_800_000_000).to_vec()
            }),
        ],
    );
    let opt = proptest::option::of((any::<u16>(), any::<[u8; 4]>(), vec(option, 0..4)));
    (
        any::<[u8; 3]>(),
        vec(label, 0..5),
        in_zone,
        kind,
        opt,
        vec(any::<u8>(), 0..3),
    )
        .prop_map(|(random, labels, in_zone, kind, opt, trailing)| {
            let flags = if random[2] < 200 { 1 } else { random[2] };
            let mut bytes = vec![random[0], random[1], flags, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            bytes[11] = u8::from(opt.is_some());
            let zone = [b"x".to_vec(), b"example".to_vec()];
            let zone = zone.into_iter().filter(|_| in_zone);
            for label in labels.into_iter().chain(zone) {
                bytes.push(u8::try_from(label.len()).unwrap());
                bytes.extend(label);
            }
            bytes.push(0);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1]);
            if let Some((payload, ttl, options)) = opt {
                bytes.extend([0, 0, 41]);
                bytes.extend(payload.to_be_bytes());
                bytes.extend(if ttl[0] < 128 { [0; 4] } else { ttl });
                let data: Vec<u8> = options
                    .into_iter()
                    .flat_map(|(code, data)| {
                        let length = u16::try_from(data.len()).unwrap().to_be_bytes();
                        [&code.to_be_bytes()[..], &length, &data].concat()
                    })
                    .collect();
                bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
                bytes.extend(data);
            }
            if random[2] % 8 == 0 {
                bytes.extend(trailing);
            }
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_message_gets_an_answer_that_amplifies(bytes in vec(any::<u8>(), 0..100)) {
        crate::fuzzing::query(&bytes);
    }

    #[test]
    fn no_query_gets_an_answer_that_amplifies(query in nearly_a_query()) {
        crate::fuzzing::query(&query);
    }

    #[test]
    fn no_damaged_query_gets_an_answer_that_amplifies(
        query in nearly_a_query(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut query = query;
        for (at, byte) in damage {
            let at = at.index(query.len());
            query[at] = byte;
        }
        crate::fuzzing::query(&query);
        query.truncate(cut.index(query.len()));
        crate::fuzzing::query(&query);
    }
}
