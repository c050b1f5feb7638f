//! `taut doctor`: lists the features of this kernel and machine, the settings that limit Taut, and
//! the commands that change them.
//!
//! `taut_sys::probe` probes the features. The modules below assess the results and have no I/O.
//! They are in this crate because they depend on every command, and no command depends on them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use libbpf_rs::ProgramType;
use libbpf_rs::query::ProgInfoIter;
use taut_observe::versioned::Versioned;
use taut_relay::intercept;
use taut_snoop::device::{Device, Kind};
use taut_snoop::tap;
use taut_sys::probe;
use taut_sys::sock_diag::{Connection, SockDiag};
use taut_sys::steal::Steal;
use taut_tune::pressure::of_machine;

#[cfg(test)]
pub(crate) use self::feature::FEATURES;
use self::report::Report;
use self::setting::{Host, LongPath, PathSource};
pub(crate) use self::severity::Severity;
use crate::exit::exit_code;
use crate::failure::Failure;
use crate::terminal::width;

mod feature;
mod leftover;
mod report;
mod setting;
mod severity;
mod table;

/// Say what is wrong with this machine for Taut, and how to mend it
///
/// Changes nothing without --repair. Exit status: 0 if nothing blocks, 1 if something does or
/// cannot be repaired, 2 for a usage error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut doctor                    what is wrong, and the commands that mend it
  taut doctor --all              everything that was looked at
  taut doctor --only leftovers   only what killed processes have left
  taut doctor --repair           first remove what killed processes have left")]
pub(crate) struct Args {
    /// Print one JSON object instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Also show what is all right: every feature, with its use, and every setting
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// Check only these parts
    #[arg(
        long,
        value_enum,
        value_name = "PART,...",
        value_delimiter = ',',
        help_heading = "Checks"
    )]
    only: Vec<Part>,
    /// Judge windows by a path with this round-trip time [default: the longest of a connection here, or 100ms]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = round_trip,
        help_heading = "Checks"
    )]
    rtt: Option<Duration>,
    /// First remove what killed processes of Taut have left (root)
    #[arg(long, help_heading = "Repair")]
    repair: bool,
}

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Features,
    Settings,
    Leftovers,
}

// === impl Part ===

impl Part {
    /// Returns whether the part is examined, given the value of `--only`.
    fn is_in(self, only: &[Self]) -> bool {
        only.is_empty() || only.contains(&self)
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let is_repaired = !args.repair || repair();
    let report = examine(&args.only, args.rtt);
    let text = match args.json {
        true => Versioned::new(&report)
            .pretty()
            .map_err(|error| Failure::Run(error.to_string())),
        false => Ok(table::render(&report, args.all, width())),
    };
    if let Err(failure) = text.and_then(|text| crate::failure::print(&text)) {
        return exit_code(Err(failure));
    }
    match report.verdict {
        Severity::Slows | Severity::Fine if is_repaired => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn say(sentence: &str) {
    // The reader may be gone; the error is ignored.
    let _ = writeln!(io::stderr(), "taut doctor: {sentence}");
}

/// Removes what killed processes have left. Returns whether nothing of it stays.
fn repair() -> bool {
    let (removed, stays) = leftover::remove();
    let sentences = removed.iter().chain(&stays);
    sentences.for_each(|sentence| say(sentence));
    if removed.is_empty() && stays.is_empty() {
        say("killed processes have left nothing");
    }
    stays.is_empty()
}

/// Examines these parts, or all of them if `only` is empty.
fn examine(only: &[Part], round_trip: Option<Duration>) -> Report {
    let features = feature::FEATURES
        .iter()
        .filter(|_| Part::Features.is_in(only))
        .map(|f| feature::assess(f, (f.probe)()))
        .collect::<Vec<_>>();
    let settings = match Part::Settings.is_in(only) {
        true => setting::assess(&host(round_trip)),
        false => Vec::new(),
    };
    let leftovers = match Part::Leftovers.is_in(only) {
        true => leftover::find(),
        false => Vec::new(),
    };
    Report {
        only: only.to_vec(),
        ..Report::new(
            probe::kernel_release(),
            probe::is_root(),
            features,
            settings,
            leftovers,
        )
    }
}

/// Parses a round-trip time.
fn round_trip(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match time.is_zero() {
        true => Err("a round trip takes time".to_owned()),
        false => Ok(time),
    }
}

/// Returns the path by which windows are judged.
fn path(round_trip: Option<Duration>) -> LongPath {
    let of = |source| move |round_trip| LongPath { round_trip, source };
    let given = round_trip.map(of(PathSource::Given));
    let seen = || longest_path().map(of(PathSource::Seen));
    given.or_else(seen).unwrap_or(LongPath::ASSUMED)
}

/// Returns the longest of the shortest round trips of the connections of this network namespace that
/// have carried much, if it is that of a path beyond the site: shorter ones say nothing about the
/// clients to come.
fn longest_path() -> Option<Duration> {
    const MUCH: u64 = 1_000_000;
    const BEYOND_THE_SITE: Duration = Duration::from_millis(5);
    let mut longest = None;
    let mut connections = SockDiag::open().ok()?;
    let each = |connection: Connection| {
        let Some(info) = connection.info else {
            return;
        };
        let carried = info.bytes_acked.unwrap_or(0) + info.bytes_received.unwrap_or(0);
        if carried >= MUCH {
            longest = longest.max(info.min_rtt);
        }
    };
    connections.dump(each).ok()?;
    longest.filter(|round_trip| *round_trip >= BEYOND_THE_SITE)
}

fn host(round_trip: Option<Duration>) -> Host {
    // A sysctl that this kernel lacks or hides is omitted.
    let read = |name: &&str| Some(((*name).to_owned(), probe::setting::sysctl(name).ok()??));
    let mut host = Host {
        sysctls: setting::SYSCTLS
            .iter()
            .filter_map(read)
            .collect::<BTreeMap<_, _>>(),
        path: path(round_trip),
        memory: of_machine(),
        open_files: probe::setting::open_files_hard_limit(),
        page: probe::setting::page_size(),
        root: probe::is_root(),
        devices: devices(),
        fq: probe::qdisc::fq(),
        running: running(),
        sockmap_programs: sockmap_programs(),
        steal: None,
        intercepting: match intercept::is_running() {
            Ok(true) => intercept::presence()
                .inspect_err(|error| say(&format!("the policy route was not checked: {error}")))
                .ok(),
            _ => None,
        },
    };
    host.steal = stolen(host.bbr().is_some());
    host
}

/// Returns the stolen time. Since boot it may have been much and be little now, so where `matters`,
/// a second is measured.
fn stolen(matters: bool) -> Option<setting::Stolen> {
    let first = Steal::read()?;
    let since_boot = first.share()?;
    let lately = (matters && since_boot >= setting::STOLEN).then(|| {
        thread::sleep(Duration::from_secs(1));
        Steal::read()?.share_since(first)
    });
    Some(setting::Stolen {
        since_boot,
        lately: lately.flatten(),
    })
}

/// Returns the devices that are up and have hardware, or its virtual likeness, behind them.
fn devices() -> Vec<setting::Device> {
    let has_hardware = |name: &str| {
        let device = Path::new("/sys/class/net").join(name).join("device");
        device.exists()
    };
    let qdiscs = tap::qdiscs_below_roots().unwrap_or_default();
    let devices = tap::devices().unwrap_or_default().into_iter();
    devices
        .filter(|device| device.up && has_hardware(&device.name))
        .filter(|device| matches!(device.kind, Kind::Other(_)))
        .map(|device| {
            let below = qdiscs.iter().filter(|(index, _)| *index == device.index);
            let Device { name, qdisc, .. } = device;
            setting::Device {
                name,
                qdisc,
                below: below.map(|(_, name)| name.clone()).collect(),
            }
        })
        .collect()
}

fn running() -> Vec<(&'static str, u32)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let running = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // Not a string: a process may give itself any name.
        let name = fs::read(entry.path().join("comm")).ok()?;
        let name = name.strip_suffix(b"\n")?;
        let conflicting = setting::CONFLICTING.iter();
        let known = conflicting.copied().find(|c| c.as_bytes() == name)?;
        Some((known, pid))
    });
    running.collect()
}

/// Returns the programs at sockmaps. `None` if this process may not list programs.
fn sockmap_programs() -> Option<Vec<(String, u32)>> {
    let mut programs = Vec::new();
    let mut all = ProgInfoIter::default();
    loop {
        let next = all.next();
        // The iterator ends at the first error and does not tell it: ENOENT after the last program.
        let ended = io::Error::last_os_error();
        match next {
            Some(program) if matches!(program.ty, ProgramType::SkSkb | ProgramType::SkMsg) => {
                programs.push((program.name.to_string_lossy().into_owned(), program.id));
            }
            Some(_) => {}
            None if ended.kind() == io::ErrorKind::PermissionDenied => return None,
            None => return Some(programs),
        }
    }
}
