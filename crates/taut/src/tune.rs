//! `taut tune`: arguments, signals, and output.

mod text;

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::{ArgMatches, Args as ClapArgs, FromArgMatches as _, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use taut_observe::filter::Filter;
use taut_observe::namespaces::{OWN, in_words, pid};
use taut_sys::listen::Listen;
use taut_tune::actuate::Actuators;
use taut_tune::budget::{self, Bounds, Budget};
use taut_tune::demand::WindowCap;
use taut_tune::journal::{self, Journal};
use taut_tune::log::Log;
use taut_tune::metrics::Metrics;
use taut_tune::pace::{QUIET, pace};
use taut_tune::profile::settings::Profile;
use taut_tune::report::{ChangeReport, Outcome};
use taut_tune::routes::metrics::{MAX_INITIAL_WINDOW, Metrics as RouteMetrics};
use taut_tune::routes::scan::RouteTuner;
use taut_tune::routes::selection::Selector;
use taut_tune::tuner::{Round, SAMPLES, Selection, Tuner};
use taut_tune::undo::UndoSummary;

use crate::confine::{self, Confinement};
use crate::failure::Failure;
use crate::log::say;
use crate::observe::{ConnectionArgs, Ends, Missing, filter_help};
use crate::options::FileArgs;

/// The valid windows: from the widest window without scaling to the widest with scaling.
const WINDOWS: RangeInclusive<u64> = (64 << 10)..=(1 << 30);
/// The default number of connections kept, 4 kB each.
const CONNECTIONS: usize = 100_000;
/// The default time between scans.
const INTERVAL: Duration = Duration::from_secs(1);
/// The maximum delay until a signal is noticed.
const NAP: Duration = Duration::from_millis(50);
/// The maximum number of lines that wait for a reader of the output; further ones are dropped.
const MAX_UNREAD: usize = 10_000;
/// The maximum number of namespaces, besides this process's own, of which the same is reported.
const MAX_REPORTED: usize = 16;
/// The maximum time that the exit waits for a reader of the output.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Give connections the buffers that their paths can use
#[derive(ClapArgs)]
#[command(after_help = concat!("Examples:
  taut tune                               what would be changed, and why
  taut tune --apply                       change it, and restore it at the end
  taut tune --apply --skip 'port 22'      except these connections
  taut tune --apply --budget 64MiB        with this much memory in all buffers
  taut tune --apply --profile security    and tighten settings of security
  taut tune --apply --initcwnd 20         and begin with 20 segments
  taut tune --undo                        undo what a killed process changed

It watches until Ctrl-C or SIGTERM, or for the time given with --for.

",
    filter_help!()
))]
pub(crate) struct Args {
    #[command(flatten)]
    which: ConnectionArgs,

    #[command(flatten)]
    _file: FileArgs,

    /// Make the changes, and undo them at the end
    #[arg(long, help_heading = "What is done")]
    apply: bool,

    /// Only report what would be changed (the default)
    #[arg(long, conflicts_with = "apply", help_heading = "What is done")]
    advise: bool,

    /// Undo the changes of a process that was killed, and exit
    #[arg(long, conflicts_with_all = ["apply", "advise"], help_heading = "What is done")]
    undo: bool,

    /// Leave these connections alone (may be repeated)
    #[arg(long, value_name = "FILTER", help_heading = "Connections")]
    skip: Vec<String>,

    /// Memory that all buffers may hold together, such as 64MiB; each gets a max-min fair share
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Buffers")]
    budget: Option<u64>,

    /// The widest window of a connection, in payload without overhead [default: 12MB, and on paths
    /// of more than 96 ms what 1 Gbit/s carries in a round trip]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Buffers")]
    per_connection: Option<u64>,

    /// The part of the budget for the connections of each control group
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "budget", help_heading = "Buffers")]
    per_cgroup: Option<u64>,

    /// The part of the budget for the connections with each remote address
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "budget", help_heading = "Buffers")]
    per_destination: Option<u64>,

    /// Also change these settings, which are not about buffers
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Settings")]
    profile: Option<Profiles>,

    /// Segments that a connection sends before the first acknowledgement, set on routes; the
    /// kernel's default is 10 (RFC 6928)
    #[arg(long, value_name = "SEGMENTS", value_parser = segments, help_heading = "Routes")]
    initcwnd: Option<u32>,

    /// Segments that the peer may send at first, set on routes; at most the kernel's default, 64
    /// KiB
    #[arg(long, value_name = "SEGMENTS", value_parser = segments, help_heading = "Routes")]
    initrwnd: Option<u32>,

    /// Set them on these routes of the main table, such as 10.0.0.0/8 (may be repeated) [default:
    /// all default routes]
    #[arg(long, value_name = "PREFIX", help_heading = "Routes")]
    route: Vec<String>,

    /// Time between scans [default: 1s; while nothing changes, long enough that scans take 1 % of a
    /// core, up to 5s; 10s while no connection sends or receives]
    #[arg(long, value_name = "TIME", value_parser = crate::top::interval, help_heading = "Scans")]
    interval: Option<Duration>,

    /// Exit after this time
    #[arg(long = "for", value_name = "TIME", value_parser = crate::top::interval, help_heading = "Scans")]
    time: Option<Duration>,

    /// Print a line of JSON for each change
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Serve metrics (OpenMetrics) at http://ADDRESS/metrics
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "undo",
        help_heading = "Metrics"
    )]
    metrics: Option<Listen>,

    /// Where the values from before each change are kept
    #[arg(long, value_name = "FILE", default_value = journal::PATH, help_heading = "What is done")]
    journal: PathBuf,
}

/// The profiles.
#[derive(Clone, Copy, ValueEnum)]
enum Profiles {
    /// ICMP redirects, source routes, SYN cookies and keepalive, as in the thesis
    Security,
}

/// Returns what it may do.
pub(crate) fn confinement(args: &Args) -> Confinement {
    match args.apply || args.undo {
        true => confine::tuner(args.which.sandbox()),
        false => confine::adviser(args.which.sandbox()),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.undo {
        return undo(&args.journal);
    }
    let selection = selection(args)?;
    let (budget, cap) = (budget(args)?, cap(args)?);
    let routes = routes(args)?;
    let ends = Arc::new(AtomicBool::new(false));
    // Signal handlers are installed before any change, so that changes are undone on a signal.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        flag::register(signal, Arc::clone(&ends))
            .map_err(|e| Failure::Run(format!("cannot handle signals: {e}")))?;
    }
    let actuators = match args.apply {
        true => Some(actuators(args)?),
        false => None,
    };
    let metrics = Metrics::default();
    // After the changes of a killed process are undone, for which no metrics are needed.
    if let Some(addr) = args.metrics {
        metrics
            .serve(addr)
            .map_err(|error| Failure::Run(error.to_string()))?;
    }
    let observer = args.which.observer(CONNECTIONS, SAMPLES, Ends::Ignored);
    let mut tuner = Tuner::new(observer, selection, actuators);
    if let Some(window) = cap {
        tuner = tuner.with_cap(WindowCap::of(window));
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
    if args.time.is_none() && io::stderr().is_terminal() {
        say("watching; Ctrl-C ends it, and undoes what it has changed");
    }
    let printer = Printer::new(Arc::clone(&ends))
        .map_err(|error| Failure::Run(format!("cannot start the thread that prints: {error}")))?;
    let mut log = ChangeLog::open(args);
    let result = rounds(args, &mut tuner, &ends, &printer, &mut log, &metrics);
    // Undoing must not wait for a reader of the output.
    let summary = tuner.end();
    if args.apply {
        say_undone(&summary);
        remove_log(&args.journal, &summary);
    }
    printer.end();
    result
}

fn rounds(
    args: &Args,
    tuner: &mut Tuner,
    ends: &AtomicBool,
    printer: &Printer,
    log: &mut ChangeLog,
    metrics: &Metrics,
) -> Result<(), Failure> {
    let ends = || ends.load(Ordering::Relaxed);
    let mut missing = Missing::default();
    let (mut has_said_none, mut has_said_dropped, mut has_said_excess) = (false, false, false);
    let mut scans = 0_usize;
    let (mut foreign, mut short) = (HashSet::new(), HashSet::new());
    let began = Instant::now();
    let is_over = || args.time.is_some_and(|time| began.elapsed() >= time);
    while !ends() {
        let (start, before) = (Instant::now(), cpu_time());
        let round = tuner.round(ends).map_err(|e| Failure::Run(e.to_string()))?;
        missing.report(tuner.observer(), &round.summary);
        say_once(
            &mut has_said_none,
            leaves_all_alone(&round),
            "FILTER and --skip leave all connections alone",
        );
        say_once(
            &mut has_said_excess,
            round.excess > 0,
            "the budget is exceeded: it is too small for the queued bytes and for the minimum of each connection",
        );
        for netns in &round.foreign {
            if is_reported(&mut foreign, netns) {
                say(&foreign_sentence(netns));
            }
        }
        for netns in &round.short {
            if is_reported(&mut short, netns) {
                say(&short_sentence(netns));
            }
        }
        round.problems.iter().for_each(|text| say(text));
        for text in &round.unmatched {
            say(&format!(
                "no network namespace has a route to {text} in its main table; one that is added later will be changed"
            ));
        }
        round.reports.iter().for_each(|report| log.note(report));
        let lines = text::lines(&round.reports, args.json)
            .map_err(|error| Failure::Run(error.to_string()))?;
        let dropped = lines.iter().filter(|line| !printer.print(line)).count();
        say_once(
            &mut has_said_dropped,
            dropped > 0,
            "the output is read too slowly: some changes are not printed",
        );
        let used = cpu_time().saturating_sub(before);
        metrics.round(&round, tuner.observer().left_out(), used, dropped);
        scans = scans.saturating_add(1);
        // The needs of connections are known only after a few scans.
        let is_at_rest = round.reports.is_empty() && scans >= SAMPLES;
        let nap = |until: Instant| {
            while !ends() && !is_over() && Instant::now() < until {
                std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        };
        // An explicit --interval disables adaptive pacing.
        let is_at_rest = is_at_rest && args.interval.is_none();
        let interval = args.interval.unwrap_or(INTERVAL);
        nap(start + pace(interval, used, is_at_rest));
        while is_at_rest && !ends() && !is_over() && start.elapsed() < QUIET && tuner.is_quiet() {
            nap(Instant::now() + interval);
        }
        if is_over() {
            break;
        }
    }
    Ok(())
}

/// Returns the processor time of this process since its start.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

fn leaves_all_alone(round: &Round) -> bool {
    round.connections > 0 && round.left_alone == round.connections
}

/// Whether to report something of this namespace that `reported` does not contain.
fn is_reported(reported: &mut HashSet<Arc<str>>, netns: &Arc<str>) -> bool {
    // This process's own namespace is always reported.
    (&**netns == OWN || reported.len() < MAX_REPORTED) && reported.insert(Arc::clone(netns))
}

/// Returns the sentence that reports a namespace that another process tunes.
fn foreign_sentence(netns: &str) -> String {
    let of = in_words(netns);
    let enter = match (netns, pid(netns)) {
        (OWN, _) => String::new(),
        (_, Some(pid)) => format!("nsenter -t {pid} -n "),
        (named, None) => format!("ip netns exec {named} "),
    };
    format!(
        "another taut tune --apply changes {of}: until it ends, nothing is changed there (`{enter}ss -lunp src 127.84.65.3` names it)"
    )
}

/// Returns the sentence that reports a namespace with more settings than there is room for.
fn short_sentence(netns: &str) -> String {
    let of = in_words(netns);
    format!(
        "{of} has more interfaces or settings than --profile has room for: some are left as they are (docs/tune-settings.md, Security profile)"
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
        .map_err(|_| "not a size: write it like 64MiB".to_owned())?;
    Ok(size.as_u64())
}

/// Checks options beyond what clap does, but no filter: that would look names up.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(matches: &ArgMatches) -> Result<(), String> {
    let args = Args::from_arg_matches(matches).map_err(|error| error.to_string())?;
    let checked = budget(&args).and(cap(&args)).and(routes(&args).map(drop));
    checked.map_err(|failure| match failure {
        Failure::Usage(what) | Failure::Run(what) => what,
    })
}

fn cap(args: &Args) -> Result<Option<u64>, Failure> {
    match args.per_connection {
        Some(window) if !WINDOWS.contains(&window) => Err(Failure::Usage(format!(
            "--per-connection {}: a window is at least {} and at most {} (RFC 7323, 2.3)",
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
    let smallest = budget::MIN_BUDGET;
    if total < smallest {
        return Err(Failure::Usage(format!(
            "--budget {}: a budget is at least {}, which a few connections need",
            ByteSize(total).display().iec(),
            ByteSize(smallest).display().iec()
        )));
    }
    for (name, part) in [
        ("per-cgroup", args.per_cgroup),
        ("per-destination", args.per_destination),
    ] {
        let Some(part) = part else { continue };
        if part == 0 || part > total {
            return Err(Failure::Usage(format!(
                "--{name} {}: a part of --budget {} is more than zero, and at most the budget",
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
        Ok(count @ 1..=MAX_INITIAL_WINDOW) => Ok(count),
        _ => Err(format!(
            "a number of segments, from 1 to {MAX_INITIAL_WINDOW}"
        )),
    }
}

fn routes(args: &Args) -> Result<Option<RouteTuner>, Failure> {
    let requested = RouteMetrics {
        initcwnd: args.initcwnd,
        initrwnd: args.initrwnd,
    };
    if requested == RouteMetrics::default() {
        return match args.route.first() {
            None => Ok(None),
            Some(text) => Err(Failure::Usage(format!(
                "--route {text}: give --initcwnd or --initrwnd, too"
            ))),
        };
    }
    let selectors = args.route.iter().map(|text| {
        let selector = text.parse::<Selector>();
        selector.map_err(|e| Failure::Usage(format!("--route {text:?}: {e}")))
    });
    let selectors = selectors.collect::<Result<_, _>>()?;
    Ok(Some(RouteTuner::new(selectors, requested)))
}

fn selection(args: &Args) -> Result<Selection, Failure> {
    let only = args.which.filter()?;
    let skip = args.skip.iter().map(|text| {
        if text.trim().is_empty() || text.trim() == args.which.text().trim() {
            return Err(Failure::Usage(format!(
                "--skip {text:?} leaves all connections alone: give a narrower filter"
            )));
        }
        text.parse::<Filter>()
            .map_err(|e| Failure::Usage(format!("--skip {text:?}: {e} (--help has the syntax)")))
    });
    Ok(Selection {
        only,
        skip: skip.collect::<Result<_, _>>()?,
    })
}

/// Opens the journal and undoes the changes that a killed process left in it.
fn actuators(args: &Args) -> Result<Actuators, Failure> {
    let path = &args.journal;
    if !taut_sys::probe::is_root() {
        return Err(Failure::Run(
            "--apply: run this as root; without --apply it only reports what it would do".into(),
        ));
    }
    let journal = Journal::open(path).map_err(|e| Failure::Run(e.to_string()))?;
    let is_left = journal.entries().next().is_some();
    let mut actuators = Actuators::new(journal, args.which.is_of_machine());
    if is_left {
        say("undoing the changes of a process that was killed");
        let summary = actuators.undo();
        say_undone(&summary);
        remove_log(path, &summary);
    }
    Ok(actuators)
}

/// Undoes the changes of a process that was killed.
pub(crate) fn undo(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        say("nothing to undo");
        return Ok(());
    }
    let journal = Journal::open(path).map_err(|e| Failure::Run(e.to_string()))?;
    let mut actuators = Actuators::new(journal, false);
    let summary = actuators.undo();
    actuators.close();
    say_undone(&summary);
    remove_log(path, &summary);
    match summary.failed {
        0 => Ok(()),
        failed => Err(Failure::Run(format!(
            "not undone: {}, which {} keeps",
            taut_sys::plural::counted(failed, "change"),
            path.display()
        ))),
    }
}

fn say_undone(summary: &UndoSummary) {
    let UndoSummary {
        restored,
        gone,
        foreign,
        failed,
    } = summary;
    say(&format!(
        "undone: {restored} restored, {gone} ended meanwhile, {foreign} changed by others and left as they are, {failed} failed"
    ));
}

/// Removes the log if all changes are undone, so that `taut why` does not report them.
fn remove_log(journal: &Path, summary: &UndoSummary) {
    if summary.failed > 0 {
        return;
    }
    if let Err(error) = Log::of(journal).remove() {
        say(&format!(
            "the log could not be removed, so `taut why` may report undone changes: {error}"
        ));
    }
}

/// The log for `taut why`. `None` after it could not be written, because nothing depends on it.
struct ChangeLog(Option<Log>);

// === impl ChangeLog ===

impl ChangeLog {
    /// Removes earlier advice, which will be given again or carried out, and opens the log.
    fn open(args: &Args) -> Self {
        if let Err(error) = Log::of_advice(&args.journal).remove() {
            tracing::debug!(%error, "earlier advice could not be removed");
        }
        Self(Some(match args.apply {
            true => Log::of(&args.journal),
            false => Log::of_advice(&args.journal),
        }))
    }

    fn note(&mut self, report: &ChangeReport) {
        let Some(log) = &mut self.0 else { return };
        if let Err(error) = log.note(report) {
            self.0 = None;
            // Advising does not require permission to write the log.
            if report.outcome == Outcome::Advised {
                tracing::debug!(%error, "advice could not be logged");
                return;
            }
            say(&format!(
                "the log cannot be written, so `taut why` will not know all changes: {error}"
            ));
        }
    }
}

/// Writes lines to standard output in a thread, so that a slow reader delays nothing.
struct Printer {
    lines: SyncSender<String>,
    written: Receiver<()>,
}

// === impl Printer ===

impl Printer {
    /// Starts the thread, which sets `ends` when the output can no longer be written.
    fn new(ends: Arc<AtomicBool>) -> io::Result<Self> {
        let (lines, waiting) = sync_channel::<String>(MAX_UNREAD);
        let (writes, written) = sync_channel(1);
        std::thread::Builder::new().spawn(move || {
            for line in waiting {
                let mut out = io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    ends.store(true, Ordering::Relaxed);
                    break;
                }
            }
            // `end` may have stopped waiting.
            let _ = writes.try_send(());
        })?;
        Ok(Self { lines, written })
    }

    /// Queues a line. Returns `false` if it was dropped because the queue is full.
    fn print(&self, line: &str) -> bool {
        let sent = self.lines.try_send(line.to_owned());
        !matches!(sent, Err(TrySendError::Full(_)))
    }

    /// Waits until all lines are written, or for [`FLUSH_TIME`].
    fn end(self) {
        drop(self.lines);
        let _ = self.written.recv_timeout(FLUSH_TIME);
    }
}
