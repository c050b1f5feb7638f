//! Runs `taut snoop` on guests' taps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use taut_sys::child::Child;

use taut_netlab::world::Host;

/// How long `taut snoop` may take until it serves the tap.
const START: Duration = Duration::from_secs(20);
/// The pause between two checks whether it serves the tap.
const PAUSE: Duration = Duration::from_millis(20);

/// A running `taut snoop`. Dropping it stops the process, which restores its taps.
pub(in crate::experiment) struct Snooping {
    child: Child,
    taut: PathBuf,
    control: PathBuf,
    taps: usize,
}

// === impl Snooping ===

impl Snooping {
    /// Starts `taut snoop` and waits until it serves all of `taps`. Processes with different names
    /// may run side by side.
    pub(in crate::experiment) fn start(
        host: &Host,
        taut: &Path,
        name: &str,
        taps: &[String],
        args: &[String],
        dir: &Path,
    ) -> io::Result<Self> {
        let control = dir.join(format!("{name}.sock"));
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log)?;
        let mut command = Command::new(taut);
        command
            .arg("snoop")
            .args(taps.iter().flat_map(|tap| ["--tap", tap]))
            .arg("--control")
            .arg(&control)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let mut snooping = Self {
            child: host.spawn(command)?,
            taut: taut.to_owned(),
            control,
            taps: taps.len(),
        };
        let deadline = Instant::now() + START;
        while !snooping.serves() {
            let ended = snooping.child.wait_for(PAUSE)?;
            if ended.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!(
                    "taut snoop does not serve {}: {said}",
                    taps.join(" and ")
                )));
            }
        }
        Ok(snooping)
    }

    fn serves(&self) -> bool {
        self.status()
            .is_ok_and(|taps| taps.iter().filter(|tap| tap["state"] == "on").count() == self.taps)
    }

    /// Returns the whole status, an object for each tap.
    pub(in crate::experiment) fn status(&self) -> io::Result<Vec<Value>> {
        status(&self.taut, &self.control)
    }

    /// Returns the status. Includes only the flows that lost bytes after an early ACK.
    pub(in crate::experiment) fn counts(&self) -> io::Result<Vec<Value>> {
        let mut taps = self.status()?;
        for flows in taps
            .iter_mut()
            .filter_map(|tap| tap.get_mut("flows")?.as_array_mut())
        {
            flows.retain(|flow| flow["bypass"] == "lost_after_early_ack");
        }
        Ok(taps)
    }

    /// Returns the number of segments lost after an early ACK.
    pub(in crate::experiment) fn lost_after_early_ack(&self) -> io::Result<u64> {
        let taps = self.status()?;
        Ok(taps
            .iter()
            .filter_map(|tap| tap["lost_after_early_ack"].as_u64())
            .sum())
    }
}

impl Drop for Snooping {
    fn drop(&mut self) {
        // A process that does not end is killed. Its BPF programs are removed with it.
        let _ = terminate(&mut self.child);
    }
}

/// Returns what `taut snoop status --json` prints about each tap.
pub(in crate::experiment) fn status(taut: &Path, control: &Path) -> io::Result<Vec<Value>> {
    let output = Command::new(taut)
        .args(["snoop", "status", "--json", "--control"])
        .arg(control)
        .stdin(Stdio::null())
        .output()?;
    let mut status: Value = serde_json::from_slice(&output.stdout)?;
    Ok(serde_json::from_value(status["taps"].take())?)
}

/// Adds the counters of one direction (`to_guest` or `from_guest`) of a tap's status to `counts`.
pub(in crate::experiment) fn add_exits(
    tap: &Value,
    direction: &str,
    counts: &mut BTreeMap<String, u64>,
) {
    for exit in tap[direction].as_array().into_iter().flatten() {
        let name = exit[0].as_str().unwrap_or_default().to_owned();
        *counts.entry(name).or_default() += exit[1].as_u64().unwrap_or(0);
    }
}

/// Formats the counters that are not 0, for people.
pub(in crate::experiment) fn told(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<_> = counts
        .map(|(exit, count)| format!("{exit} {count}"))
        .collect();
    counts.join(", ")
}

/// Returns the status of the flow between the peer's and the guest's port.
pub(in crate::experiment) fn of_flow(tap: &Value, ports: [u16; 2]) -> String {
    let has = |flow: &&Value| {
        let ends = [&flow["peer"], &flow["guest"]];
        ends.iter().zip(ports).all(|(end, port)| {
            let end = end.as_str().unwrap_or_default();
            end.ends_with(&format!(":{port}"))
        })
    };
    let flows = tap["flows"].as_array();
    match flows.and_then(|flows| flows.iter().find(has)) {
        Some(flow) => flow.to_string(),
        None => "taut snoop does not know the flow".into(),
    }
}

/// How long the process may take to end after a signal.
const END: Duration = Duration::from_secs(10);

/// Ends a process as an operator would.
fn terminate(child: &mut Child) -> io::Result<bool> {
    child.signal(Signal::TERM)?;
    Ok(child.wait_for(END)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_found_by_both_ports() {
        let tap = serde_json::json!({"flows": [
            {"peer": "10.0.0.1:1000", "guest": "10.0.0.2:80", "mode": "ACTIVE"},
            {"peer": "[fd66::1]:2000", "guest": "[fd66::2]:80", "mode": "NO_BUF"},
        ]});
        assert!(of_flow(&tap, [1000, 80]).contains("ACTIVE"));
        assert!(of_flow(&tap, [2000, 80]).contains("NO_BUF"));
        assert!(of_flow(&tap, [2000, 81]).contains("not know"));
        assert!(of_flow(&Value::Null, [1, 2]).contains("not know"));
    }

    #[test]
    fn exits_of_several_statuses_add_up() {
        let tap = serde_json::json!({"to_guest": [["syn", 3], ["acked", 5]]});
        let mut counts = BTreeMap::new();
        add_exits(&tap, "to_guest", &mut counts);
        add_exits(&tap, "to_guest", &mut counts);
        add_exits(&Value::Null, "to_guest", &mut counts);
        assert_eq!(
            counts,
            [("syn".to_owned(), 6), ("acked".to_owned(), 10)].into()
        );
    }
}
