//! `taut status`: the connections and the jobs of this machine in a few lines, and what to do next. `taut`
//! alone prints it at a terminal.

mod connections;
mod jobs;
mod page;

use clap::Args as ClapArgs;
use serde::Serialize;
use taut_observe::versioned::Versioned;
use taut_sys::listen::Listen;

use self::connections::{Connections, Watched};
use self::jobs::Job;
use crate::confine::{self, SandboxArgs};
use crate::failure::{Failure, print};

/// The maximum number of jobs of which each has a line.
const MAX_JOBS: usize = 6;

/// Show connections, jobs and what to do next, in a few lines
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut                 the same, at a terminal
  taut status --json   for scripts
  taut status --serve  a page in the browser, at http://127.0.0.1:9460/

It looks for two seconds and changes nothing. As root it sees all connections.")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Serve a page of this, and of what each job does, at http://ADDRESS/ until a signal ends it [without an address:
    /// 127.0.0.1:9460]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = page::ADDRESS,
        conflicts_with = "json",
        help_heading = "Output"
    )]
    serve: Option<Listen>,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// What there is on this machine.
#[derive(Debug, Default, Serialize)]
struct Overview {
    /// The connections of this machine.
    connections: Connections,
    /// The jobs of Taut's that run here.
    jobs: Vec<Job>,
    /// What to run next.
    next: Next,
}

/// What to run next.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Next {
    /// The command.
    command: &'static str,
    /// What it does.
    what: &'static str,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(address) = args.serve {
        return page::run(address, args.sandbox);
    }
    // Before the capability to use sockets of other users is gone.
    let (jobs, _) = jobs::running();
    confine::observer(args.sandbox).enter()?.say();
    let overview = Overview::of(Watched::begin().round()?, jobs);
    print(&match args.json {
        true => overview.json()?,
        false => text(&overview),
    })
}

// === impl Overview ===

impl Overview {
    fn of(connections: Connections, jobs: Vec<Job>) -> Self {
        Self {
            next: next(&connections, &jobs),
            connections,
            jobs,
        }
    }

    fn json(&self) -> Result<String, Failure> {
        let json = Versioned::new(self).pretty();
        json.map_err(|error| Failure::Run(error.to_string()))
    }
}

/// Returns the first of these that there is a reason for.
fn next(connections: &Connections, jobs: &[Job]) -> Next {
    let next = |command, what| Next { command, what };
    if let Some(job) = jobs.iter().find(|job| !job.well) {
        return match job.name {
            "relay" => next("taut relay status", "what is broken, and since when"),
            _ => next("taut snoop status", "what is wrong with a tap"),
        };
    }
    if connections.broken.count + connections.slow.count > 0 {
        return next("taut why", "what limits these connections, and what helps");
    }
    if connections.busy > 0 {
        return next("taut top", "what each connection does");
    }
    next(
        "taut doctor",
        "whether this machine is set up well; `taut why` while a connection is slow",
    )
}

fn text(overview: &Overview) -> String {
    let Connections {
        open,
        busy,
        slow,
        broken,
        unseen,
    } = &overview.connections;
    let mut text = String::new();
    let mut line = |name: &str, rest: &str| text.push_str(&format!("{name:<13}{rest}\n"));
    line("connections", &format!("{open} open, {busy} active"));
    if slow.count > 0 {
        let what = format!(
            "{} slow for a reason that can be mended: {}",
            slow.count,
            slow.named()
        );
        line("", &what);
    }
    if broken.count > 0 {
        line(
            "",
            &format!("{} not working: {}", broken.count, broken.named()),
        );
    }
    if let Some(unseen) = unseen {
        let what = unseen.split(": ").next().unwrap_or_default();
        line("", &format!("({what})"));
    }
    for job in overview.jobs.iter().take(MAX_JOBS) {
        line(job.name, &job.state);
    }
    match overview.jobs.len() {
        0 => line("jobs", "none of Taut's runs here"),
        count if count > MAX_JOBS => line("", &format!("and {} more", count - MAX_JOBS)),
        _ => {}
    }
    line(
        "next",
        &format!("{:<18} {}", overview.next.command, overview.next.what),
    );
    text
}

#[cfg(test)]
mod tests {
    use taut_observe::verdict::Factor;

    use super::connections::{Counted, Limited};
    use super::*;

    fn limited(factors: &[(Factor, u64)]) -> Limited {
        Limited {
            count: factors.iter().map(|(_, count)| count).sum(),
            factors: factors
                .iter()
                .map(|&(factor, count)| Counted { factor, count })
                .collect(),
        }
    }

    fn job(name: &'static str, well: bool) -> Job {
        Job {
            name,
            pid: Some(7),
            well,
            state: "pid 7".to_owned(),
        }
    }

    #[test]
    fn an_idle_machine_has_three_lines() {
        let shown = text(&Overview::of(Connections::default(), Vec::new()));
        assert_eq!(
            shown,
            "connections  0 open, 0 active\njobs         none of Taut's runs here\nnext         taut doctor        whether this \
             machine is set up well; `taut why` while a connection is slow\n"
        );
    }

    #[test]
    fn the_next_command_is_about_the_worst() {
        let slow = || Connections {
            busy: 5,
            slow: limited(&[(Factor::Loss, 3), (Factor::ReceiveBuffer, 1)]),
            ..Connections::default()
        };
        let shown = text(&Overview::of(slow(), vec![job("relay", true)]));
        assert!(
            shown.contains("4 slow for a reason that can be mended: loss 3, receive-buffer 1\n"),
            "{shown}"
        );
        assert!(shown.contains("\nnext         taut why "), "{shown}");
        let shown = text(&Overview::of(
            slow(),
            vec![job("snoop", true), job("relay", false)],
        ));
        assert!(
            shown.contains("\nnext         taut relay status "),
            "{shown}"
        );
        let busy = Connections {
            busy: 1,
            ..Connections::default()
        };
        assert_eq!(next(&busy, &[]).command, "taut top");
    }

    #[test]
    fn it_never_has_more_than_twelve_lines() {
        let all = [
            (Factor::Loss, 9),
            (Factor::Queue, 8),
            (Factor::SendBuffer, 7),
            (Factor::CpuQuota, 6),
        ];
        let connections = Connections {
            open: 1000,
            busy: 1000,
            slow: limited(&all),
            broken: limited(&[(Factor::Timeouts, 1)]),
            unseen: Some("something is missing".to_owned()),
        };
        let jobs = (0..20).map(|_| job("relay", true)).collect();
        let shown = text(&Overview::of(connections, jobs));
        assert_eq!(shown.lines().count(), 12, "{shown}");
        assert!(shown.contains("and 14 more"), "{shown}");
    }
}
