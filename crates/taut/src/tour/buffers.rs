//! The first part: a download that its receiver's buffer limits, `taut why`, and `taut tune --apply`.

use std::time::Duration;

use super::job::Job;
use super::network::{self, Network, RATE};
use super::text::{Pause, gain, no_gain, output, say, shown};
use crate::failure::Failure;

const SETTING: &str = "net.ipv4.tcp_rmem";
/// A receive buffer that is far too small for the path, as machines with little memory have it.
const SMALL: &str = "4096 65536 65536";
/// How long a download runs before its rate is measured: slow start is over then.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long a rate is measured.
const MEASURED: Duration = Duration::from_secs(3);

const WHY: &str = "why --own-netns --for 2s";
const TUNE: &str = "tune --apply --own-netns";

pub(super) fn show(network: &Network, pause: &Pause) -> Result<(), Failure> {
    let client = network.host("client");
    let before = client.sysctl(SETTING).map_err(network::failure)?;
    let set = |value: &str| client.set_sysctl(SETTING, value).map_err(network::failure);
    set(SMALL)?;
    repair(network, pause)?;
    // The second part is about round trips.
    set(&before)
}

fn repair(network: &Network, pause: &Pause) -> Result<(), Failure> {
    say("1. A slow download")?;
    let client = network.host("client");
    let reports = network.reports()?;
    let stream = network.stream()?;
    std::thread::sleep(WARM_UP);
    let before = stream.rate(MEASURED);
    say(&format!(
        "The client downloads a large file at {before:.1} Mbit/s, over a path that carries {RATE}. Why? On the client:"
    ))?;
    let verdict = Job::start(client, WHY)?.wait()?;
    drop(stream);
    shown(WHY, &verdict)?;
    if !verdict.iter().any(|line| line.contains("receive buffer")) {
        say(
            "The network is made so that the receive buffer is the limit. A busy machine can show another one.",
        )?;
    }

    pause.before("repair it")?;
    let tune = Job::start(client, TUNE)?;
    let mut changes = tune.lines_until(SETTING)?;
    let stream = network.stream()?;
    std::thread::sleep(WARM_UP);
    changes.extend(tune.lines());
    shown(TUNE, &changes)?;
    let after = stream.rate(MEASURED);
    drop(stream);
    let is_late = network.is_late_since(&reports)?;
    let undone = tune.end()?;
    let rates = format!("The next download runs at {after:.1} Mbit/s, after {before:.1} before");
    match gain(before, after) {
        Some(times) => say(&format!("{rates}: {times}."))?,
        None => no_gain(&rates, is_late)?,
    }
    say("When `taut tune` ends, it takes its changes back:")?;
    output(&undone)
}
