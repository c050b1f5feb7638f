//! The second part: a short download, directly and through two relays.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use taut_relay::identity::PrivateKey;
use taut_sys::random;

use super::job::Job;
use super::network::{Network, RATE, ROUND_TRIP, Times};
use super::text::{Pause, gain, no_gain, say};
use crate::failure::{Failure, print};

/// The size of the file.
const BYTES: u64 = 1_000_000;
/// The number of downloads each way.
const RUNS: usize = 5;
/// The ports at which the near relay accepts clients, and the far one the near one.
const PORT: u16 = 8080;
const MESH_PORT: u16 = 7440;

pub(super) fn show(network: &Network, pause: &Pause) -> Result<(), Failure> {
    say("2. A small file over a long path")?;
    let alone = network.download(network.server(), BYTES)?.total;
    say(&format!(
        "1 MB takes {:.2} s, although the path carries it in {:.2} s: a connection starts slowly, and each step is a round trip of {} ms.",
        alone.as_secs_f64(),
        8.0 * BYTES as f64 / RATE.0 as f64,
        ROUND_TRIP.as_millis()
    ))?;
    pause.before("put a relay near each end")?;
    say(
        "Now one `taut relay` runs near the client and one near the server. Connections between the two are ready before they are needed, and \
         start at the path's rate:",
    )?;
    let (near, far) = start(network)?;
    let through: SocketAddr = (network.host("near").addr(), PORT).into();
    // Not measured: the relays' first connection may have to be made.
    network.download(through, BYTES)?;
    let reports = network.reports()?;
    let (mut direct, mut relayed) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        direct.push(network.download(network.server(), BYTES)?);
        relayed.push(network.download(through, BYTES)?);
    }
    let is_late = network.is_late_since(&reports)?;
    near.end()?;
    far.end()?;
    compare(median(&direct), median(&relayed), is_late)
}

/// Starts the relay near the client and the one near the server.
fn start(network: &Network) -> Result<(Job, Job), Failure> {
    let write = |name: &str, text: &str| {
        let file = network.file(name);
        let failed = |e| Failure::Run(format!("{}: cannot write it: {e}", file.display()));
        fs::write(&file, text).map_err(failed)?;
        // A relay refuses a list that other users can change, which depends on the umask.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).map_err(failed)
    };
    let mut members = String::new();
    for (name, address) in [
        ("near", None),
        ("far", Some((network.host("far").addr(), MESH_PORT))),
    ] {
        let key = PrivateKey::create(&network.file(&format!("{name}.key")), &random::bytes());
        let key = key.map_err(|e| Failure::Run(e.to_string()))?.public();
        let addresses: Vec<_> = address
            .map(|(address, port)| format!("{address}:{port}"))
            .into_iter()
            .collect();
        members += &format!(
            "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = {addresses:?}\n"
        );
    }
    write("members.toml", &members)?;
    let begin = |name: &str| {
        format!(
            "[relay]\ncontrol = \"off\"\n[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\nrate = \"{}mbit\"\n",
            network.file(&format!("{name}.key")),
            network.file("members.toml"),
            RATE.0 / 1_000_000
        )
    };
    let server = network.server();
    let far = format!(
        "{}listen = \":{MESH_PORT}\"\nallow = [\"{}/32:{}\"]\n",
        begin("far"),
        server.ip(),
        server.port()
    );
    let near = format!(
        "{}[[relay.forward]]\nlisten = \":{PORT}\"\nvia = \"far\"\nto = \"{server}\"\nearly_syn = true\n",
        begin("near")
    );
    let run = |name: &str, text: &str| {
        let file = format!("{name}.toml");
        write(&file, text)?;
        let words = format!("relay --config {}", network.file(&file).display());
        let job = Job::start(network.host(name), &words)?;
        job.lines_until("relaying")?;
        Ok(job)
    };
    let far = run("far", &far)?;
    let near = run("near", &near)?;
    Ok((near, far))
}

/// Prints both ways beside each other.
fn compare(direct: Times, relayed: Times, is_late: bool) -> Result<(), Failure> {
    let millis = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    let row = |name: &str, times: Times, note: &str| {
        let (first, total) = (millis(times.first_byte), millis(times.total));
        let row = format!("  {name:<19} {first:>10} {total:>8}  {note}");
        format!("{}\n", row.trim_end())
    };
    let gain = gain(relayed.total.as_secs_f64(), direct.total.as_secs_f64());
    print(&format!(
        "  {:<19} {:>10} {:>8}\n{}{}\n",
        format!("median of {RUNS}"),
        "first byte",
        "1 MB",
        row("direct", direct, ""),
        row(
            "through two relays",
            relayed,
            gain.as_deref().unwrap_or_default()
        ),
    ))?;
    match gain {
        Some(_) => Ok(()),
        None => no_gain("1 MB is not faster through the relays", is_late),
    }
}

/// Returns the median of each time.
fn median(times: &[Times]) -> Times {
    let of = |part: fn(&Times) -> Duration| {
        let mut all: Vec<_> = times.iter().map(part).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    Times {
        first_byte: of(|times| times.first_byte),
        total: of(|times| times.total),
    }
}
