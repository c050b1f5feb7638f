//! The cost of `taut snoop` per packet on this machine, from its `cost` command.

use std::io;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::experiment::Request;

/// The figures of one scenario, in nanoseconds per packet.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cost {
    pub(super) scenario: String,
    pub(super) partial_checksum: bool,
    /// Bytes of data in a frame.
    pub(super) frame: usize,
    pub(super) ack: f64,
    pub(super) delivery: f64,
    pub(super) pass_to_guest: f64,
    pub(super) suppress: Option<f64>,
    pub(super) pass_from_guest: f64,
    pub(super) lookup: f64,
    pub(super) added: f64,
}

/// Segments of each scenario in the short form.
const SEGMENTS_QUICK: usize = 7_000;

/// What `taut snoop cost --json` prints.
#[derive(Deserialize)]
struct Costs {
    scenarios: Vec<Cost>,
}

// === impl Cost ===

impl Cost {
    /// Returns the figures with their names.
    pub(super) fn figures(&self) -> Vec<(&'static str, f64)> {
        let always = [
            ("ack", self.ack),
            ("delivery", self.delivery),
            ("pass to guest", self.pass_to_guest),
            ("pass from guest", self.pass_from_guest),
            ("lookup", self.lookup),
            ("added", self.added),
        ];
        let mut figures = always.to_vec();
        figures.extend(self.suppress.map(|ns| ("suppress", ns)));
        figures
    }

    /// Returns the name of a series.
    pub(super) fn name(&self) -> String {
        let checksum = match self.partial_checksum {
            true => "checksum left",
            false => "checksum there",
        };
        format!("{}/{} B, {checksum}", self.scenario, self.frame)
    }
}

/// Measures the cost while no other part of the experiment runs.
pub(super) fn measure(request: &Request) -> io::Result<Vec<Cost>> {
    let mut command = Command::new(&request.taut);
    command.args(["snoop", "cost", "--json"]);
    if request.form.is_short() {
        command.args(["--segments", &SEGMENTS_QUICK.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(said));
    }
    let costs: Costs = serde_json::from_slice(&output.stdout)?;
    Ok(costs.scenarios)
}
