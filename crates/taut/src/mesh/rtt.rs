//! `taut mesh rtt`: the round-trip times that all relays have measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use taut_observe::versioned::Versioned;
use taut_relay::control;
use taut_relay::control::protocol::{Answer, MemberState, PathStatus, Request, RttRows};

use crate::failure::Failure;
use crate::table::{self, figure, text};

/// Print the round-trip times that the relays of the mesh have measured
///
/// A running relay of the mesh answers, from the rows that all relays exchange.
#[derive(Args)]
#[command(after_help = "Examples:
  taut mesh rtt                     every measured path
  taut mesh rtt --table > rtt.txt   for taut mesh plan --rtt rtt.txt")]
pub(crate) struct RttArgs {
    /// Print one path a line, as `taut mesh plan --rtt` and `rtt_file` of [mesh.dns] read it: from, to,
    /// milliseconds, loss in percent
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    table: bool,
    /// Print the answer as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Maximum number of paths, up to 300000
    #[arg(long, default_value_t = 300_000, help_heading = "Output")]
    limit: usize,
    /// Control socket of the relay (relay.control)
    #[arg(long, value_name = "PATH", default_value = control::PATH, help_heading = "The relay")]
    control: PathBuf,
}

pub(crate) fn run(args: &RttArgs) -> Result<(), Failure> {
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let request = Request::Rtt {
        limit: args.limit,
        prefixes_only: false,
        known: None,
    };
    let answer = control::ask(&args.control, &request).map_err(|e| run(&e))?;
    let Answer::Rtt(rows) = answer else {
        return Err(Failure::Run(
            "the relay does not understand this request: it runs another version of taut; restart it with this one".to_owned(),
        ));
    };
    let text = match (args.json, args.table) {
        (true, _) => Versioned::new(&rows).pretty().map_err(|e| run(&e))?,
        (_, true) => machine_readable(&rows, &unreachable(&args.control)?),
        _ => in_words(&rows),
    };
    crate::failure::print(&text)
}

/// Returns the members that the relay cannot reach: what they have measured says nothing about routes now.
fn unreachable(control: &Path) -> Result<BTreeSet<String>, Failure> {
    let answer = control::ask(control, &Request::Mesh).map_err(|e| Failure::Run(e.to_string()))?;
    let Answer::Mesh(status) = answer else {
        return Ok(BTreeSet::new());
    };
    let down = status.members.into_iter();
    let down = down.filter(|member| member.state == MemberState::Down);
    Ok(down.map(|member| member.name).collect())
}

/// Returns the paths in the form that other commands read, without those of `unreachable` members.
fn machine_readable(rows: &RttRows, unreachable: &BTreeSet<String>) -> String {
    let mut text = "# from to rtt_ms loss_percent\n".to_owned();
    for name in unreachable {
        text.push_str(&format!(
            "# {name} cannot be reached: its paths are left out\n"
        ));
    }
    let is_left_out =
        |path: &&PathStatus| unreachable.contains(&path.from) || unreachable.contains(&path.to);
    for path in rows.paths.iter().filter(|path| !is_left_out(path)) {
        let PathStatus {
            from,
            to,
            rtt_ms,
            loss,
            ..
        } = path;
        text.push_str(&format!("{from} {to} {rtt_ms:.3} {:.3}\n", loss * 100.0));
    }
    text
}

fn in_words(rows: &RttRows) -> String {
    let columns = [
        text("FROM"),
        text("TO"),
        figure("LEAST ms"),
        figure("SMOOTHED ms"),
        figure("LOSS %"),
        figure("AGE s"),
    ];
    let row = |path: &PathStatus| {
        vec![
            path.from.clone(),
            path.to.clone(),
            format!("{:.2}", path.rtt_ms),
            format!("{:.2}", path.smoothed_ms),
            format!("{:.3}", path.loss * 100.0),
            format!("{:.0}", path.age_s),
        ]
    };
    let mut text = table::table(&columns, rows.paths.iter().map(row));
    if rows.paths.is_empty() {
        text =
            "no path has been measured yet; rows arrive some seconds after the start\n".to_owned();
    }
    if rows.left_out > 0 {
        text.push_str(&format!("and {} more; --limit shows them\n", rows.left_out));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_path_a_line() {
        let path = PathStatus {
            from: "fra1".to_owned(),
            to: "203.0.113.0/24".to_owned(),
            rtt_ms: 81.25,
            smoothed_ms: 90.0,
            loss: 0.0125,
            age_s: 3.0,
        };
        let rows = RttRows {
            revision: "1f".to_owned(),
            unchanged: false,
            paths: vec![path],
            left_out: 2,
        };
        let expected = "# from to rtt_ms loss_percent\nfra1 203.0.113.0/24 81.250 1.250\n";
        assert_eq!(machine_readable(&rows, &BTreeSet::new()), expected);
        let down = BTreeSet::from(["fra1".to_owned()]);
        let without =
            "# from to rtt_ms loss_percent\n# fra1 cannot be reached: its paths are left out\n";
        assert_eq!(machine_readable(&rows, &down), without);
        let shown = in_words(&rows);
        assert!(shown.starts_with("FROM  TO "), "{shown}");
        assert!(shown.ends_with("and 2 more; --limit shows them\n"));
    }
}
