//! Links carried by the kernel: netem and tbf in a namespace between the two hosts.
//!
//! ```text
//! host a [to-b]--veth--[port-a] bridge [port-b]--veth--[to-a] host b
//!                       ^               ^ netem + tbf for a to b
//!                       ` for b to a
//! ```
//!
//! The queueing disciplines are on the devices of the namespace in the middle, never on a host's own. A
//! queue there would count as the sender's, and TCP small queues (`tcp_limit_output_bytes`) would hold
//! the sender back until it drains, which a queue in a distant router never does.

use std::process::Command;

use taut_sys::netns::Netns;

use super::LinkError;
use super::path::QUANTUM;
use super::shape::{Discipline, LinkSpec, Shape};
use crate::units::{BitsPerSecond, Bytes};

/// The most packets in flight on a link without a rate.
const MAX_PACKETS: u64 = 1_000_000;

/// Returns the first property of `spec` that netem cannot model.
pub(super) fn lacks(spec: &LinkSpec) -> Option<&'static str> {
    let has = |is_set: fn(&Shape) -> bool| is_set(&spec.a_to_b) || is_set(&spec.b_to_a);
    if has(|shape| shape.policer.is_some()) {
        Some("policer")
    } else if has(|shape| shape.discipline != Discipline::DropTail) {
        Some("CoDel")
    } else if has(|shape| !shape.jitter.is_zero()) {
        Some("jitter that keeps the order")
    } else {
        has(|shape| shape.reordering > 0.0).then_some("reordering")
    }
}

/// Checks that the kernel has netem and tbf, by adding both to the unused `lo` of `middle`.
///
/// # Errors
/// [`LinkError::NoNetem`] with the error output of `tc`.
pub(super) fn probe(name: &str, middle: &Netns) -> Result<(), LinkError> {
    let ns = middle.name();
    for command in disciplines(
        ns,
        "lo",
        Shape::default().rate(BitsPerSecond::giga(1)),
        1500,
    ) {
        run(&command).map_err(|why| LinkError::NoNetem {
            name: name.to_owned(),
            why,
        })?;
    }
    Ok(())
}

/// Creates the link between `hosts`, given with the names of their devices.
pub(super) fn join(
    name: &str,
    middle: &Netns,
    hosts: [(&Netns, &str); 2],
    spec: &LinkSpec,
) -> Result<(), LinkError> {
    let hosts = hosts.map(|(netns, device)| (netns.name(), device));
    for command in commands(middle.name(), hosts, spec) {
        run(&command).map_err(|why| LinkError::Command {
            name: name.to_owned(),
            command: command.join(" "),
            why,
        })?;
    }
    Ok(())
}

fn commands(middle: &str, hosts: [(&str, &str); 2], spec: &LinkSpec) -> Vec<Vec<String>> {
    let mut commands = vec![split(&format!(
        "ip -n {middle} link add name middle type bridge"
    ))];
    // Traffic that leaves through `port-b` goes from a to b.
    for ((port, (host, device)), shape) in ["port-a", "port-b"]
        .into_iter()
        .zip(hosts)
        .zip([spec.b_to_a, spec.a_to_b])
    {
        let mtu = spec.mtu;
        commands.extend([
            split(&format!(
                "ip -n {middle} link add name {port} mtu {mtu} type veth peer name {device} netns {host}"
            )),
            // netem and tbf take a super-frame for one packet, and would lose it as one. So hosts
            // send none here; the cost is the work for each packet.
            split(&format!("ip -n {host} link set dev {device} gso_max_segs 1")),
            split(&format!("ip -n {middle} link set dev {port} master middle up")),
        ]);
        commands.extend(disciplines(middle, port, shape, mtu));
    }
    commands.push(split(&format!("ip -n {middle} link set dev middle up")));
    commands
}

/// Returns the commands that add delay and loss, and below them the queue with its rate: netem passes a
/// packet to its child when the delay is over. The order differs from the user-space model's; the sum
/// of both is the same.
fn disciplines(netns: &str, device: &str, shape: Shape, mtu: u16) -> Vec<Vec<String>> {
    let in_flight = shape
        .rate
        .map(|rate| rate.in_time(shape.delay).0 / 64 + 1000);
    let limit = in_flight.unwrap_or(MAX_PACKETS).min(MAX_PACKETS);
    let delay = shape.delay.as_micros();
    let loss = shape.loss * 100.0;
    let mut commands = vec![split(&format!(
        "tc -n {netns} qdisc add dev {device} root handle 1: \
         netem limit {limit} delay {delay}us loss {loss}%"
    ))];
    if let Some(rate) = shape.rate {
        let frame = u64::from(mtu) + 14;
        let burst = rate.in_time(QUANTUM).max(Bytes(2 * frame)).0;
        let (rate, queue) = (rate.0, shape.queue.0);
        commands.push(split(&format!(
            "tc -n {netns} qdisc add dev {device} parent 1:1 handle 2: \
             tbf rate {rate}bit burst {burst} limit {queue}"
        )));
    }
    commands
}

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs a command. The error is its error output.
fn run(command: &[String]) -> Result<(), String> {
    let output = Command::new(&command[0]).args(&command[1..]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(format!("{}: {e} (Debian package iproute2)", command[0])),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lines(spec: &LinkSpec) -> Vec<String> {
        let commands = commands("mid", [("ns-a", "to-b"), ("ns-b", "to-a")], spec);
        commands.iter().map(|command| command.join(" ")).collect()
    }

    #[test]
    fn each_direction_is_shaped_where_it_leaves_the_middle() {
        let out = Shape::delay(Duration::from_millis(137))
            .rate(BitsPerSecond::giga(1))
            .loss(0.001)
            .queue(Bytes::mega(34));
        let back = Shape::delay(Duration::from_micros(1500));
        assert_eq!(
            lines(&LinkSpec::each(out, back)),
            [
                "ip -n mid link add name middle type bridge",
                "ip -n mid link add name port-a mtu 1500 type veth peer name to-b netns ns-a",
                "ip -n ns-a link set dev to-b gso_max_segs 1",
                "ip -n mid link set dev port-a master middle up",
                "tc -n mid qdisc add dev port-a root handle 1: netem limit 1000000 delay 1500us loss 0%",
                "ip -n mid link add name port-b mtu 1500 type veth peer name to-a netns ns-b",
                "ip -n ns-b link set dev to-a gso_max_segs 1",
                "ip -n mid link set dev port-b master middle up",
                "tc -n mid qdisc add dev port-b root handle 1: \
                 netem limit 268578 delay 137000us loss 0.1%",
                "tc -n mid qdisc add dev port-b parent 1:1 handle 2: \
                 tbf rate 1000000000bit burst 12500 limit 34000000",
                "ip -n mid link set dev middle up",
            ]
        );
    }

    #[test]
    fn a_slow_link_may_still_send_a_frame_at_once() {
        let slow = Shape::default().rate(BitsPerSecond::kilo(512));
        let tbf = lines(&LinkSpec::both(slow))
            .into_iter()
            .find(|line| line.contains("tbf"));
        assert!(tbf.is_some_and(|tbf| tbf.contains("burst 3028")));
    }

    #[test]
    fn a_link_that_netem_cannot_carry_is_refused() {
        let ms = Duration::from_millis;
        let plain = Shape::delay(ms(1)).rate(BitsPerSecond::mega(1)).loss(0.1);
        assert_eq!(lacks(&LinkSpec::both(plain)), None);
        for shape in [
            plain.policer(BitsPerSecond::mega(1), Bytes::mega(1)),
            plain.discipline(Discipline::Codel),
            plain.jitter(ms(1)),
            plain.reordering(0.1, ms(1)),
        ] {
            assert!(lacks(&LinkSpec::each(shape, plain)).is_some());
            assert!(lacks(&LinkSpec::each(plain, shape)).is_some());
        }
    }

    #[test]
    fn no_discipline_is_on_a_hosts_own_device() {
        let shape = Shape::default().rate(BitsPerSecond::mega(1));
        for line in lines(&LinkSpec::both(shape)) {
            assert!(
                !line.contains("qdisc") || line.starts_with("tc -n mid "),
                "{line}"
            );
        }
    }
}
