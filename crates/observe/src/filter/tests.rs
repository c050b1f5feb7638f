use proptest::prelude::*;

use super::*;

fn nginx() -> Process {
    Process::for_tests(812, "nginx", Some("0123456789ab"))
}

/// A machine with few names.
struct Small;

impl Names for Small {
    fn host(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        match name {
            "example.com" => Ok(["10.1.2.3", "2001:db8::9"]
                .map(|ip| ip.parse().unwrap())
                .into()),
            _ => Err("it has no address".into()),
        }
    }

    fn service(&self, name: &str) -> Option<u16> {
        [("https", 443), ("ssh", 22)]
            .into_iter()
            .find(|(one, _)| *one == name)
            .map(|(_, port)| port)
    }

    fn user(&self, name: &str) -> Option<u32> {
        (name == "www-data").then_some(33)
    }

    fn cgroups(&self, path: &str) -> BTreeSet<u64> {
        if path == "/web" {
            [77, 78].into()
        } else {
            BTreeSet::new()
        }
    }

    fn processes(&self) -> BTreeSet<String> {
        ["nginx", "sshd"].map(str::to_owned).into()
    }

    fn is_installed(&self, name: &str) -> bool {
        name == "curl"
    }
}

fn parse(filter: &str) -> Result<Filter, FilterError> {
    Filter::parse(filter, &Small)
}

fn matches(filter: &str) -> bool {
    let process = nginx();
    parse(filter).unwrap().matches(&Subject {
        local: "192.0.2.7:41000".parse().unwrap(),
        remote: "10.1.2.3:443".parse().unwrap(),
        state: State::Established,
        congestion_control: Some("cubic"),
        uid: 33,
        cgroup: Some(78),
        netns: "blue",
        process: Some(&process),
    })
}

#[test]
fn states_at_the_beginning_bound_the_whole_filter() {
    for filter in [
        "state syn-sent dport 80 or dport 443",
        "exclude established and dport 80 or dport 443",
        "state all exclude established dport 80 or dport 443",
    ] {
        assert!(!matches(filter), "{filter}");
    }
    assert!(matches("state established dport 80 or dport 443"));
    assert!(matches("state syn-sent or dport 443"));
}

#[test]
fn filters_are_read_as_people_write_them() {
    for filter in [
        "",
        "dst 10.0.0.0/8 and dport 443",
        "dst 10.0.0.0/8 dport 443",
        "dst port 443",
        "dport = 443",
        "dport :443",
        "sport 40000-42000",
        "port 443 && ! src 10.0.0.0/8",
        "host 192.0.2.7",
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "dst ::ffff:10.0.0.0/104",
        "[::ffff:10.1.2.3]:443",
        "812",
        "pid 812",
        "nginx",
        "'nginx' and not \"web content\"",
        "not process 'or'and not \"(sd-pam)\"",
        "ngin*",
        "process ng?nx",
        "container 0123*",
        "netns blue",
        "state established",
        "state ESTAB",
        "cc cubic",
        "(dport 80 or dport 443) and nginx",
        "not(dport 80)or dport 22",
        "!dport 80",
        "dport 22 or dport 443 and nginx",
        "10.1.2.3:443",
        "10.0.0.0/8:443",
        "192.0.2.7:41000",
        ":443",
        "*:443",
        "dst :443",
        "dst 10.1.2.3:https",
        "dport https",
        "example.com:443",
        "dst example.com",
        "host example.com and uid 33",
        "user www-data",
        "cgroup /web",
        "cgroup 78",
        "curl or nginx",
        // ss
        "sport eq 41000",
        "dport != 80",
        "dport neq :80",
        "sport >= :41000 and sport <= 41000",
        "sport gt 40999 & sport lt 41001",
        "sport>40999 and dport!=80",
        "not sport > 41000",
        "dst = 10.1.2.3",
        "dst != 192.0.2.7 | nginx",
        "src ne 10.0.0.0/8",
        "dst = 10.1.2.3:443",
        "cgroup = /web",
        "pid != 1",
        "state connected",
        "state synchronized",
        "state big",
        "state all exclude listening exclude time-wait",
        "state close-wait state established",
        "state established ( dport = :https or sport = :https )",
        "exclude bucket dst 10.0.0.0/8",
        // tcpdump
        "tcp",
        "tcp port 443",
        "tcp dst port https",
        "ip",
        "ip and not ip6",
        "ip host 10.1.2.3",
        "portrange 440-450",
        "dst portrange 440-450",
        "src or dst port 443",
        "src or dst host 10.1.2.3",
        "src and dst portrange 1-65535",
        "net 10.0.0.0/8",
        "not tcp port 80",
    ] {
        assert!(matches(filter), "{filter}");
    }
    for filter in [
        "src 10.0.0.0/8",
        "dport 80",
        "dport 444-500",
        "sshd",
        "811",
        "not nginx",
        "2001:db8::/32",
        "(dport 22 or dport 443) and sshd",
        "not not not dport 443",
        "state close-wait",
        "netns -",
        "cc bbr",
        // The port of the other end.
        "192.0.2.7:443",
        "src :443",
        "[2001:db8::9]:443",
        "src example.com",
        "uid 0",
        "cgroup 79",
        "curl",
        "process not-started-yet",
        "dport > 443",
        "dport < 443",
        "dport > 65535",
        "dport < 0",
        "dport ne 443",
        "dst != 10.1.2.3",
        "exclude established",
        "exclude connected",
        "state bucket",
        "state closed",
        "not tcp port 443",
        "ip6 host 10.1.2.3",
        "src and dst port 443",
    ] {
        assert!(!matches(filter), "{filter}");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_word() {
    for (filter, says) in [
        (
            "dport htps",
            "expected a port such as 443, a range such as 8000-8100, or a service such as https, at \"htps\"; \
             /etc/services has no TCP service `htps`",
        ),
        ("dport", "at its end"),
        ("dport 500-400", "expected a port"),
        ("dst 10.0.0.0/99", "expected an address, a network"),
        ("10.0.0.300:80", "expected an address, a network"),
        ("10.0.0.1:", "expected an address and a port"),
        ("10.0.0.1:99999", "expected a port"),
        ("2001:db8::1:80:", "[2001:db8::1]:443"),
        (
            "dst nowhere.example",
            "no host of this name: it has no address, at \"nowhere.example\"",
        ),
        (
            "foo bar",
            "at \"foo\"; `process foo` waits for a process of this name",
        ),
        ("ngnix", "did you mean `nginx`? `process ngnix` waits"),
        ("dprot 443", "did you mean `dport`?"),
        ("https", "write `port https`"),
        ("other.example", "write `host other.example`"),
        (
            "user nobody-here",
            "expected the name of a user in /etc/passwd",
        ),
        ("uid www-data", "expected a user ID"),
        ("cgroup /no", "expected the path of a cgroup"),
        ("(dport 443", "expected `)`, at its end"),
        ("dport 443)", "at \")\""),
        (
            "dport 443 and",
            "expected an address, a port, a process or a pid, at its end",
        ),
        ("or nginx", "at \"or\""),
        ("state drunk", "expected a state"),
        ("state listening", "no socket in this state is shown"),
        ("port 80 or 443", "write `port 443` or `pid 443`"),
        ("sport 7001 7002", "write `port 7002` or `pid 7002`"),
        ("port not 22", "as in `not port 22`, at \"not\""),
        ("dst ! 10.0.0.1", "as in `not port 22`, at \"!\""),
        ("dst >= 10.0.0.1", "expected = or !="),
        ("dport >= 80-90", "expected one port"),
        ("uid > 0", "expected = or !="),
        ("= 443", "expected an address, a port"),
        ("pid -1", "expected a pid"),
        ("process [", "expected a process name"),
        ("process 'web content", "a quote is not closed"),
        ("'dport' 443 sshd )", "at \")\""),
    ] {
        let error = parse(filter).unwrap_err().to_string();
        assert!(error.contains(says), "{filter}: {error}");
    }
}

#[test]
fn depth_and_length_have_bounds() {
    assert!(parse(&format!("{}1{}", "(".repeat(32), ")".repeat(32))).is_ok());
    for filter in ["(".repeat(33), "! ".repeat(33), "1 ".repeat(4000)] {
        let error = parse(&filter).unwrap_err().to_string();
        assert!(error.contains("at most"), "{error}");
    }
}

#[test]
fn only_some_filters_need_the_owner() {
    let asks = |filter: &str| parse(filter).unwrap().needs_owner();
    assert!(asks("nginx") && asks("dport 1 or not pid 3") && asks("container a*"));
    assert!(!asks("") && !asks("dst 10.0.0.0/8 and not dport 80"));
}

/// Returns expressions over tests of every kind that says something of the other end, and of two that
/// do not.
fn expressions() -> impl Strategy<Value = String> {
    let tests = [
        "dport 443",
        "sport 443",
        "port 443",
        "src 10.0.0.0/8",
        "dst 10.0.0.0/8",
        "10.1.2.3:443",
        "nginx",
        "netns blue",
    ];
    let test = prop::sample::select(tests.to_vec()).prop_map(str::to_owned);
    test.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|one| format!("not ({one})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) or ({b})")),
        ]
    })
}

#[test]
fn the_other_end_is_sought_by_addresses_and_ports_alone() {
    let wide = |filter: &str| parse(filter).unwrap().and_other_ends();
    assert_eq!(
        wide("dst 10.0.0.0/8 and sport 80 and uid 33"),
        parse("dst 10.0.0.0/8 and sport 80 and uid 33 or src 10.0.0.0/8 and dport 80").unwrap()
    );
    // These tests say nothing of the other end, so only what is kept anyway can be it.
    assert_eq!(wide("netns blue"), parse("netns blue").unwrap());
    assert!(wide("nginx").matches_all());
}

proptest! {
    #[test]
    fn the_other_end_of_what_a_filter_matches_is_kept(
        filter in expressions(), ports in prop::array::uniform2(prop::sample::select(vec![80_u16, 443, 41000])),
        ips in prop::array::uniform2(prop::sample::select(vec!["10.1.2.3", "192.0.2.7"])), is_nginx: [bool; 2],
    ) {
        let process = nginx();
        let end = |at: usize| SocketAddr::new(ips[at].parse().unwrap(), ports[at]);
        let subject = |here: usize| Subject {
            local: end(here),
            remote: end(1 - here),
            state: State::Established,
            congestion_control: None,
            uid: 33,
            cgroup: None,
            netns: if here == 0 { "blue" } else { "red" },
            process: is_nginx[here].then_some(&process),
        };
        let filter = parse(&filter).unwrap();
        let wide = filter.and_other_ends();
        prop_assert!(!filter.matches(&subject(0)) || wide.matches(&subject(0)));
        let is_known = filter.needs_owner() || wide != filter;
        prop_assert!(!filter.matches(&subject(0)) || !is_known || wide.matches(&subject(1)));
    }

    #[test]
    fn nothing_that_is_typed_does_harm(text in "[ a-z0-9()!&|=<>.:/*\\[\\]-]{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn any_bytes_do_no_harm(text in "\\PC{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_filter_and_its_negation_share_nothing(
        word in prop::sample::select(vec!["dport 443", "nginx", "src 10.0.0.0/8", "1 or 812", "cc bbr"])
    ) {
        prop_assert_ne!(matches(word), matches(&format!("not ({word})")));
    }
}
