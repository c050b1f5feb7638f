//! The limits of lines of the log that each of many connections or scans could cause. A count of those that were left
//! out is `taut_snoop_log_lines_left_out_total{cause}`.

use taut_exposition::log_limit::LogLimit;

pub(crate) static LACKS: LogLimit = LogLimit::new("guest_lacks");
pub(crate) static REPAIRED: LogLimit = LogLimit::new("guest_repaired");
pub(crate) static LOST: LogLimit = LogLimit::new("lost_after_early_ack");
pub(crate) static BYPASS: LogLimit = LogLimit::new("flow_not_bypassed");
pub(crate) static DISTRUST: LogLimit = LogLimit::new("network_distrusted");
pub(crate) static HOOKS: LogLimit = LogLimit::new("hooks_unknown");

/// All of them, each with a label of its own.
pub(crate) static ALL: [&LogLimit; 6] = [&LACKS, &REPAIRED, &LOST, &BYPASS, &DISTRUST, &HOOKS];
