//! The features, in the order of the report.

use taut_guest::module;
use taut_snoop::copies::Copies;
use taut_snoop::program::Program;
use taut_sys::probe::{Answer, bpf, link, nft_tproxy, process, qdisc, socket};

use super::Group::{Bpf, Guests, Intercept, Lab, Relay, Snoop};
use super::{Feature, Group};
use crate::doctor::severity::Severity::{self, Blocks, Fine, Slows};

/// The emulator of this machine's architecture.
#[cfg(target_arch = "aarch64")]
const QEMU: &str = "qemu-system-aarch64";
#[cfg(not(target_arch = "aarch64"))]
const QEMU: &str = "qemu-system-x86_64";

/// A row: ID, name, use, consequence if missing, severity of its absence, the first kernel, probe.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Severity,
    &'static str,
    fn() -> Answer,
);

/// The first kernel of features that every kernel has for which Taut is made, if it is built with
/// them.
const ALL: &str = "6.1";

const fn of(group: Group, row: Row) -> Feature {
    let (id, name, used_for, if_missing, absence, since, probe) = row;
    Feature {
        id,
        group,
        name,
        used_for,
        if_missing,
        absence,
        since,
        probe,
    }
}

/// Every feature that is probed.
#[rustfmt::skip] // A table: a row stays together.
pub(crate) const FEATURES: &[Feature] = &[
    of(Relay, ("splice", "splice through a pipe", "forwarding without copying", "every byte is copied twice",
        Slows, ALL, socket::splice_through_pipe)),
    of(Relay, ("epoll_pwait2", "epoll_pwait2", "timers finer than 1 ms", "timers are rounded up to 1 ms",
        Slows, ALL, socket::epoll_pwait2)),
    of(Relay, ("so_reuseport", "SO_REUSEPORT", "one listener per core", "the relay cannot listen",
        Blocks, ALL, socket::reuseport)),
    of(Relay, ("ipv6", "IPv6", "listening and dialling on IPv6", "IPv4 only",
        Slows, ALL, socket::ipv6)),
    of(Relay, ("tcp_user_timeout", "TCP_USER_TIMEOUT", "detecting a dead peer", "detection takes 15 minutes",
        Slows, ALL, socket::user_timeout)),
    of(Relay, ("bind_no_port", "IP_BIND_ADDRESS_NO_PORT", "reusing source ports for several destinations", "28,000 sessions in total, not per destination",
        Slows, ALL, socket::bind_address_no_port)),
    of(Relay, ("local_port_range", "IP_LOCAL_PORT_RANGE", "a port range for the relay alone", "the host's range is shared",
        Fine, "6.3", socket::local_port_range)),
    of(Relay, ("kernel_tls", "TLS in the kernel", "splice between relays with TLS", "the relay encrypts and copies every byte between relays",
        Fine, ALL, socket::kernel_tls)),
    of(Relay, ("cc_cubic", "congestion: cubic", "legs to the Internet", "the host's default is used",
        Fine, ALL, || socket::congestion_control("cubic"))),
    of(Relay, ("cc_reno", "congestion: reno", "comparison in experiments", "no comparison with reno",
        Fine, ALL, || socket::congestion_control("reno"))),
    of(Relay, ("cc_bbr", "congestion: bbr", "lossy legs between relays", "loss slows long legs",
        Fine, ALL, || socket::congestion_control("bbr"))),

    of(Lab, ("netns", "network namespaces", "hosts of a world", "no experiment can run",
        Blocks, ALL, link::namespaces)),
    of(Lab, ("tap_offload", "TAP with TSO", "links of a world", "no experiment can run",
        Blocks, ALL, link::tap_with_offload)),
    of(Lab, ("netem", "netem", "emulating links in the kernel", "links are emulated in user space, at some CPU cost",
        Fine, ALL, qdisc::netem)),
    of(Lab, ("fq", "fq", "pacing by the qdisc", "TCP paces with its own timers",
        Fine, ALL, qdisc::fq)),
    of(Lab, ("veth", "veth", "links without a TAP", "TAP links are used",
        Fine, ALL, link::veth)),
    of(Lab, ("bridge", "bridge", "guests on one segment", "no worlds with guests on a bridge",
        Fine, ALL, link::bridge)),

    of(Intercept, ("nft_tproxy", "nftables TPROXY", "transparent forwards without BPF", "a BPF program at the device is used",
        Fine, ALL, nft_tproxy)),
    of(Intercept, ("clsact", "clsact", "BPF at a device without tcx", "tcx is used",
        Fine, ALL, qdisc::clsact)),
    of(Intercept, ("tcx", "tcx", "BPF at a device, detached when its process ends", "clsact or nftables is used",
        Fine, "6.6", bpf::tcx)),
    of(Intercept, ("sk_lookup", "BPF sk_lookup", "listening on any address and port", "nftables TPROXY is used",
        Fine, ALL, bpf::sk_lookup)),
    of(Intercept, ("sk_reuseport", "BPF sk_reuseport", "selecting the core for a connection", "the kernel's hash selects it",
        Fine, ALL, bpf::sk_reuseport)),

    of(Snoop, ("sched_cls", "BPF sched_cls", "BPF programs at a tap", "no taut snoop",
        Fine, ALL, bpf::sched_cls)),
    of(Snoop, ("snoop_programs", "snoop's BPF programs", "acknowledging for guests", "no taut snoop",
        Fine, ALL, snoop_programs)),
    of(Snoop, ("clone_redirect", "bpf_clone_redirect", "knowing which packets the guest's ring has accepted", "no taut snoop: early ACKs would be unsafe",
        Fine, ALL, bpf::clone_redirect)),
    of(Snoop, ("bpf_loop", "bpf_loop", "parsing TCP options", "no taut snoop",
        Fine, ALL, bpf::loops)),
    of(Snoop, ("bpf_ringbuf", "BPF ring buffer", "reporting data lost after an early ACK", "no taut snoop",
        Fine, ALL, bpf::ring_buffer)),
    of(Snoop, ("tcx_both", "tcx at both hooks", "programs that are detached when their process ends", "clsact is used: after a kill, programs stay attached and go idle after 10 s",
        Fine, "6.6", bpf::tcx_at_both_hooks)),
    of(Snoop, ("tap", "TAP", "network devices of guests", "no taut snoop: it cannot see the rings of macvtap, vhost-user and SR-IOV",
        Fine, ALL, link::tap)),
    of(Snoop, ("noqueue", "noqueue", "no drops before the ring", "taps with a qdisc are left alone",
        Fine, ALL, qdisc::noqueue)),

    of(Bpf, ("bpf", "bpf system call", "every BPF feature", "no BPF at all",
        Fine, ALL, bpf::permitted)),
    of(Bpf, ("btf", "kernel BTF", "one program for many kernels", "BPF programs cannot load",
        Fine, ALL, bpf::btf)),
    of(Bpf, ("sock_ops", "BPF sock_ops", "initial windows per leg", "route metrics are used",
        Fine, ALL, bpf::sock_ops)),
    of(Bpf, ("tcp_struct_ops", "BPF congestion control", "fast starts in a mesh, and taut guest", "the kernel's are used, and there is no taut guest",
        Fine, ALL, bpf::tcp_congestion_ops)),
    of(Bpf, ("iter_tcp", "BPF iterator over TCP sockets", "scanning all connections at low cost", "sock_diag is used",
        Fine, ALL, bpf::tcp_iterator)),
    of(Bpf, ("iter_sk_storage", "BPF iterator over socket storage", "scanning without a walk through the table of sockets", "each scan walks the namespaces with connections",
        Fine, ALL, bpf::socket_storage_iterator)),
    of(Bpf, ("kprobes", "kprobes", "tracing without tracepoints", "tracepoints only",
        Fine, ALL, process::kprobes)),

    of(Guests, ("taut_pvtcp", "module taut_pvtcp", "round trips without gaps, in a guest", "taut guest corrects congestion control alone",
        Fine, ALL, guest_module)),
    of(Guests, ("pidfd", "pidfd", "watching processes without races", "PIDs are used",
        Fine, ALL, process::pidfd)),
    of(Guests, ("cgroup2", "cgroup v2", "BPF for a group of processes", "BPF for the whole host only",
        Fine, ALL, process::cgroup_v2)),
    of(Guests, ("freezer", "cgroup freezer", "pausing a whole guest", "SIGSTOP is used",
        Fine, ALL, process::freezer)),
    of(Guests, ("kvm", "KVM", "guests at full speed", "guests run under UML or emulation",
        Fine, ALL, process::kvm)),
    of(Guests, ("uml", "User Mode Linux", "small guests that boot fast", "apt-get install user-mode-linux",
        Fine, ALL, || process::program("linux.uml"))),
    of(Guests, ("qemu", "QEMU", "guests with modules and BPF", "apt-get install qemu-system-x86, or -arm on arm64",
        Fine, ALL, || process::program(QEMU))),
];

/// Probes whether Taut's kernel module is loaded.
fn guest_module() -> Answer {
    match module::counters() {
        Some(_) => Answer::Yes,
        None => Answer::No("it is not loaded; the package taut-pvtcp-dkms has it".into()),
    }
}

/// Size of an unused ring buffer in bytes: a power of two and a multiple of every page size.
const COPIES: u32 = 1 << 16;

/// Probes whether the kernel accepts the programs of `taut snoop`. The error names the rejected
/// part.
fn snoop_programs() -> Answer {
    match bpf::permitted() {
        Answer::Yes => match Copies::new(COPIES).and_then(|copies| Program::load(1, &copies)) {
            Ok(_) => Answer::Yes,
            Err(error) => Answer::No(error.to_string()),
        },
        other => other,
    }
}
