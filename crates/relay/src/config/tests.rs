use super::*;
use crate::access::session_quota::UNLIMITED;
use crate::net::addr::Destination;

const FORWARD: &str = "[[relay.forward]]\nlisten = \":8080\"\nto = \"origin.example:80\"\n";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("taut.toml"))
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_least_configuration_is_one_forward() {
    let config = parse(FORWARD).unwrap();
    assert_eq!(config.forwards.len(), 1);
    assert_eq!(config.forwards[0].to[0].to_string(), "origin.example:80");
    assert_eq!(config.timeouts, Timeouts::default());
    assert_eq!(config.data, DataPath::default());
}

#[test]
fn every_field_is_read() {
    let config = parse(
        "[relay]\nworkers = 3\nmax_sessions = 100\nmetrics = \"127.0.0.1:9464\"\n\
         connect_timeout = \"3s\"\nhalf_closed_timeout = \"1m\"\nflush_timeout = \"2s\"\n\
         drain_timeout = \"0s\"\nresolve_interval = \"5m\"\nkeepalive_idle = \"20s\"\n\
         splice_after = \"64KiB\"\npipe_size = \"1MiB\"\nmax_pipes = 7\nnat64 = \"2001:db8:64::/96\"\n\
         [[relay.forward]]\nlisten = [\"127.0.0.1:1\", \"[::1]:1\"]\nto = \"[::1]:80\"\n\
         client_congestion = \"bbr\"\nupstream_congestion = \"cubic\"\n",
    )
    .unwrap();
    assert_eq!(config.workers, Some(3));
    assert_eq!(config.max_sessions, Some(100));
    assert_eq!(config.metrics, Some("127.0.0.1:9464".parse().unwrap()));
    assert_eq!(config.timeouts.connect, Duration::from_secs(3));
    assert_eq!(config.timeouts.half_closed, Duration::from_secs(60));
    assert_eq!(config.timeouts.flush, Duration::from_secs(2));
    assert_eq!(config.timeouts.drain, Duration::ZERO);
    assert_eq!(config.timeouts.resolve, Duration::from_secs(300));
    assert_eq!(config.keepalive.idle, Duration::from_secs(20));
    let data = DataPath {
        splice_after: Some(64 << 10),
        pipe_size: 1 << 20,
        max_pipes: 7,
    };
    assert_eq!(config.data, data);
    assert_eq!(config.nat64, ["2001:db8:64::/96".parse().unwrap()]);
    assert_eq!(config.forwards[0].listen.len(), 2);
    assert_eq!(config.forwards[0].client_congestion.as_deref(), Some("bbr"));
    assert_eq!(
        config.forwards[0].upstream_congestion.as_deref(),
        Some("cubic")
    );
}

#[test]
fn sessions_of_a_source_and_idle_sessions_are_limited_unless_that_is_off() {
    let config = parse(FORWARD).unwrap();
    assert_eq!(config.max_sessions_per_source, None);
    assert_eq!(config.max_connects_per_source, 1000);
    assert_eq!(config.timeouts.idle, Some(Duration::from_secs(24 * 3600)));
    let set = |value: &str| {
        let keys = ["max_sessions_per_source", "max_connects_per_source"];
        let keys = keys.map(|key| format!("{key} = {value}\n")).concat();
        parse(&format!("[relay]\n{keys}{FORWARD}"))
    };
    let config = set("7").unwrap();
    assert_eq!(config.max_sessions_per_source, Some(7));
    assert_eq!(config.max_connects_per_source, 7);
    let config = set("\"off\"").unwrap();
    assert_eq!(config.max_sessions_per_source, Some(UNLIMITED));
    assert_eq!(config.max_connects_per_source, UNLIMITED);
    for (value, expected) in [
        ("0", "must be at least 1, or \"off\""),
        ("\"none\"", "expected a number, or \"off\""),
    ] {
        let said = set(value).unwrap_err().to_string();
        assert!(said.contains("_per_source: "), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let idle = |value: &str| parse(&format!("[relay]\nidle_timeout = \"{value}\"\n{FORWARD}"));
    assert_eq!(idle("off").unwrap().timeouts.idle, None);
    let hour = Some(Duration::from_secs(3600));
    assert_eq!(idle("1h").unwrap().timeouts.idle, hour);
    let said = idle("never").unwrap_err().to_string();
    assert!(said.contains("`never` is not a duration"), "{said}");
}

#[test]
fn an_automatic_route_needs_measured_paths() {
    let forward = "[[relay.forward]]\nlisten = \":1\"\nvia = \"auto\"\nto = \"a:1\"\n";
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\n";
    assert!(parse(&format!("{mesh}{forward}")).unwrap().forwards[0].auto);
    let said = error(&format!("{mesh}measure = false\n{forward}"));
    assert!(
        said.contains("relay.forward[0].via: automatic routes need measured paths"),
        "{said}"
    );
}

#[test]
fn a_route_that_cannot_work_is_refused() {
    let via = |limit: u8, via: &str| {
        let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\n";
        let forward = format!("[[relay.forward]]\nlisten = \":1\"\nto = \"a:1\"\nvia = {via}\n");
        parse(&format!("{mesh}hop_limit = {limit}\n{forward}")).map_err(|e| e.to_string())
    };
    assert_eq!(
        via(3, "[\"a > b > c\", \"a > c\"]").unwrap().forwards[0]
            .via
            .len(),
        2
    );
    for (limit, routes, part) in [
        (
            2,
            "\"a > b > c\"",
            "a route has 3 relays, and relay.mesh.hop_limit allows 2",
        ),
        (8, "\"a > b > a\"", "via[0]: the route passes `a` twice"),
        (
            8,
            "[\"a > b\", \"c\", \"a>b\"]",
            "via[2]: this route is there already",
        ),
    ] {
        let error = via(limit, routes).unwrap_err();
        assert!(error.contains(part), "no `{part}` in {error}");
    }
}

#[test]
fn a_forward_may_have_time_limits_of_its_own() {
    let text = "[relay]\nidle_timeout = \"1h\"\nfirst_byte_timeout = \"10s\"\n[[relay.forward]]\nlisten = \":1\"\n\
                to = \"a:1\"\nidle_timeout = \"off\"\nconnect_timeout = \"2s\"\nevict_after = \"off\"\n\
                queue_timeout = \"off\"\n";
    let config = parse(text).unwrap();
    let of_forward = config.forwards[0].timeouts.over(&config.timeouts);
    let expected = Timeouts {
        idle: None,
        connect: Duration::from_secs(2),
        first_byte: Some(Duration::from_secs(10)),
        evict: None,
        queue: None,
        ..Timeouts::default()
    };
    assert_eq!(of_forward, expected);
    assert_eq!(config.timeouts.idle, Some(Duration::from_secs(3600)));
    let error = parse(&text.replace("2s", "0s")).unwrap_err().to_string();
    assert!(
        error.contains("relay.forward[0].connect_timeout: must be from"),
        "{error}"
    );
}

#[test]
fn a_forward_may_have_several_destinations_and_check_them() {
    let config =
        parse("[[relay.forward]]\nlisten = \":1\"\nto = [\"a:1\", \"[::1]:2\"]\ncheck = \"5s\"\ncheck_fall = 1\n")
            .unwrap();
    let to: Vec<_> = config.forwards[0]
        .to
        .iter()
        .map(Destination::to_string)
        .collect();
    assert_eq!(to, ["a:1", "[::1]:2"]);
    let check = HealthCheck {
        fall: 1,
        ..HealthCheck::every(Duration::from_secs(5))
    };
    assert_eq!(config.forwards[0].check, Some(check));
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\n";
    for (text, part) in [
        ("to = []\n".to_owned(), "to: must name from 1 to 64"),
        (
            format!("to = [{}]\n", "\"a:1\", ".repeat(65)),
            "to: must name from 1 to 64",
        ),
        (
            "to = [\"a:1\", \"b\"]\n".to_owned(),
            "forward[0].to[1]: `b`",
        ),
        (
            "to = \"a:1\"\ncheck = \"1ms\"\n".to_owned(),
            "relay.forward[0].check: must be from",
        ),
        (
            "to = \"a:1\"\ncheck_rise = 2\n".to_owned(),
            "relay.forward[0].check_rise: needs `check`",
        ),
        (
            "to = [\"a:1\", \"b:1\"]\nvia = \"c\"\n".to_owned(),
            "with `via` there is one destination",
        ),
        (
            "to = \"a:1\"\ncheck = \"1s\"\nvia = \"c\"\n".to_owned(),
            "can be checked",
        ),
    ] {
        let error = error(&format!("{mesh}[[relay.forward]]\nlisten = \":1\"\n{text}"));
        assert!(error.contains(part), "no `{part}` in {error}");
    }
}

#[test]
fn a_source_may_connect_to_the_mesh_port_at_once_as_often_as_may_be_unproven() {
    let rate = |keys: &str| {
        let mesh =
            "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":2\"\n";
        let mesh = parse(&format!("{mesh}{keys}\n")).unwrap().mesh.unwrap();
        mesh.inbound.max_connects_per_source
    };
    assert_eq!(rate(""), 52);
    assert_eq!(rate("max_unproven = 64"), 50);
    assert_eq!(rate("max_unproven = 4096"), 410);
    assert_eq!(rate("max_unproven = 4096\nmax_connects_per_source = 7"), 7);
}

#[test]
fn kernel_tls_is_used_unless_it_is_turned_off() {
    let with = |key: &str| {
        let mesh =
            "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":2\"\n";
        parse(&format!("{mesh}{key}\n"))
            .unwrap()
            .mesh
            .unwrap()
            .kernel_tls
    };
    assert!(with(""));
    assert!(with("kernel_tls = true"));
    assert!(!with("kernel_tls = false"));
}

#[test]
fn a_forward_may_choose_its_destination_by_server_name() {
    let forward = |sni: &str| format!("[[relay.forward]]\nlisten = \":1\"\n{sni}");
    let config = parse(&forward(
        "to = \"d:1\"\n[relay.forward.sni]\n\"A.example\" = \"a:1\"\n\"*.b.example\" = [\"b:1\", \"b:2\"]\n",
    ))
    .unwrap();
    let to = |to: &[&str]| -> Vec<Destination> { to.iter().map(|t| t.parse().unwrap()).collect() };
    let mut sni = config.forwards[0].sni.clone();
    sni.sort_by_key(|(_, to)| to.len());
    let exact = (ServerName::Exact("a.example".into()), to(&["a:1"]));
    let below = (ServerName::Below("b.example".into()), to(&["b:1", "b:2"]));
    assert_eq!(sni, [exact, below]);
    // Without `to`, others are refused.
    assert!(parse(&forward("sni = { \"a.example\" = \"a:1\" }\n")).is_ok());
    for (sni, part) in [
        ("sni = {}\n", "sni: must name from 1 to 1024"),
        ("sni = { \"1.2.3.4\" = \"a:1\" }\n", "not a server name"),
        ("sni = { \"a\" = \"a\" }\n", "sni.\"a\": `a` does not end"),
        (
            "sni = { \"a\" = \"a:1\", \"A\" = \"a:1\" }\n",
            "listed twice",
        ),
        (
            "early_syn = true\nsni = { \"a\" = \"a:1\" }\n",
            "not known at the SYN",
        ),
        (
            "transparent = true\nports = [9]\nallow = \"*:*\"\nsni = { \"a\" = \"a:1\" }\n",
            "`sni` and `transparent`",
        ),
    ] {
        let error = error(&forward(sni));
        assert!(error.contains(part), "no `{part}` in {error}");
    }
}

#[test]
fn early_syn_goes_with_what_is_known_at_the_syn() {
    let forward = |more: &str| {
        format!("[[relay.forward]]\nlisten = \":1\"\nto = \"a:1\"\nearly_syn = true\n{more}")
    };
    for more in ["", "send_proxy = true\n", "source = \"client\"\n"] {
        assert!(parse(&forward(more)).unwrap().forwards[0].early_syn);
    }
    let error = error(&forward("accept_proxy = true\nproxy_from = \"::1\"\n"));
    assert!(error.contains("not known at the SYN"), "{error}");
}

#[test]
fn splice_can_be_switched_off() {
    let config = parse(&format!("[relay]\nsplice = false\n{FORWARD}")).unwrap();
    assert_eq!(config.data.splice_after, None);
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let e = error("[relay]\nworkers = 2\nworker = 3\n");
    assert!(
        e.starts_with("taut.toml:3: relay.worker: unknown field `worker`"),
        "{e}"
    );
}

#[test]
fn an_unknown_section_is_named() {
    let e = error("[rely]\nworkers = 2\n");
    assert!(
        e.starts_with("taut.toml:1: rely: unknown field `rely`"),
        "{e}"
    );
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_field_and_line() {
    let e = error("[relay]\n\nworkers = \"two\"\n");
    assert!(
        e.starts_with("taut.toml:3: relay.workers: invalid type: string \"two\""),
        "{e}"
    );
}

#[test]
fn a_bad_address_is_named_with_its_field_and_line() {
    let e = error("[[relay.forward]]\nlisten = \"here:80\"\nto = \"x:80\"\n");
    assert!(
        e.starts_with("taut.toml:2: relay.forward[0].listen[0]: `here:80` is not"),
        "{e}"
    );
    let e = error("[[relay.forward]]\nlisten = \":80\"\nto = \"x\"\n");
    assert!(
        e.starts_with("taut.toml:3: relay.forward[0].to: `x` does not end in a port"),
        "{e}"
    );
    let e = error(&format!("[relay]\nmetrics = \"9464\"\n{FORWARD}"));
    assert!(
        e.starts_with("taut.toml:2: relay.metrics: `9464` is not an address to listen on"),
        "{e}"
    );
}

#[test]
fn values_out_of_range_are_refused() {
    for (line, field) in [
        ("workers = 0", "relay.workers"),
        ("max_sessions = 0", "relay.max_sessions"),
        (
            "max_sessions_per_source = 0",
            "relay.max_sessions_per_source",
        ),
        ("idle_timeout = \"0s\"", "relay.idle_timeout"),
        ("connect_timeout = \"0s\"", "relay.connect_timeout"),
        (
            "connect_timeout = \"500000000000years\"",
            "relay.connect_timeout",
        ),
        (
            "half_closed_timeout = \"2years\"",
            "relay.half_closed_timeout",
        ),
        ("flush_timeout = \"1us\"", "relay.flush_timeout"),
        ("drain_timeout = \"2years\"", "relay.drain_timeout"),
        ("resolve_interval = \"1ns\"", "relay.resolve_interval"),
        ("pipe_size = \"2MiB\"", "relay.pipe_size"),
        ("keepalive_idle = \"10h\"", "relay.keepalive_idle"),
        ("connect_timeout = \"soon\"", "relay.connect_timeout"),
        ("splice_after = \"many\"", "relay.splice_after"),
        (
            "nat64 = [\"64:ff9b::/96\", \"2001:db8::/33\"]",
            "relay.nat64[1]",
        ),
    ] {
        let e = error(&format!("[relay]\n{line}\n{FORWARD}"));
        assert!(
            e.starts_with(&format!("taut.toml:2: {field}: ")),
            "{line}: {e}"
        );
        assert!(!e.contains('\n'), "{e}");
    }
}

#[test]
fn broken_toml_is_named_with_its_line() {
    let e = error("[relay]\nworkers = = 2\n");
    assert!(e.starts_with("taut.toml:2: "), "{e}");
}

#[test]
fn a_file_without_a_forward_says_so() {
    assert!(error("").contains("no [[relay.forward]]"));
    assert!(error("[relay]\n").contains("no [[relay.forward]]"));
}

#[test]
fn a_missing_file_is_named() {
    let e = Config::load(Path::new("/nonexistent/taut.toml"))
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("cannot read /nonexistent/taut.toml: "), "{e}");
}

#[test]
fn source_lists_are_parsed_and_a_bad_prefix_is_named() {
    let config = Config::parse(
        &format!(
            "[relay]\nidle_timeout = \"5m\"\nmax_sessions_per_source = 7\n{FORWARD}\
             from = [\"10.0.0.0/8\", \"2001:db8::/32\"]\nnot_from = \"10.6.0.0/16\"\n"
        ),
        Path::new("taut.toml"),
    )
    .unwrap();
    assert_eq!(config.timeouts.idle, Some(Duration::from_secs(300)));
    assert_eq!(config.max_sessions_per_source, Some(7));
    let check = |ip: &str| {
        let sources = &config.forwards[0].sources;
        sources.check(ip.parse().unwrap()).is_allowed()
    };
    assert!(check("10.0.0.1") && check("2001:db8::1"));
    assert!(!check("10.6.0.1") && !check("192.0.2.1"));

    let e = error(&format!("{FORWARD}from = [\"10.0.0.0/8\", \"here\"]\n"));
    assert!(e.contains(": relay.forward[0].from[1]: "), "{e}");
    let e = error(
        "[relay.mesh]\nprivate_key_file = \"k\"\nmembers_file = \"m\"\nlisten = \":1\"\nnot_from = \"10.0.0.1/8\"\n",
    );
    assert!(
        e.starts_with("taut.toml:5: relay.mesh.not_from[0]: "),
        "{e}"
    );
}

#[test]
fn headers_behind_a_mesh_are_for_addresses() {
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":1\"\n";
    for key in ["send_proxy", "send_proxy_v1"] {
        let with = |list: &str| format!("{mesh}{key} = {list}\n");
        parse(&with("[\"192.0.2.0/24:443\", \"*:80\"]")).unwrap();
        for name in ["origin.example:443", "*.example:443"] {
            let e = error(&with(&format!("[\"*:80\", \"{name}\"]")));
            let start = format!("taut.toml:5: relay.mesh.{key}: `{name}` is a name");
            assert!(
                e.starts_with(&start) && e.contains("list the addresses"),
                "{e}"
            );
        }
    }
}

#[test]
fn a_window_that_is_not_configured_follows_the_need_within_a_budget() {
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":1\"\n";
    let parsed = |more: &str| parse(&format!("{mesh}{more}\n")).unwrap().mesh.unwrap();
    let default = parsed("");
    assert!(default.leg().sizes_window());
    assert_eq!(default.window_budget, None);
    let fixed = parsed("window = \"24MiB\"");
    assert!(!fixed.leg().sizes_window());
    assert_eq!(fixed.turbo.unwrap().initial_window(), 24 << 20);
    assert!(!parsed("turbo = false").leg().sizes_window());
    let budget = parsed("window_budget = \"512MiB\"").window_budget;
    assert_eq!(budget, Some(512 << 20));
}

#[test]
fn a_leg_to_one_relay_has_the_settings_of_the_mesh_and_its_own() {
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":1\"\n";
    let peer = "[[relay.mesh.peer]]\nname = \"a\"\n";
    let legs = |of_mesh: &str, of_peer: &str| {
        let config = parse(&format!("{mesh}{of_mesh}\n{peer}{of_peer}\n"))?;
        let mesh = config.mesh.unwrap();
        let leg = |name: &str| mesh.leg_to(&name.parse().unwrap());
        Ok::<_, ConfigError>((leg("a"), leg("b")))
    };
    let turbo = |rate, window| LegConfig {
        turbo: Some(Turbo { rate, window }),
        congestion: None,
        max_rate: None,
    };
    let default = Turbo::default();
    let (a, b) = legs("", "").unwrap();
    assert_eq!((&a, &b), (&turbo(default.rate, default.window), &a));
    let (a, b) = legs(
        "rate = \"2gbit\"\nmax_rate = \"4gbit\"",
        "window = \"1MiB\"",
    )
    .unwrap();
    assert_eq!(
        a,
        LegConfig {
            max_rate: Some(500_000_000),
            ..turbo(250_000_000, Some(1 << 20))
        }
    );
    assert_eq!(b.turbo.unwrap().window, default.window);
    // What is off is a default nevertheless.
    let (a, b) = legs("turbo = false\nrate = \"8mbit\"", "turbo = true").unwrap();
    assert_eq!(a, turbo(1_000_000, default.window));
    assert_eq!(b.turbo, None);
    let (a, b) = legs(
        "congestion_control = \"cubic\"",
        "congestion_control = \"turbo\"",
    )
    .unwrap();
    assert_eq!(a, turbo(default.rate, default.window));
    assert_eq!(b.congestion.as_deref(), Some("cubic"));
    for (of_mesh, of_peer, part) in [
        ("max_rate = \"fast\"", "", "relay.mesh.max_rate: `fast`"),
        ("", "rate = \"1\"", "relay.mesh.peer[0].rate: `1`"),
        ("", "window = \"1KiB\"", "relay.mesh.peer[0].window"),
        (
            "window_budget = \"1MiB\"",
            "",
            "relay.mesh.window_budget: `1.0 MiB`",
        ),
        (
            "",
            "turbo = false\ncongestion_control = \"turbo\"",
            "relay.mesh.peer[0].congestion_control: `turbo` needs",
        ),
    ] {
        let error = legs(of_mesh, of_peer).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn with_via_the_last_relay_chooses_the_congestion_control_towards_the_destination() {
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\n";
    let forward = "[[relay.forward]]\nlisten = \":1\"\nto = \"a:1\"\nvia = \"x\"\nupstream_congestion = \"bbr\"\n";
    let error = parse(&format!("{mesh}{forward}")).unwrap_err().to_string();
    assert!(
        error.contains("upstream_congestion` into [relay.mesh]"),
        "{error}"
    );
    // A session that goes directly uses it.
    parse(&format!("{mesh}{forward}direct = true\n")).unwrap();
    let config = parse(&format!(
        "{mesh}listen = \":1\"\nupstream_congestion = \"bbr\"\n"
    ))
    .unwrap();
    let chosen = config.mesh.unwrap().upstream_congestion;
    assert_eq!(chosen.as_deref(), Some("bbr"));
}

#[test]
fn with_via_the_last_relay_chooses_the_way_to_the_destination() {
    let mesh = "[relay.mesh]\nprivate_key_file = \"/k\"\nmembers_file = \"/m\"\nlisten = \":1\"\n";
    let way = "upstream_mark = 7\nupstream_dscp = 46\nupstream_device = \"eth1\"\nupstream_address = \"192.0.2.5\"\n";
    let path = parse(&format!("{mesh}{way}")).unwrap().mesh.unwrap().path;
    assert_eq!((path.mark, path.dscp), (Some(7), Some(46)));
    assert_eq!(path.device.as_deref(), Some("eth1"));
    assert_eq!(path.sources.addrs().len(), 1);
    for (more, part) in [
        (
            "upstream_mark = 0\n",
            "relay.mesh.upstream_mark: must not be 0",
        ),
        (
            "upstream_dscp = 64\n",
            "relay.mesh.upstream_dscp: must be from 0 to 63",
        ),
        (
            "upstream_address = \"x\"\n",
            "relay.mesh.upstream_address: `x`",
        ),
        (
            "source = \"client\"\nupstream_address = \"192.0.2.5\"\n",
            "excludes `upstream_address`",
        ),
        (
            "[[relay.forward]]\nlisten = \":2\"\nto = \"a:1\"\nvia = \"x\"\nupstream_mark = 1\n",
            "write them into [relay.mesh] of the last relay",
        ),
    ] {
        let error = parse(&format!("{mesh}{more}")).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
