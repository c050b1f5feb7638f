//! Probes of queueing disciplines, each attached to the loopback device of a private network
//! namespace.

use std::io;

use super::module::unless_it_loads;
use super::{Answer, network};
use crate::netlink::{ACK, CREATE, EXCL, Message, REQUEST, ROUTE};

const ROOT: u32 = 0xFFFF_FFFF;
const CLSACT: u32 = 0xFFFF_FFF1;
const CLSACT_HANDLE: u32 = 0xFFFF_0000;

/// Probes for netem, which emulates delay, loss and rate.
pub fn netem() -> Answer {
    // struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter. A limit of 0 drops all.
    let mut options = [0; 24];
    options[4..8].copy_from_slice(&1000u32.to_ne_bytes());
    attached("netem", &["sch_netem"], 0, ROOT, Some(options))
}

/// Probes for fq, which paces and queues fairly by flow.
pub fn fq() -> Answer {
    attached("fq", &["sch_fq"], 0, ROOT, None)
}

/// Probes for noqueue: packets go straight to the device, and the device's refusal is reported at
/// once.
pub fn noqueue() -> Answer {
    attached("noqueue", &[], 0, ROOT, None)
}

/// Probes for clsact, the hook for BPF at a device's ingress and egress.
pub fn clsact() -> Answer {
    attached("clsact", &["sch_ingress"], CLSACT_HANDLE, CLSACT, None)
}

fn attached(
    kind: &str,
    modules: &[&str],
    handle: u32,
    parent: u32,
    options: Option<[u8; 24]>,
) -> Answer {
    unless_it_loads(modules, || {
        network::in_private(|| match add(kind, handle, parent, options) {
            // ENOENT: the kernel has no such qdisc.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Answer::No(format!("no {kind} in this kernel"))
            }
            outcome => Answer::of(outcome),
        })
    })
}

fn add(kind: &str, handle: u32, parent: u32, options: Option<[u8; 24]>) -> io::Result<()> {
    const RTM_NEWQDISC: u16 = 36;
    const TCA_KIND: u16 = 1;
    const TCA_OPTIONS: u16 = 2;
    const LOOPBACK: u32 = 1;
    // struct tcmsg: family and padding, interface, handle, parent, info.
    let tcmsg = [0, LOOPBACK, handle, parent, 0]
        .map(u32::to_ne_bytes)
        .concat();
    Message::default()
        .message(RTM_NEWQDISC, REQUEST | ACK | CREATE | EXCL, 1, |m| {
            let m = m.raw(&tcmsg).name(TCA_KIND, kind);
            match options {
                Some(options) => m.attribute(TCA_OPTIONS, &options),
                None => m,
            }
        })
        .send(ROUTE, 1)
}
