//! The limits of lines of the log that each of many connections could cause. A count of those that were left
//! out is `taut_relay_log_lines_left_out_total{cause}`.

pub(crate) use taut_exposition::log_limit::{Line, LogLimit};

/// The limits of all workers together, each of one line.
pub(crate) static DEAD_ADDRESS: LogLimit = LogLimit::new("address_dead");
pub(crate) static LIVE_ADDRESS: LogLimit = LogLimit::new("address_alive");
pub(crate) static UNWATCHED: LogLimit = LogLimit::new("mesh_not_watched");
pub(crate) static LEG_OPTIONS: LogLimit = LogLimit::new("mesh_leg_options");

/// All of them.
pub(crate) static ALL: [&LogLimit; 4] = [&DEAD_ADDRESS, &LIVE_ADDRESS, &UNWATCHED, &LEG_OPTIONS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_labels_of_their_own() {
        for limit in ALL {
            let same = ALL.iter().filter(|other| other.cause == limit.cause);
            assert_eq!(same.count(), 1, "{}", limit.cause);
        }
    }
}
