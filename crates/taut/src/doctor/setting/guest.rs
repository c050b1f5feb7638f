//! Whether this machine is a guest that is taken off its CPU.

use super::{Finding, Host};

/// The share of stolen time from which BBR is likely to take gaps for congestion.
pub(crate) const STOLEN: f64 = 0.01;
/// What the names of the congestion controls of `taut guest` begin with.
const CORRECTED: &str = "taut_";

/// Assesses the stolen time. `None` if this machine's hypervisor reports none.
pub(super) fn assess(host: &Host) -> Option<Finding> {
    const ID: &str = "steal";
    let stolen = host.steal.filter(|stolen| stolen.since_boot > 0.0)?;
    let (share, time) = match stolen.lately {
        Some(lately) => (lately, "in the last second"),
        None => (stolen.since_boot, "since boot"),
    };
    let value = format!("{:.1} % of the CPU time {time}", share * 100.0);
    Some(match host.bbr() {
        _ if share < STOLEN => Finding::fine(ID, value, "this machine is rarely taken off its CPU"),
        None => Finding::fine(
            ID,
            value,
            "the default congestion control is not BBR, and is hardly affected",
        ),
        Some(control) if control.starts_with(CORRECTED) => {
            Finding::fine(ID, value, format!("{control} allows for gaps"))
        }
        Some(control) => {
            let why = format!(
                "this machine is taken off its CPU, and {control} may take the gaps for \
                 congestion. This shows how often, and what helps:"
            );
            Finding::slows(ID, value, why, "taut guest status".to_owned())
        }
    })
}
