//! `taut status`: the connections and the jobs of this machine in a few lines, and what to do next. `taut`
//! alone prints it at a terminal.

mod jobs;

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use serde::Serialize;
use taut_observe::filter::Filter;
use taut_observe::observation::Observation;
use taut_observe::observer::Observer;
use taut_observe::scan::{Scope, Wants};
use taut_observe::table::Retention;
use taut_observe::verdict::Factor;
use taut_observe::versioned::Versioned;

use self::jobs::Job;
use crate::confine::{self, SandboxArgs};
use crate::failure::{Failure, print};
use crate::observe::wait_until;

/// The time for which connections are observed.
const WATCH: Duration = Duration::from_millis(1500);
/// The number of scans in this time.
const SCANS: u32 = 4;
/// The maximum number of connections.
const CONNECTIONS: usize = 10_000;
/// The maximum number of factors that are named in a line.
const MAX_FACTORS: usize = 3;
/// The maximum number of jobs of which each has a line.
const MAX_JOBS: usize = 6;

/// Show connections, jobs and what to do next, in a few lines
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut                 the same, at a terminal
  taut status --json   for scripts

It looks for two seconds and changes nothing. As root it sees all connections.")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,

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

/// The connections of this machine.
#[derive(Debug, Default, Serialize)]
struct Connections {
    /// Those that are open.
    open: u64,
    /// Those that are not idle.
    busy: u64,
    /// Those that something on this host or on the path makes slow.
    slow: Limited,
    /// Those that do not work.
    broken: Limited,
    /// What could not be observed; `null` if everything was.
    unseen: Option<String>,
}

/// Connections that are limited.
#[derive(Debug, Default, Serialize)]
struct Limited {
    /// Their number.
    count: u64,
    /// What limits them, the most frequent factor first.
    factors: Vec<Counted>,
}

/// A factor, and the connections that it limits.
#[derive(Debug, Serialize)]
struct Counted {
    /// What limits them.
    factor: Factor,
    /// Their number.
    count: u64,
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
    // Outside the sandbox, which allows no connection to their sockets.
    let jobs = jobs::running();
    confine::observer(args.sandbox).enter()?.say();
    let connections = connections()?;
    let overview = Overview {
        next: next(&connections, &jobs),
        connections,
        jobs,
    };
    print(&match args.json {
        true => Versioned::new(&overview)
            .pretty()
            .map_err(|error| Failure::Run(error.to_string()))?,
        false => text(&overview),
    })
}

fn connections() -> Result<Connections, Failure> {
    let keep = Retention {
        connections: CONNECTIONS,
        samples: SCANS as usize,
    };
    let wants = Wants {
        events: true,
        ends: false,
    };
    let mut observer = Observer::new(Scope::Machine, keep, wants);
    observer.measure_cpu_time();
    let mut observation = Observation::new(observer, Filter::all());
    let began = Instant::now();
    let mut missing = crate::observe::Missing::default();
    let mut unseen = None;
    for scan in 0..SCANS {
        let summary = observation
            .scan()
            .map_err(|error| Failure::Run(error.to_string()))?;
        unseen = unseen.or(missing.sentence(observation.observer(), &summary));
        if scan + 1 < SCANS {
            wait_until(began + WATCH / (SCANS - 1) * (scan + 1), || {
                observation.poll()
            });
        }
    }
    let observer = observation.observer();
    let mut found = Connections {
        open: observer.left_out() as u64,
        unseen,
        ..Connections::default()
    };
    for seen in observer.connections(observation.filter()) {
        found.open += 1;
        let Some((factor, _)) = observer.limit(&seen) else {
            continue;
        };
        found.busy += u64::from(factor != Factor::Idle);
        match factor.trouble() {
            3 => found.broken.add(factor),
            2 => found.slow.add(factor),
            _ => {}
        }
    }
    for limited in [&mut found.slow, &mut found.broken] {
        limited
            .factors
            .sort_by_key(|counted| std::cmp::Reverse(counted.count));
    }
    Ok(found)
}

// === impl Limited ===

impl Limited {
    fn add(&mut self, factor: Factor) {
        self.count += 1;
        match self
            .factors
            .iter_mut()
            .find(|counted| counted.factor == factor)
        {
            Some(counted) => counted.count += 1,
            None => self.factors.push(Counted { factor, count: 1 }),
        }
    }

    /// Returns the most frequent factors: `loss 3, receive-buffer 1`.
    fn named(&self) -> String {
        let named = self.factors.iter().take(MAX_FACTORS);
        let named = named.map(|counted| format!("{} {}", counted.factor.name(), counted.count));
        named.collect::<Vec<_>>().join(", ")
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

    fn overview(connections: Connections, jobs: Vec<Job>) -> Overview {
        Overview {
            next: next(&connections, &jobs),
            connections,
            jobs,
        }
    }

    #[test]
    fn an_idle_machine_has_three_lines() {
        let shown = text(&overview(Connections::default(), Vec::new()));
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
        let shown = text(&overview(slow(), vec![job("relay", true)]));
        assert!(
            shown.contains("4 slow for a reason that can be mended: loss 3, receive-buffer 1\n"),
            "{shown}"
        );
        assert!(shown.contains("\nnext         taut why "), "{shown}");
        let shown = text(&overview(
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
        let shown = text(&overview(connections, jobs));
        assert_eq!(shown.lines().count(), 12, "{shown}");
        assert!(shown.contains("and 14 more"), "{shown}");
    }
}
