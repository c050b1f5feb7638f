//! Legs between relays whose TLS is in the kernel. Without such a kernel, only that sessions work.

use std::fs;
use std::io::{Read, Write};
use std::path::Path as FilePath;
use std::thread;

use crate::mesh_rig::*;
use crate::rig::*;
use taut_relay::node::Node;
use taut_relay::outcome::session_end::End;

const MIB: usize = 1 << 20;

/// Returns the relays of a path whose TLS must be in the kernel.
fn in_kernel(rig: &Rig, ends: Ends) -> Vec<&Node> {
    let (near, far) = (&rig.node, rig.far.as_ref().unwrap());
    match ends {
        _ if !has_kernel_tls() => Vec::new(),
        Ends::Both => vec![near, far],
        Ends::Near => vec![near],
        Ends::Far => vec![far],
    }
}

#[test]
fn bytes_are_spliced_through_the_kernels_tls_at_one_end_or_both() {
    for splice_after in [0, 128 << 10] {
        for ends in [Ends::Both, Ends::Near, Ends::Far] {
            let rig = Rig::with(Path::KernelTls(ends), |config| {
                config.data.splice_after = Some(splice_after);
            });
            let (mut client, mut server) = rig.pair();
            exchange(&mut client, &mut server, 4 * MIB);
            drop((client, server));
            rig.expect_end(End::Complete);
            for node in in_kernel(&rig, ends) {
                let count = |name: &str| count(node, name);
                assert_eq!(count("taut_relay_tls_legs_total"), 1);
                assert_eq!(count("taut_relay_kernel_tls_legs_total"), 1);
                assert_eq!(count("taut_relay_kernel_tls_fall_backs_total"), 0);
                for direction in ["received", "sent"] {
                    let name =
                        format!("taut_relay_kernel_tls_bytes_total{{direction=\"{direction}\"}}");
                    // The first bytes are copied, and what comes while there is no pipe or room.
                    let spliced = count(&name);
                    assert!(spliced > 2 << 20, "{ends:?}, {direction}: {spliced}");
                }
                let records = "taut_relay_kernel_tls_records_total";
                assert_eq!(count(records), 1);
                assert_eq!(count(&format!("{records}{{kind=\"close_notify\"}}")), 1);
            }
        }
    }
}

#[test]
fn a_short_session_keeps_its_keys_in_the_process() {
    let rig = Rig::with(Path::KernelTls(Ends::Both), |config| {
        config.data.splice_after = Some(128 << 10);
    });
    let (mut client, mut server) = rig.pair();
    exchange(&mut client, &mut server, 1000);
    drop((client, server));
    rig.expect_end(End::Complete);
    assert_eq!(count(&rig.node, "taut_relay_tls_legs_total"), 1);
    assert_eq!(count(&rig.node, "taut_relay_kernel_tls_legs_total"), 0);
}

#[test]
fn kernel_tls_can_be_turned_off() {
    let rig = Rig::with(Path::Protected, |config| config.data.splice_after = Some(0));
    let (mut client, mut server) = rig.pair();
    exchange(&mut client, &mut server, MIB);
    drop((client, server));
    rig.expect_end(End::Complete);
    assert_eq!(count(&rig.node, "taut_relay_kernel_tls_legs_total"), 0);
    assert_eq!(
        count(&rig.node, "taut_relay_kernel_tls_fall_backs_total"),
        0
    );
}

/// Prints the system calls and the copied bytes of both relays for each GB, with TLS in the process and in the
/// kernel. Needs root and tracefs: `scripts/on-kernel --module tls 6.12 BINARY --ignored --nocapture figures`.
#[test]
#[ignore = "prints figures, and traces the whole machine"]
fn figures_of_system_calls_and_copies() {
    const BYTES: usize = 256 * MIB;
    for (name, path) in [
        ("process", Path::Protected),
        ("kernel", Path::KernelTls(Ends::Both)),
    ] {
        let rig = Rig::with(path, |config| config.workers = Some(1));
        let (mut client, mut server) = rig.pair();
        let sent = stream(MIB, 1);
        // The first bytes are copied on both paths.
        server.write_all(&sent).unwrap();
        client.read_exact(&mut vec![0; MIB]).unwrap();
        let trace = Trace::start();
        thread::scope(|s| {
            s.spawn(|| (0..BYTES / MIB).for_each(|_| server.write_all(&sent).unwrap()));
            let mut part = vec![0; MIB];
            (0..BYTES / MIB).for_each(|_| client.read_exact(&mut part).unwrap());
        });
        let calls = trace.end();
        let spliced: u64 = [&rig.node, rig.far.as_ref().unwrap()]
            .map(|node| count(node, "taut_relay_kernel_tls_bytes_total"))
            .iter()
            .sum();
        println!(
            "TLS in the {name}: {BYTES} bytes through two relays, spliced at legs with TLS: {spliced}"
        );
        let mut all = 0;
        for (call, times) in calls {
            println!("  {call}: {:.0} a GB and relay", per_gb(times, BYTES));
            all += times;
        }
        println!(
            "  all system calls: {:.0} a GB and relay",
            per_gb(all, BYTES)
        );
        println!(
            "  copies of a byte between the kernel and a relay: {:.2}",
            2.0 * (1.0 - spliced.min(2 * BYTES as u64) as f64 / (2 * BYTES) as f64)
        );
    }
}

fn per_gb(times: u64, bytes: usize) -> f64 {
    times as f64 * 1e9 / bytes as f64 / 2.0
}

/// Counts the system calls of the relays' workers.
struct Trace;

impl Trace {
    const TRIGGER: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/trigger";
    const HIST: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/hist";

    fn start() -> Self {
        fs::write(Self::TRIGGER, "hist:keys=common_pid,id.syscall:size=4096").unwrap();
        Self
    }

    fn end(self) -> Vec<(String, u64)> {
        let hist = fs::read_to_string(Self::HIST).unwrap();
        fs::write(Self::TRIGGER, "!hist:keys=common_pid,id.syscall:size=4096").unwrap();
        let workers: Vec<String> = fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| task.unwrap().path())
            .filter(|task| is_worker(task))
            .map(|task| task.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut calls = std::collections::BTreeMap::<String, u64>::new();
        // { common_pid:        210, id: sys_splice            [275] } hitcount:       1234
        for line in hist.lines().filter(|line| line.starts_with('{')) {
            let (key, count) = line.split_once("hitcount:").unwrap();
            let words: Vec<_> = key
                .split([' ', ',', ':'])
                .filter(|w| !w.is_empty())
                .collect();
            let pid = words[words.iter().position(|w| *w == "common_pid").unwrap() + 1];
            let call = words[words.iter().position(|w| *w == "id").unwrap() + 1];
            if workers.iter().any(|w| w == pid) {
                *calls.entry(call.to_owned()).or_default() += count.trim().parse::<u64>().unwrap();
            }
        }
        calls.into_iter().collect()
    }
}

fn is_worker(task: &FilePath) -> bool {
    let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
    name.starts_with("relay-")
}
