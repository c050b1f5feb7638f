//! The properties of the running kernel that the programs depend on.

use std::fs;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use taut_bpf::kernel::cong_control_arguments;

use crate::raw::GuestConfig;

/// The shortest gap in nanoseconds. A timer of a running machine is late by tens of microseconds,
/// or by a few hundred where the kernel disables interrupts; a hypervisor's slice is 3 ms or more.
const SHORTEST_NS: u64 = 2_000_000;

/// Properties of the running kernel, read from its types rather than its version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// `bbr_main()` takes four arguments (Linux 6.10).
    pub(crate) has_ack_and_flag: bool,
    /// struct_ops can be registered by links (Linux 6.4).
    pub(crate) has_links: bool,
    /// Timers cannot be bound to a CPU.
    pub(crate) has_one_cpu: bool,
}

// === impl Kernel ===

impl Kernel {
    pub(crate) fn probe() -> Self {
        let btf = Btf::from_vmlinux().ok();
        let btf = btf.as_ref();
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        Self {
            has_ack_and_flag: btf.and_then(cong_control_arguments) == Some(4),
            has_links: btf
                .and_then(|btf| btf.type_by_name::<Struct<'_>>("bpf_struct_ops_link"))
                .is_some(),
            has_one_cpu: online.is_ok_and(|cpus| cpus.trim() == "0"),
        }
    }

    pub(crate) fn config(self) -> GuestConfig {
        GuestConfig {
            shortest_ns: SHORTEST_NS,
            has_ack_and_flag: self.has_ack_and_flag.into(),
            has_one_cpu: self.has_one_cpu.into(),
            ..GuestConfig::default()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_gap_is_the_default_of_the_programs() {
        let header = include_str!("bpf/gap.h");
        let shortest = header.split_once(".shortest_ns =").unwrap().1;
        let (shortest, _) = shortest.split_once(" * NS_PER_MS,").unwrap();
        let shortest: u64 = shortest.trim().parse().unwrap();
        assert_eq!(shortest * 1_000_000, SHORTEST_NS);
    }

    #[test]
    fn the_programs_are_told_what_the_kernel_has() {
        let kernel = |has_ack_and_flag, has_one_cpu| Kernel {
            has_ack_and_flag,
            has_links: false,
            has_one_cpu,
        };
        let (ack, one) = (kernel(true, false).config(), kernel(false, true).config());
        assert_eq!(ack.shortest_ns, SHORTEST_NS);
        assert_eq!((ack.has_ack_and_flag, ack.has_one_cpu), (1, 0));
        assert_eq!((one.has_ack_and_flag, one.has_one_cpu), (0, 1));
    }
}
