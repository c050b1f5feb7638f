//! Runs `ip` and `nft` in a host's namespace, and ends `taut tune`.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_sys::child::Child;

use super::ExperimentError;
use taut_netlab::world::Host;

/// Runs `ip` with the arguments in `line` and returns its output.
pub(super) fn ip(host: &Host, line: &str) -> Result<String, ExperimentError> {
    let line = format!("-n {} {line}", host.netns().name());
    let output = Command::new("ip")
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output();
    checked(output).map_err(ExperimentError::machine(&format!(
        "run `ip {line}` (Debian package iproute2)"
    )))
}

/// Sets a host's neighbour entry. A host that forwards IPv6 without a link-local address cannot
/// resolve an address.
pub(super) fn add_neighbour(
    host: &Host,
    device: &str,
    addr: IpAddr,
    (of, its): (&Host, &str),
) -> Result<(), ExperimentError> {
    let text = ip(of, &format!("-j link show {its}"))?;
    let links: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let mac = links[0]["address"].as_str().unwrap_or_default();
    ip(
        host,
        &format!("neigh replace {addr} lladdr {mac} dev {device} nud permanent"),
    )?;
    Ok(())
}

/// Replaces all nftables rules of the host by `rules`.
pub(super) fn nft(host: &Host, rules: &str) -> Result<(), ExperimentError> {
    let script = format!("flush ruleset\n{rules}");
    let run = || {
        let mut command = Command::new("nft");
        command
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut nft = host.spawn(command)?;
        let pipes = nft.pipes();
        let stdin = pipes.stdin.take();
        stdin.map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()))?;
        let mut said = String::new();
        if let Some(mut stderr) = pipes.stderr.take() {
            io::Read::read_to_string(&mut stderr, &mut said)?;
        }
        match nft.wait()?.success() {
            true => Ok(()),
            false => Err(io::Error::other(said.trim().to_owned())),
        }
    };
    run().map_err(ExperimentError::machine(
        "set nftables rules (Debian package nftables)",
    ))
}

/// Stops a `taut tune` and waits at most `patience` until it has undone its changes and ended.
pub(super) fn stop_tune(tune: &mut Child, patience: Duration) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(5);
    let deadline = Instant::now() + patience;
    // A signal that comes before the process handles it would kill the process.
    while !handles_term(tune.id())? && Instant::now() < deadline {
        if let Some(status) = tune.try_wait()? {
            return Err(io::Error::other(format!("it ended early ({status})")));
        }
        std::thread::sleep(PAUSE);
    }
    tune.signal(Signal::TERM)?;
    match tune.wait_for(patience)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(io::Error::other(format!("it failed ({status})"))),
        None => Err(io::Error::other("it does not stop")),
    }
}

/// Returns whether a process has a handler for SIGTERM (`SigCgt` of proc_pid_status(5)).
fn handles_term(process: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    Ok(mask.is_some_and(|mask| mask >> (Signal::TERM.as_raw() - 1) & 1 == 1))
}

fn checked(output: io::Result<Output>) -> io::Result<String> {
    let output = output?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(why));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
