use std::time::Duration;

use taut_sys::probe::Answer;

use super::*;

/// The settings of a stock Debian 12 with 16 GiB, in root's shell in a systemd session.
fn stock() -> Host {
    let sysctls = [
        ("fs.file-max", "9223372036854775807"),
        ("fs.nr_open", "1048576"),
        ("fs.pipe-max-size", "1048576"),
        ("fs.pipe-user-pages-soft", "16384"),
        ("net.core.default_qdisc", "fq_codel"),
        ("net.core.somaxconn", "4096"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.all.src_valid_mark", "0"),
        ("net.ipv4.conf.default.rp_filter", "2"),
        ("net.ipv4.ip_forward", "0"),
        ("net.ipv4.ip_local_port_range", "32768 60999"),
        ("net.ipv4.tcp_abort_on_overflow", "0"),
        ("net.ipv4.tcp_available_congestion_control", "reno cubic"),
        ("net.ipv4.tcp_congestion_control", "cubic"),
        ("net.ipv4.tcp_max_syn_backlog", "1024"),
        ("net.ipv4.tcp_moderate_rcvbuf", "1"),
        ("net.ipv4.tcp_mtu_probing", "0"),
        ("net.ipv4.tcp_no_metrics_save", "0"),
        ("net.ipv4.tcp_no_ssthresh_metrics_save", "1"),
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("net.ipv4.tcp_sack", "1"),
        ("net.ipv4.tcp_timestamps", "1"),
        ("net.ipv4.tcp_window_scaling", "1"),
        ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("net.ipv6.conf.all.forwarding", "0"),
    ];
    Host {
        sysctls: sysctls.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        open_files: 1_048_576,
        path: LongPath::ASSUMED,
        memory: 16 << 30,
        page: 4_096,
        root: true,
        devices: vec![device("eth0", "fq_codel")],
        fq: Answer::Yes,
        running: Vec::new(),
        sockmap_programs: Some(Vec::new()),
        steal: Some(Stolen {
            since_boot: 0.0,
            lately: None,
        }),
        intercepting: None,
    }
}

fn device(name: &str, qdisc: &str) -> Device {
    Device {
        name: name.to_owned(),
        qdisc: qdisc.to_owned(),
        below: Vec::new(),
    }
}

fn queues(name: &str, of: &[&str]) -> Device {
    Device {
        below: of.iter().map(|qdisc| (*qdisc).to_owned()).collect(),
        ..device(name, "mq")
    }
}

fn with(name: &str, value: &str) -> Host {
    let mut host = stock();
    host.sysctls.insert(name.to_owned(), value.to_owned());
    host
}

fn finding(host: &Host, id: &str) -> Finding {
    assess(host)
        .into_iter()
        .find(|f| f.id == id)
        .unwrap_or_else(|| panic!("no finding {id}"))
}

fn command(host: &Host, id: &str) -> String {
    let finding = finding(host, id);
    assert_eq!(finding.severity, Severity::Slows, "{finding:?}");
    finding.command.unwrap()
}

#[test]
fn a_stock_debian_is_slow_only_on_paths_with_a_large_bandwidth_delay_product() {
    let findings = assess(&stock());
    let slow = findings
        .iter()
        .filter(|f| f.severity != Severity::Fine)
        .map(|f| f.id);
    assert_eq!(
        slow.collect::<Vec<_>>(),
        ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]
    );
}

#[test]
fn every_sysctl_has_a_stock_value_in_these_tests() {
    let host = stock();
    for name in SYSCTLS {
        assert!(host.sysctls.contains_key(*name), "{name}");
    }
}

#[test]
fn a_buffer_is_raised_to_what_tune_sets_and_its_other_two_numbers_are_kept() {
    let rmem = finding(&stock(), "net.ipv4.tcp_rmem");
    assert_eq!(
        rmem.why,
        "a connection reaches about 252 of 1000 Mbit/s at 100 ms (assumed, as no connection here shows a long path; --rtt gives another)"
    );
    let command = rmem.command.unwrap();
    assert_eq!(
        command,
        "sysctl -w net.ipv4.tcp_rmem='4096 131072 60000000'"
    );
    // Whatever path is seen: `taut tune` keeps it there.
    for millis in [100, 240, 600] {
        let raised = Host {
            path: path(millis, PathSource::Seen),
            ..with("net.ipv4.tcp_rmem", "4096 131072 60000000")
        };
        assert_eq!(
            finding(&raised, "net.ipv4.tcp_rmem").severity,
            Severity::Fine
        );
    }
}

fn path(millis: u64, source: PathSource) -> LongPath {
    LongPath {
        round_trip: Duration::from_millis(millis),
        source,
    }
}

#[test]
fn windows_are_judged_by_the_longest_path() {
    let at = |path| Host { path, ..stock() };
    let short = at(path(20, PathSource::Seen));
    let rmem = finding(&short, "net.ipv4.tcp_rmem");
    assert_eq!(
        (rmem.severity, &*rmem.why),
        (
            Severity::Fine,
            "enough for 1 Gbit/s at 20 ms (the longest round trip of a connection here)"
        )
    );
    let long = at(path(300, PathSource::Given));
    let wmem = finding(&long, "net.ipv4.tcp_wmem");
    assert_eq!(
        wmem.why,
        "a connection reaches about 112 of 1000 Mbit/s at 300 ms (--rtt)"
    );
    let mut unscaled = long;
    let zero = ("net.ipv4.tcp_window_scaling".to_owned(), "0".to_owned());
    unscaled.sysctls.extend([zero]);
    let why = finding(&unscaled, "net.ipv4.tcp_window_scaling").why;
    assert_eq!(
        why,
        "windows are limited to 64 KiB: 1.7 Mbit/s at 300 ms (--rtt)"
    );
}

#[test]
fn the_descriptors_of_a_node_are_counted() {
    let mut host = stock();
    host.open_files = 20_000;
    assert_eq!(finding(&host, "RLIMIT_NOFILE").severity, Severity::Fine);
    host.open_files = 1_024;
    let few = finding(&host, "RLIMIT_NOFILE");
    assert_eq!(few.severity, Severity::Slows);
    assert_eq!(
        few.why,
        "a relay started here holds 320 sessions instead of 8000"
    );
    assert_eq!(
        few.command.unwrap(),
        "prlimit --pid $$ --nofile=32768:32768"
    );
    host.open_files = 64;
    assert_eq!(finding(&host, "RLIMIT_NOFILE").severity, Severity::Blocks);
}

#[test]
fn a_kernel_limit_below_the_wanted_descriptors_is_raised_first() {
    let mut host = with("fs.nr_open", "4096");
    host.open_files = 4_096;
    assert_eq!(
        finding(&host, "RLIMIT_NOFILE").command.unwrap(),
        "sysctl -w fs.nr_open=32768 && prlimit --pid $$ --nofile=32768:32768"
    );
}

#[test]
fn the_limit_of_pipe_pages_does_not_apply_to_root() {
    let mut host = with("fs.pipe-user-pages-soft", "1024");
    assert_eq!(
        finding(&host, "fs.pipe-user-pages-soft").severity,
        Severity::Fine
    );
    host.root = false;
    assert_eq!(
        command(&host, "fs.pipe-user-pages-soft"),
        "sysctl -w fs.pipe-user-pages-soft=8192"
    );
}

#[test]
fn larger_pages_need_fewer_of_them() {
    let mut host = with("fs.pipe-user-pages-soft", "1024");
    host.root = false;
    host.page = 65_536;
    assert_eq!(
        finding(&host, "fs.pipe-user-pages-soft").severity,
        Severity::Fine
    );
}

#[test]
fn a_switch_in_the_wrong_position_has_a_command_that_corrects_it() {
    for (name, wrong, right) in [
        ("net.ipv4.tcp_window_scaling", "0", "1"),
        ("net.ipv4.tcp_sack", "0", "1"),
        ("net.ipv4.tcp_timestamps", "0", "1"),
        ("net.ipv4.tcp_moderate_rcvbuf", "0", "1"),
        ("net.ipv4.tcp_abort_on_overflow", "1", "0"),
    ] {
        assert_eq!(
            command(&with(name, wrong), name),
            format!("sysctl -w {name}={right}")
        );
        assert_eq!(finding(&with(name, right), name).severity, Severity::Fine);
    }
}

#[test]
fn timestamps_without_a_random_offset_count_as_on() {
    let host = with("net.ipv4.tcp_timestamps", "2");
    assert_eq!(
        finding(&host, "net.ipv4.tcp_timestamps").severity,
        Severity::Fine
    );
}

#[test]
fn short_queues_and_few_ports_are_found() {
    assert_eq!(
        command(&with("net.core.somaxconn", "128"), "net.core.somaxconn"),
        "sysctl -w net.core.somaxconn=4096"
    );
    let host = with("net.ipv4.ip_local_port_range", "60000 60999");
    assert_eq!(
        command(&host, "net.ipv4.ip_local_port_range"),
        "sysctl -w net.ipv4.ip_local_port_range='10240 65535'"
    );
}

#[test]
fn cached_metrics_matter_only_where_they_include_the_threshold() {
    const ID: &str = "net.ipv4.tcp_no_metrics_save";
    let mut host = stock();
    host.sysctls.remove("net.ipv4.tcp_no_ssthresh_metrics_save");
    assert_eq!(
        command(&host, ID),
        "sysctl -w net.ipv4.tcp_no_metrics_save=1"
    );
    host.sysctls.insert(ID.to_owned(), "1".to_owned());
    assert_eq!(finding(&host, ID).severity, Severity::Fine);
}

#[test]
fn a_strict_reverse_path_filter_is_reported_unless_it_includes_the_mark() {
    const ID: &str = "net.ipv4.conf.all.rp_filter";
    let mut host = with(ID, "1");
    assert_eq!(
        command(&host, ID),
        "sysctl -w net.ipv4.conf.all.rp_filter=2"
    );
    host.sysctls.insert(
        "net.ipv4.conf.all.src_valid_mark".to_owned(),
        "1".to_owned(),
    );
    assert_eq!(finding(&host, ID).severity, Severity::Fine);
}

#[test]
fn a_sysctl_that_the_kernel_lacks_is_left_out() {
    let host = Host {
        sysctls: BTreeMap::new(),
        ..stock()
    };
    assert_eq!(
        assess(&host).iter().map(|f| f.id).collect::<Vec<_>>(),
        ["RLIMIT_NOFILE", "bpftune", "sockmap"]
    );
}

const THERE: Presence = Presence {
    rule: true,
    route: true,
};

/// Returns a stock host with these settings, on which a relay intercepts.
fn intercepting(settings: &[(&str, &str)], presence: [Presence; 2]) -> Host {
    let mut host = stock();
    for (name, value) in settings {
        host.sysctls.insert((*name).to_owned(), (*value).to_owned());
    }
    host.intercepting = Some(presence);
    host
}

#[test]
fn missing_forwarding_is_reported_only_where_a_relay_intercepts() {
    const ID: &str = "net.ipv4.ip_forward";
    assert_eq!(finding(&stock(), ID).severity, Severity::Fine);
    assert_eq!(
        command(&intercepting(&[], [THERE; 2]), ID),
        "sysctl -w net.ipv4.ip_forward=1"
    );
    let router = intercepting(&[(ID, "1")], [THERE; 2]);
    assert_eq!(finding(&router, ID).severity, Severity::Fine);
}

#[test]
fn a_reverse_path_filter_with_the_mark_is_reported_where_a_relay_intercepts() {
    const ID: &str = "net.ipv4.conf.all.src_valid_mark";
    let strict = ("net.ipv4.conf.all.rp_filter", "1");
    let host = intercepting(&[strict, (ID, "1")], [THERE; 2]);
    assert_eq!(command(&host, ID), format!("sysctl -w {ID}=0"));
    // Either setting alone does no harm.
    let host = intercepting(
        &[("net.ipv4.conf.default.rp_filter", "0"), (ID, "1")],
        [THERE; 2],
    );
    assert_eq!(finding(&host, ID).severity, Severity::Fine);
    assert!(assess(&with(ID, "1")).iter().all(|f| f.id != ID));
}

#[test]
fn a_removed_policy_route_is_reported() {
    const RULE: &str = "ip rule 74";
    const ROUTE: &str = "ip route table 29793";
    let gone = Presence {
        rule: false,
        route: false,
    };
    assert!(
        assess(&stock())
            .iter()
            .all(|f| f.id != RULE && f.id != ROUTE)
    );
    let whole = intercepting(&[], [THERE; 2]);
    assert_eq!(finding(&whole, RULE).severity, Severity::Fine);
    assert_eq!(finding(&whole, ROUTE).severity, Severity::Fine);
    let host = intercepting(&[], [THERE, gone]);
    assert_eq!(
        command(&host, RULE),
        "ip -6 rule add priority 74 fwmark 0x7461 lookup 29793"
    );
    assert_eq!(
        command(&host, ROUTE),
        "ip -6 route add local default dev lo table 29793"
    );
}

#[test]
fn a_kernel_without_fq_is_not_told_to_use_it() {
    const ID: &str = "net.core.default_qdisc";
    let mut host = with("net.ipv4.tcp_congestion_control", "bbr");
    assert_eq!(finding(&host, ID).severity, Severity::Slows);
    for (fq, state, why) in [
        (
            Answer::No("none".into()),
            State::Known,
            "this kernel has no fq",
        ),
        (
            Answer::NeedsRoot,
            State::NeedsRoot,
            "cannot be told whether this kernel has fq",
        ),
        (
            Answer::Unknown("?".into()),
            State::Unknown,
            "cannot be told whether this kernel has fq",
        ),
    ] {
        host.fq = fq;
        let finding = finding(&host, ID);
        assert_eq!((finding.severity, finding.state), (Severity::Fine, state));
        assert_eq!(finding.command, None);
        assert!(finding.why.contains(why), "{}", finding.why);
    }
}

#[test]
fn a_sender_with_bbr_is_told_to_pace_by_fq_on_each_device() {
    const ID: &str = "net.core.default_qdisc";
    assert_eq!(finding(&stock(), ID).severity, Severity::Fine);
    for control in ["bbr", "taut_bbr"] {
        let mut host = with("net.ipv4.tcp_congestion_control", control);
        host.devices.push(queues("eth1", &["fq_codel", "fq_codel"]));
        assert_eq!(
            command(&host, ID),
            "sysctl -w net.core.default_qdisc=fq && tc qdisc replace dev eth0 root fq \
             && tc qdisc replace dev eth1 root mq"
        );
        // Queues that were there before the default keep what they have.
        host.sysctls.insert(ID.to_owned(), "fq".to_owned());
        assert_eq!(
            command(&host, ID),
            "tc qdisc replace dev eth0 root fq && tc qdisc replace dev eth1 root mq"
        );
        host.devices[1] = queues("eth1", &["fq", "fq"]);
        assert_eq!(command(&host, ID), "tc qdisc replace dev eth0 root fq");
        assert_eq!(finding(&host, ID).value, "fq, fq_codel on eth0");
        host.devices[0] = device("eth0", "fq");
        assert_eq!(finding(&host, ID).severity, Severity::Fine);
    }
}

#[test]
fn what_an_administrator_has_chosen_for_a_device_is_named_and_not_replaced() {
    const ID: &str = "net.core.default_qdisc";
    let mut host = with("net.ipv4.tcp_congestion_control", "bbr");
    host.sysctls.insert(ID.to_owned(), "fq".to_owned());
    for chosen in [
        device("eth0", "htb"),
        device("eth0", "cake"),
        device("eth0", "mq"),
        queues("eth0", &["fq", "tbf"]),
    ] {
        host.devices = vec![chosen.clone()];
        let finding = finding(&host, ID);
        assert_eq!(finding.state, State::Unknown, "{chosen:?}: {finding:?}");
        assert_eq!(finding.command, None, "{chosen:?}");
        assert_eq!(finding.value, format!("fq, {} on eth0", chosen.qdisc));
    }
    host.devices = vec![device("eth0", "htb"), device("eth1", "pfifo_fast")];
    assert_eq!(command(&host, ID), "tc qdisc replace dev eth1 root fq");
    host.devices = vec![device("wlan0", "noqueue"), device("eth1", "noop")];
    let without_queues = finding(&host, ID);
    assert_eq!(without_queues.state, State::Known);
    assert_eq!(without_queues.severity, Severity::Fine);
}

#[test]
fn a_guest_with_bbr_that_is_taken_off_its_cpu_is_told_to_ask_how_often() {
    const ID: &str = "steal";
    assert!(assess(&stock()).iter().all(|f| f.id != ID));
    let stolen = |since_boot, lately| Some(Stolen { since_boot, lately });
    let mut host = stock();
    host.steal = stolen(0.08, None);
    assert_eq!(finding(&host, ID).severity, Severity::Fine, "cubic");
    let mut host = with("net.ipv4.tcp_congestion_control", "bbr");
    host.steal = stolen(0.002, None);
    assert_eq!(finding(&host, ID).severity, Severity::Fine);
    host.steal = stolen(0.08, Some(0.03));
    assert_eq!(command(&host, ID), "taut guest status");
    assert_eq!(
        finding(&host, ID).value,
        "3.0 % of the CPU time in the last second"
    );
    host.steal = stolen(0.08, Some(0.0));
    assert_eq!(finding(&host, ID).severity, Severity::Fine, "not any more");
    let mut host = with("net.ipv4.tcp_congestion_control", "taut_bbr");
    host.steal = stolen(0.08, Some(0.03));
    assert_eq!(finding(&host, ID).severity, Severity::Fine);
}

#[test]
fn agents_that_conflict_with_taut_are_named() {
    let mut host = stock();
    assert_eq!(finding(&host, "bpftune").severity, Severity::Fine);
    assert_eq!(finding(&host, "sockmap").severity, Severity::Fine);
    host.running.push(("bpftune", 812));
    host.sockmap_programs = Some(vec![("packet_ext".into(), 31), ("verdict".into(), 32)]);
    assert_eq!(command(&host, "bpftune"), "systemctl disable --now bpftune");
    assert_eq!(finding(&host, "bpftune").value, "running, process 812");
    assert_eq!(command(&host, "sockmap"), "bpftool prog show id 31");
    assert_eq!(
        finding(&host, "sockmap").value,
        "packet_ext (BPF program 31), verdict (BPF program 32)"
    );
}

#[test]
fn without_the_right_to_list_programs_it_is_unknown_whether_an_agent_is_there() {
    let mut host = stock();
    host.sockmap_programs = None;
    let finding = finding(&host, "sockmap");
    assert_eq!(finding.state, State::NeedsRoot);
    assert_eq!(finding.command, None);
}
