//! Compares what links do to traffic with their shapes, and prints the figures.
//!
//! `link_calibration [delay] [loss] [long-fat] [ceiling]` runs the named measurements, by default all
//! four. Needs root. Asserts nothing: on a loaded machine the figures are worse.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that fails ends the program"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder};
use taut_sys::steal::Steal;

fn main() {
    taut_netlab::interrupt::tear_down_on_signals().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let all: [(&str, fn()); 4] = [
        ("delay", delay),
        ("loss", loss),
        ("long-fat", long_fat),
        ("ceiling", ceiling),
    ];
    for (name, measure) in all {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            println!("== {name}");
            let before = Steal::read();
            measure();
            // While the hypervisor runs other guests, nothing here can be on time.
            let share = Steal::read()
                .zip(before)
                .and_then(|(now, before)| now.share_since(before))
                .unwrap_or(0.0);
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            println!(
                " stolen by the hypervisor: {:.1} % of a core",
                share * cpus as f64 * 100.0
            );
        }
    }
}

fn pair(spec: LinkSpec) -> World {
    // Enough for 1 Gbit/s x 274 ms twice over, with the kernel's overhead.
    let buffers = "4096 131072 268435456";
    WorldBuilder::new("calibration")
        .host("a")
        .host("b")
        .link("a", "b", spec)
        .sysctl_everywhere("net.ipv4.tcp_rmem", buffers)
        .sysctl_everywhere("net.ipv4.tcp_wmem", buffers)
        .build()
        .unwrap()
}

fn ms(delay: u64) -> Shape {
    Shape::delay(Duration::from_millis(delay))
}

fn show(report: &LinkReport, over: Duration) {
    let cpu = report.cpu.as_secs_f64() / over.as_secs_f64() * 100.0;
    let overrun = report.overrun();
    println!(
        "   link: {:?}, {cpu:.0} % of a core, overrun: {overrun}",
        report.scheduling
    );
    for (name, direction) in [("a>b", report.a_to_b), ("b>a", report.b_to_a)] {
        println!("   {name}: {:?} {:?}", direction.path, direction.device);
    }
}

fn percentiles(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
    let (min, p50, p90, p99, max) = (at(0.0), at(0.5), at(0.9), at(0.99), at(1.0));
    let n = samples.len();
    format!("n {n} min {min:.3} p50 {p50:.3} p90 {p90:.3} p99 {p99:.3} max {max:.3}")
}

// === One-way delay ===

fn delay() {
    let length = Duration::from_secs(6);
    for (what, load) in [("idle", 0), ("300 Mbit/s of TCP the other way", 300)] {
        let shape = ms(5).rate(BitsPerSecond::giga(1)).queue(Bytes::mega(10));
        let world = pair(LinkSpec::both(shape));
        let excess = std::thread::scope(|scope| {
            if load > 0 {
                scope.spawn(|| flow(&world, ("a", "b"), Some(load), length));
            }
            one_way(&world, ("b", "a"), 5000, Duration::from_millis(5))
        });
        println!(
            " {what}: one-way delay beyond the 5 ms asked, in ms: {}",
            percentiles(excess)
        );
        show(&world.link_reports().unwrap()[0], length);
    }
}

/// Sends `count` small datagrams, a millisecond apart, each with the time at which it was sent. The
/// figures include the time until the receiver runs, which is not the link's.
fn one_way(world: &World, (from, to): (&str, &str), count: u64, asked: Duration) -> Vec<f64> {
    let (sender, receiver) = datagram_sockets(world, from, to);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tick in 0..count {
                std::thread::sleep(Duration::from_millis(tick).saturating_sub(start.elapsed()));
                let now = start.elapsed().as_nanos() as u64;
                sender.send(&now.to_ne_bytes()).unwrap();
            }
        });
        let mut excess = Vec::new();
        let mut stamp = [0; 8];
        while excess.len() < count as usize && receiver.recv(&mut stamp).is_ok() {
            let took = start.elapsed() - Duration::from_nanos(u64::from_ne_bytes(stamp));
            excess.push((took.as_secs_f64() - asked.as_secs_f64()) * 1e3);
        }
        excess
    })
}

fn datagram_sockets(world: &World, from: &str, to: &str) -> (UdpSocket, UdpSocket) {
    let address: SocketAddr = (world.addr(to), 9000).into();
    let receiver = world
        .host(to)
        .run(|| UdpSocket::bind(address))
        .unwrap()
        .unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let sender = world
        .host(from)
        .run(|| UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    sender.connect(address).unwrap();
    (sender, receiver)
}

// === Loss and order ===

fn loss() {
    for asked in [0.001, 0.01, 0.1] {
        // No delay, so that TCP sends many segments despite the losses.
        let shape = ms(0).rate(BitsPerSecond::giga(1)).loss(asked);
        let world = pair(LinkSpec::each(shape, ms(0)).seed(11));
        let (sent, arrived, disordered) = datagrams(&world, 400_000);
        let before = world.link_reports().unwrap()[0].a_to_b;
        let lost = before.path.loss_drops;
        // Drops at the socket of a delayed reader are not losses of the link.
        let elsewhere = sent - lost - arrived;
        let off = (lost as f64 / sent as f64 / asked - 1.0) * 100.0;
        println!(
            " asked {asked}: lost {lost} of {sent} datagrams, {off:+.1} %; out of order: \
             {disordered}; not the link's: {elsewhere} {:?}",
            before.device
        );
        // The same for super-frames, by the link's own counters.
        let before = before.path;
        flow(&world, ("a", "b"), None, Duration::from_secs(8));
        let report = &world.link_reports().unwrap()[0];
        let path = report.a_to_b.path;
        let segments = path.segments - before.segments - path.queue_drops;
        let frames = path.frames - before.frames;
        let share = (path.loss_drops - before.loss_drops) as f64 / segments as f64;
        let off = (share / asked - 1.0) * 100.0;
        println!("   TCP: {share:.6} of {segments} segments in {frames} frames, {off:+.1} %");
        println!("   overrun: {}", report.overrun());
    }
}

/// Sends numbered datagrams in bursts that fit in the receiver's buffer. Returns how many were sent, how
/// many arrived, and how many of those arrived after a later one.
fn datagrams(world: &World, count: u64) -> (u64, u64, u64) {
    let (sender, receiver) = datagram_sockets(world, "a", "b");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..count {
                // Never faster to catch up: an overflowing device would add losses of its own.
                if number % 20 == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                }
                sender.send(&number.to_ne_bytes()).unwrap();
            }
        });
        let (mut arrived, mut disordered, mut latest) = (0, 0, 0);
        let mut number = [0; 8];
        while receiver.recv(&mut number).is_ok() {
            let number = u64::from_ne_bytes(number);
            arrived += 1;
            disordered += u64::from(number < latest);
            latest = latest.max(number);
        }
        (count, arrived, disordered)
    })
}

// === Throughput ===

fn long_fat() {
    let shape = ms(137).rate(BitsPerSecond::giga(1)).queue(Bytes::mega(34));
    let world = pair(LinkSpec::both(shape));
    let length = Duration::from_secs(30);
    println!(" 1 Gbit/s, 274 ms round trip, a queue of 34 MB, one cubic flow:");
    let seconds = flow(&world, ("a", "b"), None, length);
    let shown: Vec<String> = seconds.iter().map(|mbit| format!("{mbit:.0}")).collect();
    println!("   Mbit/s in each second: {}", shown.join(" "));
    show(&world.link_reports().unwrap()[0], length);
}

fn ceiling() {
    for rate in [
        Some(BitsPerSecond::giga(1)),
        Some(BitsPerSecond::giga(5)),
        None,
    ] {
        let shape = Shape {
            rate,
            ..ms(5).queue(Bytes::mega(8))
        };
        let world = pair(LinkSpec::both(shape));
        let length = Duration::from_secs(8);
        let seconds = flow(&world, ("a", "b"), None, length);
        let mean = seconds[2..].iter().sum::<f64>() / (seconds.len() - 2) as f64;
        let rate = rate.map_or("unlimited".to_owned(), |rate| rate.to_string());
        println!(" {rate}, 10 ms round trip: {mean:.0} Mbit/s after the first 2 s");
        show(&world.link_reports().unwrap()[0], length);
    }
}

/// Runs one TCP flow, at most at `rate` Mbit/s. Returns its throughput in each second, in Mbit/s.
fn flow(world: &World, ends: (&str, &str), rate: Option<u64>, length: Duration) -> Vec<f64> {
    let address: SocketAddr = (world.addr(ends.1), 9002).into();
    let listener = world
        .host(ends.1)
        .run(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    let sender = world
        .host(ends.0)
        .run(|| TcpStream::connect(address))
        .unwrap()
        .unwrap();
    let (receiver, _) = listener.accept().unwrap();
    let arrived = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| send(sender, rate, length));
        scope.spawn(|| receive(receiver, &arrived));
        let mut seconds = Vec::new();
        let mut before = 0;
        while start.elapsed() < length {
            let next = Duration::from_secs(seconds.len() as u64 + 1);
            std::thread::sleep(next.saturating_sub(start.elapsed()));
            let now = arrived.load(Ordering::Relaxed);
            seconds.push((now - before) as f64 * 8.0 / 1e6);
            before = now;
        }
        seconds
    })
}

fn send(mut sender: TcpStream, rate: Option<u64>, length: Duration) {
    let block = vec![7; rate.map_or(256 << 10, |_| 16 << 10)];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < length {
        sender.write_all(&block).unwrap();
        sent += block.len() as u64;
        if let Some(rate) = rate {
            let due = Duration::from_nanos(sent * 8000 / rate);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    // The buffers may still have seconds of data, which does not matter.
    let _ = rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::ZERO));
}

fn receive(mut receiver: TcpStream, arrived: &AtomicU64) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = receiver.read(&mut buffer) {
        arrived.fetch_add(count as u64, Ordering::Relaxed);
    }
}
