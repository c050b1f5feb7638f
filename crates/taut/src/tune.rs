//! `taut tune`.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::{Args as ClapArgs, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use taut_observe::filter::Filter;
use taut_tune::actuate::{Actuators, Undone};
use taut_tune::budget::{self, Bounds, Budget};
use taut_tune::demand::Cap;
use taut_tune::journal::{self, Journal};
use taut_tune::log::Log;
use taut_tune::pace::{QUIET, pace};
use taut_tune::profile::settings::Profile;
use taut_tune::routes::metrics::{self, Metrics};
use taut_tune::routes::scan::Routes;
use taut_tune::routes::selection::Chosen;
use taut_tune::tuner::{Lists, Outcome, Round, SAMPLES, Told, Tuner};

use crate::Failure;
use crate::observe::{Missing, Which};

/// Windows that can be chosen: what TCP has without scaling, and the widest with it.
const WINDOWS: RangeInclusive<u64> = (64 << 10)..=(1 << 30);
/// Connections that are looked at, if nothing else is said: 4 kB each.
const CONNECTIONS: usize = 100_000;
/// Between looks, if nothing else is said.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon an end is heard of.
const NAP: Duration = Duration::from_millis(50);
/// Changes that wait for a reader of the output; more are not told.
const UNREAD: usize = 10_000;
/// Namespaces beside the own one of which it is said that a profile is not set everywhere in them.
const SHORT: usize = 16;
/// At the end the output is waited for so long.
const READS: Duration = Duration::from_secs(1);

/// Give connections the buffers that their paths can use
#[derive(ClapArgs)]
#[command(after_help = "\
  taut tune                                  say what would be changed, and why; nothing is
  taut tune --apply                          change it, and change it back at the end
  taut tune --apply --skip 'port 22'         but not these
  taut tune --apply --budget 64MiB           and all buffers together hold no more than that
  taut tune --apply --profile security       and redirects, source routes, SYN cookies and keepalive are set, too
  taut tune --apply --initcwnd 20            and connections over default routes begin with 20 segments
  taut tune --undo                           change back what a process that was killed has changed")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// Make the changes, and undo them at the end
    #[arg(long)]
    apply: bool,

    /// Only say what would be changed, which it does without this, too
    #[arg(long, conflicts_with = "apply")]
    advise: bool,

    /// Undo what a process that was killed has changed, and end
    #[arg(long, conflicts_with_all = ["apply", "advise"])]
    undo: bool,

    /// Leave these connections alone (may be given again)
    #[arg(long, value_name = "FILTER")]
    skip: Vec<String>,

    /// Memory that all buffers may hold together, as in 64MiB: everyone has a max-min fair share
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<u64>,

    /// The widest window of a connection, payload without overhead [default: 12MB, and on paths of more than 96 ms what 1 Gbit/s
    /// takes in a round trip]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    per_connection: Option<u64>,

    /// Of the budget, what connections of one control group may hold together
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "budget")]
    per_cgroup: Option<u64>,

    /// Of the budget, what connections with one address may hold together
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "budget")]
    per_destination: Option<u64>,

    /// Settings that are not about buffers, and are left alone without this
    #[arg(long, value_name = "NAME", value_enum)]
    profile: Option<Profiles>,

    /// Segments that a connection sends before anything is acknowledged, set on routes; the kernel's own is 10 (RFC 6928)
    #[arg(long, value_name = "SEGMENTS", value_parser = segments)]
    initcwnd: Option<u32>,

    /// Segments that a peer may send at first, set on routes; the kernel lets it send 64 KiB, and no more with this
    #[arg(long, value_name = "SEGMENTS", value_parser = segments)]
    initrwnd: Option<u32>,

    /// On these routes of the main table, as in 10.0.0.0/8 (may be given again) [default: all default routes]
    #[arg(long, value_name = "PREFIX")]
    route: Vec<String>,

    /// Between looks [default: 1s; while nothing is to be changed as much as makes them take a hundredth of a core, up to 5s, and
    /// 10s while no segment comes]
    #[arg(long, value_name = "TIME", value_parser = crate::top::interval)]
    interval: Option<Duration>,

    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = crate::top::interval)]
    time: Option<Duration>,

    /// A line of JSON for each change
    #[arg(long)]
    json: bool,

    /// Where it is written down what was there before
    #[arg(long, value_name = "FILE", default_value = journal::PATH)]
    journal: PathBuf,
}

/// Profiles, by name.
#[derive(Clone, Copy, ValueEnum)]
enum Profiles {
    /// ICMP redirects, source routes, SYN cookies and keepalive, as the thesis has them
    Security,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.undo {
        return undo(&args.journal);
    }
    let lists = lists(args)?;
    let (budget, cap) = (budget(args)?, cap(args)?);
    let routes = routes(args)?;
    let ends = Arc::new(AtomicBool::new(false));
    // Before anything is changed: who hears of an end undoes it.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        flag::register(signal, Arc::clone(&ends))
            .map_err(|e| Failure::Run(format!("cannot hear signals: {e}")))?;
    }
    let actuators = match args.apply {
        true => Some(actuators(&args.journal)?),
        false => None,
    };
    let observer = args.which.observer(CONNECTIONS, SAMPLES);
    let mut tuner = Tuner::new(observer, lists, actuators);
    if let Some(window) = cap {
        tuner = tuner.with_cap(Cap::chosen(window));
    }
    if let Some(budget) = budget {
        tuner = tuner.with_budget(budget);
    }
    match args.profile {
        None => {}
        Some(Profiles::Security) => tuner = tuner.with_profile(Profile::Security),
    }
    if let Some(routes) = routes {
        tuner = tuner.with_routes(routes);
    }
    let printer = Printer::new(Arc::clone(&ends));
    let mut noted = Noting::of(args);
    let result = rounds(args, &mut tuner, &ends, &printer, &mut noted);
    // Whoever reads slowly, or not at all, keeps nothing from being undone.
    let undone = tuner.end();
    if args.apply {
        say_undone(&undone);
        forget(&args.journal, &undone);
    }
    printer.end();
    result
}

fn rounds(
    args: &Args,
    tuner: &mut Tuner,
    ends: &AtomicBool,
    printer: &Printer,
    noted: &mut Noting,
) -> Result<(), Failure> {
    let ends = || ends.load(Ordering::Relaxed);
    let mut missing = Missing::default();
    let (mut all_left, mut untold, mut over) = (false, false, false);
    let mut looks = 0_usize;
    let mut short = HashSet::new();
    let began = Instant::now();
    let is_over = || args.time.is_some_and(|time| began.elapsed() >= time);
    while !ends() {
        let (look, before) = (Instant::now(), cpu_time());
        let round = tuner.round(ends).map_err(|e| Failure::Run(e.to_string()))?;
        missing.say(tuner.observer(), &round.looked);
        say_once(
            &mut all_left,
            leaves_all(&round),
            "every connection is one that is to be left alone (FILTER, --skip)",
        );
        say_once(
            &mut over,
            round.over > 0,
            "the budget is too small for what is queued, and for the least that each connection needs: it is passed",
        );
        for netns in &round.short {
            // The own one is said, whatever others there are.
            if (&**netns == "-" || short.len() < SHORT) && short.insert(Arc::clone(netns)) {
                say(&short_of(netns));
            }
        }
        round.troubles.iter().for_each(|text| say(text));
        for text in &round.unmatched {
            say(&format!(
                "no namespace that is looked at has a route to {text} in its main table (one that comes later is taken)"
            ));
        }
        round.told.iter().for_each(|told| noted.note(told));
        let told = round.told.iter().map(|told| text(told, args.json));
        let missed = told.filter(|line| !printer.print(line)).count();
        say_once(
            &mut untold,
            missed > 0,
            "nobody reads as fast as changes are made: some are not told",
        );
        let used = cpu_time().saturating_sub(before);
        looks = looks.saturating_add(1);
        // What connections want is known when they have been looked at a few times.
        let is_at_rest = round.told.is_empty() && looks >= SAMPLES;
        let nap = |until: Instant| {
            while !ends() && !is_over() && Instant::now() < until {
                std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        };
        // Who has said how often has said so.
        let is_at_rest = is_at_rest && args.interval.is_none();
        let interval = args.interval.unwrap_or(INTERVAL);
        nap(look + pace(interval, used, is_at_rest));
        while is_at_rest && !ends() && !is_over() && look.elapsed() < QUIET && tuner.is_quiet() {
            nap(Instant::now() + interval);
        }
        if is_over() {
            break;
        }
    }
    Ok(())
}

/// Of this process, since it began.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

fn leaves_all(round: &Round) -> bool {
    round.connections > 0 && round.left_alone == round.connections
}

/// That the profile is not set everywhere.
fn short_of(netns: &str) -> String {
    let of = match netns {
        "-" => "the own namespace".to_owned(),
        named => format!("namespace {named}"),
    };
    format!(
        "{of} has more interfaces, or settings, than --profile has room for: some are left as they are (docs/tune.md, Security profile)"
    )
}

fn say_once(said: &mut bool, is_so: bool, sentence: &str) {
    if is_so && !std::mem::replace(said, true) {
        say(sentence);
    }
}

fn size(text: &str) -> Result<u64, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|_| "not a size: write it as in 64MiB".to_owned())?;
    Ok(size.as_u64())
}

fn cap(args: &Args) -> Result<Option<u64>, Failure> {
    match args.per_connection {
        Some(window) if !WINDOWS.contains(&window) => Err(Failure::Usage(format!(
            "--per-connection {}: a window is {} at least, and {} at most (RFC 7323, 2.3)",
            ByteSize(window).display().iec(),
            ByteSize(*WINDOWS.start()).display().iec(),
            ByteSize(*WINDOWS.end()).display().iec(),
        ))),
        window => Ok(window),
    }
}

fn budget(args: &Args) -> Result<Option<Budget>, Failure> {
    let Some(total) = args.budget else {
        return Ok(None);
    };
    let least = budget::LEAST;
    if total < least {
        return Err(Failure::Usage(format!(
            "--budget {}: it has to be {} at least: a few connections need that",
            ByteSize(total).display().iec(),
            ByteSize(least).display().iec()
        )));
    }
    for (name, part) in [
        ("per-cgroup", args.per_cgroup),
        ("per-destination", args.per_destination),
    ] {
        let Some(part) = part else { continue };
        if part == 0 || part > total {
            return Err(Failure::Usage(format!(
                "--{name} {}: a part of --budget {} is needed, more than nothing and not more than all",
                ByteSize(part).display().iec(),
                ByteSize(total).display().iec()
            )));
        }
    }
    Ok(Some(Budget::new(Bounds {
        total,
        per_cgroup: args.per_cgroup,
        per_destination: args.per_destination,
    })))
}

fn segments(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=metrics::MOST) => Ok(count),
        _ => Err(format!("a number of segments, from 1 to {}", metrics::MOST)),
    }
}

fn routes(args: &Args) -> Result<Option<Routes>, Failure> {
    let asked = Metrics {
        initcwnd: args.initcwnd,
        initrwnd: args.initrwnd,
    };
    if asked == Metrics::default() {
        return match args.route.first() {
            None => Ok(None),
            Some(text) => Err(Failure::Usage(format!(
                "--route {text}: nothing is to be set on it: say what, with --initcwnd or --initrwnd"
            ))),
        };
    }
    let chosen = args.route.iter().map(|text| {
        let chosen = text.parse::<Chosen>();
        chosen.map_err(|e| Failure::Usage(format!("--route {text:?}: {e}")))
    });
    Ok(Some(Routes::new(chosen.collect::<Result<_, _>>()?, asked)))
}

fn lists(args: &Args) -> Result<Lists, Failure> {
    let only = args.which.filter()?;
    let skip = args.skip.iter().map(|text| {
        if text.trim().is_empty() || text.trim() == args.which.text().trim() {
            return Err(Failure::Usage(format!(
                "--skip {text:?} leaves nothing to tune: say which connections are to be left alone"
            )));
        }
        text.parse::<Filter>().map_err(|e| {
            Failure::Usage(format!(
                "--skip {text:?}: {e} (the words are in docs/observe.md)"
            ))
        })
    });
    Ok(Lists {
        only,
        skip: skip.collect::<Result<_, _>>()?,
    })
}

/// With what a process that ended without undoing it had changed undone.
fn actuators(path: &Path) -> Result<Actuators, Failure> {
    if !taut_sys::probe::is_root() {
        return Err(Failure::Run(
            "--apply: run this as root; without it, it only says what it would do".into(),
        ));
    }
    let journal = Journal::open(path).map_err(|e| Failure::Run(e.to_string()))?;
    let is_left = journal.entries().next().is_some();
    let mut actuators = Actuators::new(journal);
    if is_left {
        say("what a process that was killed has changed is undone first");
        let undone = actuators.undo();
        say_undone(&undone);
        forget(path, &undone);
    }
    Ok(actuators)
}

fn undo(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        say("nothing is to be undone");
        return Ok(());
    }
    let journal = Journal::open(path).map_err(|e| Failure::Run(e.to_string()))?;
    let mut actuators = Actuators::new(journal);
    let undone = actuators.undo();
    actuators.close();
    say_undone(&undone);
    forget(path, &undone);
    match undone.failed {
        0 => Ok(()),
        failed => Err(Failure::Run(format!(
            "{failed} changes could not be undone, and are kept in {}",
            path.display()
        ))),
    }
}

fn say_undone(undone: &Undone) {
    let Undone {
        restored,
        gone,
        others,
        failed,
    } = undone;
    say(&format!(
        "undone: {restored} as before, {gone} ended meanwhile, {others} changed by others since and left, {failed} failed"
    ));
}

fn say(sentence: &str) {
    // Nobody may be reading any more.
    let _ = writeln!(io::stderr(), "taut: {sentence}");
}

fn text(told: &Told, json: bool) -> String {
    match json {
        // It has nothing in it that JSON has not.
        true => serde_json::to_string(told).unwrap_or_default(),
        false => line(told),
    }
}

fn line(told: &Told) -> String {
    let who = match &told.connection {
        None => format!("namespace {}", told.netns),
        Some(connection) => {
            let process = match &connection.process {
                Some((name, pid)) => format!(" ({name}/{pid})"),
                None => String::new(),
            };
            format!("{} -> {}{process}", connection.local, connection.remote)
        }
    };
    let outcome = match &told.outcome {
        Outcome::Advised => "would change".to_owned(),
        Outcome::Made => "changed".to_owned(),
        Outcome::Gone => "not changed, it has ended".to_owned(),
        Outcome::NoOwner => "not changed, nobody is known to have it".to_owned(),
        Outcome::Failed(why) => format!("not changed ({why})"),
    };
    format!(
        "{who}: {outcome}: {}\n    why: {}\n    expected: {}",
        told.change, told.because, told.expected
    )
}

/// What was undone is told by `taut why` no more; what was not, is.
fn forget(journal: &Path, undone: &Undone) {
    if undone.failed > 0 {
        return;
    }
    if let Err(error) = Log::of(journal).undone() {
        say(&format!(
            "`taut why` may tell of what is undone: the log stays: {error}"
        ));
    }
}

/// Notes what is done in the log, if that can be: nothing depends on it.
struct Noting(Option<Log>);

// === impl Noting ===

impl Noting {
    /// What was advised before is advised anew, or is made.
    fn of(args: &Args) -> Self {
        if let Err(error) = Log::of_advice(&args.journal).undone() {
            tracing::debug!(%error, "what was advised before is told on");
        }
        Self(Some(match args.apply {
            true => Log::of(&args.journal),
            false => Log::of_advice(&args.journal),
        }))
    }

    fn note(&mut self, told: &Told) {
        let Some(log) = &mut self.0 else { return };
        if let Err(error) = log.note(told) {
            self.0 = None;
            // Who may not write there only asks.
            if told.outcome == Outcome::Advised {
                tracing::debug!(%error, "what is advised is not noted");
                return;
            }
            say(&format!(
                "`taut why` will not know of all changes: the log cannot be written: {error}"
            ));
        }
    }
}

/// Writes lines to standard output, and keeps nobody waiting.
struct Printer {
    lines: SyncSender<String>,
    written: Receiver<()>,
}

// === impl Printer ===

impl Printer {
    /// `ends` is set when nobody reads any more.
    fn new(ends: Arc<AtomicBool>) -> Self {
        let (lines, waiting) = sync_channel::<String>(UNREAD);
        let (writes, written) = sync_channel(1);
        std::thread::spawn(move || {
            for line in waiting {
                let mut out = io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    ends.store(true, Ordering::Relaxed);
                    break;
                }
            }
            // Nobody may be waiting.
            let _ = writes.try_send(());
        });
        Self { lines, written }
    }

    /// `false`: there is no room.
    fn print(&self, line: &str) -> bool {
        let sent = self.lines.try_send(line.to_owned());
        !matches!(sent, Err(TrySendError::Full(_)))
    }

    fn end(self) {
        drop(self.lines);
        // It has all been written, or nobody reads.
        let _ = self.written.recv_timeout(READS);
    }
}
