//! The features, in the order in which they are shown.

use taut_snoop::copies::Copies;
use taut_snoop::program::Program;
use taut_sys::probe::{Answer, bpf, link, nft_tproxy, process, qdisc, socket};

use super::Group::{Bpf, Guests, Intercept, Lab, Relay, Snoop};
use super::{Feature, Group};
use crate::doctor::severity::Severity::{self, Blocks, Fine, Slows};

/// The emulator of this machine's own architecture, and Debian's package of it.
#[cfg(target_arch = "aarch64")]
const QEMU: (&str, &str) = ("qemu-system-aarch64", "apt-get install qemu-system-arm");
#[cfg(not(target_arch = "aarch64"))]
const QEMU: (&str, &str) = ("qemu-system-x86_64", "apt-get install qemu-system-x86");

/// A row: id, name, used for, if missing, what its absence is, probe.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Severity,
    fn() -> Answer,
);

const fn of(group: Group, row: Row) -> Feature {
    let (id, name, used_for, if_missing, absence, probe) = row;
    Feature {
        id,
        group,
        name,
        used_for,
        if_missing,
        absence,
        probe,
    }
}

/// Every feature that is looked for.
#[rustfmt::skip] // A table: a row stays together.
pub(crate) const FEATURES: &[Feature] = &[
    of(Relay, ("splice", "splice through a pipe", "moving bytes without copying them", "every byte is copied twice",
        Slows, socket::splice_through_pipe)),
    of(Relay, ("epoll_pwait2", "epoll_pwait2", "timers finer than 1 ms", "timers are rounded up to 1 ms",
        Slows, socket::epoll_pwait2)),
    of(Relay, ("so_reuseport", "SO_REUSEPORT", "one listener a core", "the relay cannot listen",
        Blocks, socket::reuseport)),
    of(Relay, ("ipv6", "IPv6", "listening and dialling on IPv6", "IPv4 only",
        Slows, socket::ipv6)),
    of(Relay, ("tcp_user_timeout", "TCP_USER_TIMEOUT", "giving up on a peer that went silent", "it takes 15 minutes",
        Slows, socket::user_timeout)),
    of(Relay, ("bind_no_port", "IP_BIND_ADDRESS_NO_PORT", "dialling many places from one address", "28 thousand sessions in all, not to each place",
        Slows, socket::bind_address_no_port)),
    of(Relay, ("local_port_range", "IP_LOCAL_PORT_RANGE", "source ports of the relay's own", "the host's range is shared",
        Fine, socket::local_port_range)),
    of(Relay, ("cc_cubic", "congestion: cubic", "legs that face the Internet", "the host's default is used",
        Fine, || socket::congestion_control("cubic"))),
    of(Relay, ("cc_reno", "congestion: reno", "a yardstick in experiments", "no such yardstick",
        Fine, || socket::congestion_control("reno"))),
    of(Relay, ("cc_bbr", "congestion: bbr", "legs between relays that lose packets", "loss slows long legs",
        Fine, || socket::congestion_control("bbr"))),

    of(Lab, ("netns", "network namespaces", "the hosts of a world", "no experiment can run",
        Blocks, link::namespaces)),
    of(Lab, ("tap_offload", "TAP with TSO", "the lab's own links", "no experiment can run",
        Blocks, link::tap_with_offload)),
    of(Lab, ("netem", "netem", "links in the kernel", "the lab's own links are used, for some CPU",
        Fine, qdisc::netem)),
    of(Lab, ("fq", "fq", "pacing by the qdisc", "TCP paces by its own timers",
        Fine, qdisc::fq)),
    of(Lab, ("veth", "veth", "links without a TAP", "the lab's own links are used",
        Fine, link::veth)),
    of(Lab, ("bridge", "bridge", "guests on one segment", "no world with guests on a bridge",
        Fine, link::bridge)),

    of(Intercept, ("nft_tproxy", "nftables TPROXY", "transparent forwards, without BPF", "a BPF program at the device is used",
        Fine, nft_tproxy)),
    of(Intercept, ("clsact", "clsact", "BPF at a device, before tcx", "tcx is used",
        Fine, qdisc::clsact)),
    of(Intercept, ("tcx", "tcx", "BPF at a device, gone with its owner", "clsact or nftables is used",
        Fine, bpf::tcx)),
    of(Intercept, ("sk_lookup", "BPF sk_lookup", "listening on any address and port", "nftables TPROXY is used",
        Fine, bpf::sk_lookup)),
    of(Intercept, ("sk_reuseport", "BPF sk_reuseport", "choosing the core that takes a connection", "the kernel's hash chooses",
        Fine, bpf::sk_reuseport)),

    of(Snoop, ("sched_cls", "BPF sched_cls", "programs at a tap", "no taut snoop",
        Fine, bpf::sched_cls)),
    of(Snoop, ("snoop_programs", "the programs themselves", "acknowledging for guests", "no taut snoop",
        Fine, snoop_programs)),
    of(Snoop, ("clone_redirect", "bpf_clone_redirect", "knowing what the ring has taken", "no taut snoop: no promise could be kept",
        Fine, bpf::clone_redirect)),
    of(Snoop, ("bpf_loop", "bpf_loop", "reading the options of TCP", "no taut snoop",
        Fine, bpf::loops)),
    of(Snoop, ("bpf_ringbuf", "BPF ring buffer", "hearing of a guest that lost what was promised", "no taut snoop",
        Fine, bpf::ring_buffer)),
    of(Snoop, ("tcx_both", "tcx at both hooks", "programs at a tap that go with their process", "clsact is used; what is killed leaves them, and they rest after 10 s",
        Fine, bpf::tcx_at_both_hooks)),
    of(Snoop, ("tap", "TAP", "the devices of guests", "no taut snoop: macvtap, vhost-user and SR-IOV have no ring that is seen",
        Fine, link::tap)),
    of(Snoop, ("noqueue", "noqueue", "nothing that drops before the ring", "taps that have a queue are left alone",
        Fine, qdisc::noqueue)),

    of(Bpf, ("bpf", "bpf system call", "everything below", "no BPF at all",
        Fine, bpf::permitted)),
    of(Bpf, ("btf", "kernel BTF", "one program for many kernels", "BPF programs cannot be loaded",
        Fine, bpf::btf)),
    of(Bpf, ("sock_ops", "BPF sock_ops", "windows of each leg", "route metrics are used",
        Fine, bpf::sock_ops)),
    of(Bpf, ("tcp_struct_ops", "BPF congestion control", "Taut's own congestion controls", "the kernel's are used",
        Fine, bpf::tcp_congestion_ops)),
    of(Bpf, ("iter_tcp", "BPF iterator over TCP sockets", "looking at every connection cheaply", "sock_diag is used",
        Fine, bpf::tcp_iterator)),
    of(Bpf, ("kprobes", "kprobes", "tracing what has no tracepoint", "tracepoints only",
        Fine, process::kprobes)),

    of(Guests, ("pidfd", "pidfd", "watching processes without races", "process numbers are used",
        Fine, process::pidfd)),
    of(Guests, ("cgroup2", "cgroup v2", "BPF for a group of processes", "BPF for the whole host only",
        Fine, process::cgroup_v2)),
    of(Guests, ("freezer", "cgroup freezer", "stopping a guest as one", "SIGSTOP is used",
        Fine, process::freezer)),
    of(Guests, ("kvm", "KVM", "guests at full speed", "guests run under UML or emulation",
        Fine, process::kvm)),
    of(Guests, ("uml", "User Mode Linux", "small guests, fast to boot", "apt-get install user-mode-linux",
        Fine, || process::program("linux.uml"))),
    of(Guests, ("qemu", "QEMU", "guests with modules and BPF", QEMU.1,
        Fine, || process::program(QEMU.0))),
];

/// Bytes of a ring buffer that is made and not used: a page of any kernel's, and a power of two.
const COPIES: u32 = 1 << 16;

/// Whether the kernel takes the programs of `taut snoop`, which names what it does not like.
fn snoop_programs() -> Answer {
    match bpf::permitted() {
        Answer::Yes => match Copies::new(COPIES).and_then(|copies| Program::load(1, &copies)) {
            Ok(_) => Answer::Yes,
            Err(error) => Answer::No(error.to_string()),
        },
        other => other,
    }
}
