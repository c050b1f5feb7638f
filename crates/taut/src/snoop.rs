//! `taut snoop`.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args as ClapArgs, Subcommand};
use glob::Pattern;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use taut_config::ConfigFile;
use taut_observe::versioned::Versioned;
use taut_snoop::config::{GuestMac, Settings};
use taut_snoop::cost::{self, Cost};
use taut_snoop::protocol::{Answer, FlowStatus, Question, TapStatus};
use taut_snoop::qmp::Source;
use taut_snoop::records::RECORDS;
use taut_snoop::serve::{self, AskError, CONTROL};
use taut_snoop::tap_supervisor::Options;
use taut_snoop::wire::Net;
use taut_sys::job_dir::{JobDir, JobDirError};
use taut_sys::listen::Listen;
use taut_sys::plural::counted;
use taut_sys::probe::is_root;

use crate::confine::{self, Confined, SandboxArgs};
use crate::failure::Failure;
use crate::table::{self, figure, text};

/// Send early ACKs for guests that wait for a CPU
#[derive(ClapArgs)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  taut snoop --tap tap0 --tap 'vnet*'    serve these taps, also later ones
  taut snoop status                      states and counters
  taut snoop --off tap0                  before a live migration of its guest

Acknowledges segments once they are in a guest's ring, so that senders do not wait until the guest runs. \
Nothing is changed in the guest. SIGTERM and SIGINT stop it; connections continue."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Tap of a guest, or a pattern (* and ?); may be repeated
    #[arg(short, long, value_name = "NAME", help_heading = "Taps")]
    tap: Vec<Pattern>,

    /// Configuration file; flags override it [default: /etc/taut/taut.toml, if it exists]
    #[arg(short, long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,

    /// Stop early ACKs at a served tap, and return once its guest has acknowledged everything that was acknowledged early
    #[arg(long, value_name = "TAP", conflicts_with_all = ["tap", "on"], help_heading = "A running snoop")]
    off: Option<String>,

    /// With --off: how long to wait for the guest; after that the command fails, and early ACKs stay off
    #[arg(long, value_name = "SECONDS", requires = "off", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..), help_heading = "A running snoop")]
    wait: u32,

    /// Resume early ACKs at a served tap
    #[arg(
        long,
        value_name = "TAP",
        conflicts_with = "tap",
        help_heading = "A running snoop"
    )]
    on: Option<String>,

    /// Minimum length of the tap's ring; by default the ring keeps its length
    #[arg(long, value_name = "FRAMES", help_heading = "Taps")]
    ring: Option<u32>,

    /// Largest window that is advertised to a sender
    #[arg(long, value_name = "BYTES", help_heading = "Early ACKs")]
    buffer: Option<ByteSize>,

    /// Acknowledge beyond the window that the guest advertises, as the paper does; the guest then has to buffer all of it, or data is lost
    #[arg(long, help_heading = "Early ACKs")]
    grow: bool,

    /// With --grow: bytes that every connection of the guest buffers, whether the application reads or not
    #[arg(long, value_name = "BYTES", help_heading = "Early ACKs")]
    guest_rcvbuf: Option<ByteSize>,

    /// Acknowledge from the first segment if no other handshake can take the connection's place in the accept queue
    #[arg(long, help_heading = "Early ACKs")]
    start_early: bool,

    /// Also serve ECN-capable flows (ECT); the guests must not use DCTCP
    #[arg(long, help_heading = "Early ACKs")]
    ecn: bool,

    /// Maximum number of flows tracked at each tap [default: 4096]
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    flows: Option<u32>,

    /// Maximum bytes of a connection that are acknowledged early and not yet by the guest [default: 1 MiB]
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    exposure: Option<ByteSize>,

    /// Stop early ACKs of a connection if the guest has acknowledged nothing for this long [default: 500ms]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    exposure_time: Option<humantime::Duration>,

    /// Memory for copies of early-acknowledged segments, for all guests together [default: 64 MiB]
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    copies: Option<ByteSize>,

    /// The guest's own Ethernet address, if frames from several addresses come from its tap; may be repeated
    #[arg(long, value_name = "TAP=ADDRESS", help_heading = "Guests")]
    guest_mac: Vec<GuestMac>,

    /// Acknowledge early only for guest addresses in this network (10.1.0.0/16); may be repeated
    #[arg(long, value_name = "NETWORK", help_heading = "Guests")]
    guest_net: Vec<Net>,

    /// An initial TTL of the guests, in addition to 64, 128 and 255
    #[arg(long, value_name = "TTL", value_parser = clap::value_parser!(u8).range(1..), help_heading = "Guests")]
    guest_ttl: Option<u8>,

    /// QMP socket of the machine at a tap, for taut alone: early ACKs stop automatically before a migration and while
    /// the guest is stopped. TAP may be a pattern; in SOCKET, {tap} stands for the tap's name and {1} for the match of
    /// the first *. May be repeated
    #[arg(long, value_name = "TAP=SOCKET", help_heading = "Guests")]
    qmp: Vec<Source>,

    /// Serve metrics (OpenMetrics) at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS", help_heading = "Metrics")]
    metrics: Option<Listen>,

    /// Control socket, which `status`, `--off` and `--on` use [default: /run/taut/snoop/snoop.sock]
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        help_heading = "A running snoop"
    )]
    control: Option<PathBuf>,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Show state and counters of each tap and flow
    #[command(after_help = "Example:
  taut snoop status --json | jq .")]
    Status {
        /// Print JSON
        #[arg(long, help_heading = "Output")]
        json: bool,
    },
    /// Measure the CPU time per packet on this machine, in a temporary network namespace
    #[command(after_help = "Example:
  taut snoop cost --segments 50000")]
    Cost {
        /// Print JSON
        #[arg(long, help_heading = "Output")]
        json: bool,
        /// Number of segments per scenario [default: 200000]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1000..), help_heading = "Measurement")]
        segments: Option<u32>,
    },
}

/// The JSON of `status`.
#[derive(Serialize)]
struct Taps {
    /// The taps.
    taps: Vec<TapStatus>,
}

/// The JSON of `cost`.
#[derive(Serialize)]
struct Costs {
    /// What was measured of each scenario.
    scenarios: Vec<Cost>,
}

/// A command, ready to run.
pub(crate) struct Job {
    args: Args,
    /// The settings of the server, with reduced privileges. `None`: another command.
    serves: Option<(Settings, Confined)>,
}

/// Prepares a start of the server while the process has one thread, because privileges are per
/// thread.
pub(crate) fn prepare(args: Args) -> Result<Job, Failure> {
    if args.command.is_some() || args.off.is_some() || args.on.is_some() {
        return Ok(Job { args, serves: None });
    }
    let settings = settings(&args)?;
    let records = Path::new(RECORDS);
    // The sandbox allows a directory only if it exists, and without records no tap can be served.
    JobDir::create(records).map_err(|e| Failure::Run(without_records(&e)))?;
    let control = control_of(&settings);
    let confinement = confine::snoop(args.sandbox, control, records, !settings.qmp.is_empty());
    let confined = confinement.enter()?;
    let serves = Some((settings, confined));
    Ok(Job { args, serves })
}

/// Returns the sentence about records that cannot be kept.
fn without_records(error: &JobDirError) -> String {
    match error {
        JobDirError::Call { source, .. }
            if source.kind() == ErrorKind::PermissionDenied && !is_root() =>
        {
            format!(
                "run taut snoop as root: it attaches BPF programs to taps, and records their settings in {RECORDS}"
            )
        }
        error => error.to_string(),
    }
}

pub(crate) fn run(job: Job) -> Result<(), Failure> {
    let Job { args, serves } = job;
    if let Some((settings, confined)) = serves {
        confined.log();
        return serve(&settings);
    }
    if let Some(Command::Cost { json, segments }) = args.command {
        return cost(json, segments);
    }
    let question = match (&args.command, &args.off, &args.on) {
        (Some(_), ..) => Question::Status,
        (None, Some(tap), _) => Question::Off { tap: tap.clone() },
        (None, None, Some(tap)) => Question::On { tap: tap.clone() },
        (None, None, None) => return Ok(()),
    };
    let control = args.control.as_deref().unwrap_or(Path::new(CONTROL));
    let patience = match question {
        Question::Off { .. } => Duration::from_secs(args.wait.into()),
        Question::On { .. } | Question::Status => serve::ANSWER,
    };
    let answer = serve::ask(control, &question, patience);
    let answer = answer.map_err(|e| match (e, &question) {
        (AskError::Late(_), Question::Off { tap }) => Failure::Run(format!(
            "{tap}: after {patience:?} the guest has not acknowledged everything that was acknowledged early, or taut snoop \
             does not respond (see `taut snoop status`); early ACKs stay off until `taut snoop --on {tap}`"
        )),
        (e, _) => Failure::Run(e.to_string()),
    })?;
    let taps = match (answer, question) {
        (Answer::Taps(taps), _) => taps,
        (Answer::Drained { refused: 1.. }, Question::Off { tap }) => {
            return crate::failure::print(&format!(
                "{tap}: early ACKs are off. The guest refuses data of some connections that was acknowledged early, and that data is \
                 lost if the guest moves: `taut snoop status` counts them (refused)\n"
            ));
        }
        _ => return Ok(()),
    };
    let text = match args.command {
        Some(Command::Status { json: true }) => {
            let taps = Versioned::new(Taps { taps });
            taps.pretty().map_err(|e| Failure::Run(e.to_string()))?
        }
        _ => taps_in_words(&taps) + "\n",
    };
    crate::failure::print(&text)
}

fn serve(settings: &Settings) -> Result<(), Failure> {
    serve::run(
        Options::of(settings),
        control_of(settings),
        settings.metrics,
    )
    .map_err(|e| Failure::Run(e.to_string()))
}

fn control_of(settings: &Settings) -> &Path {
    settings.control.as_deref().unwrap_or(Path::new(CONTROL))
}

/// Returns the settings in the configuration file and in the arguments.
fn settings(args: &Args) -> Result<Settings, Failure> {
    let line = Settings {
        taps: args.tap.clone(),
        ring: args.ring,
        buffer: args.buffer,
        grow: args.grow,
        guest_rcvbuf: args.guest_rcvbuf,
        start_early: args.start_early,
        ecn: args.ecn,
        flows: args.flows,
        exposure: args.exposure,
        exposure_time: args.exposure_time.map(Into::into),
        copies: args.copies,
        guest_macs: args.guest_mac.clone(),
        guest_nets: args.guest_net.clone(),
        guest_ttl: args.guest_ttl,
        qmp: args.qmp.clone(),
        metrics: args.metrics,
        control: args.control.clone(),
    };
    let settings = line.over(configured(args)?);
    settings
        .check()
        .map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(settings)
}

/// Reads the configuration file. The default file may be missing.
fn configured(args: &Args) -> Result<Settings, Failure> {
    let file = match &args.config {
        Some(path) => ConfigFile::load(path).map(Some),
        None => ConfigFile::load_default(),
    };
    file.and_then(|file| file.map_or(Ok(Settings::default()), |file| Settings::of_file(&file)))
        .map_err(|e| Failure::Usage(e.to_string()))
}

fn cost(json: bool, segments: Option<u32>) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Run(format!("cost: {e}"));
    let segments = segments.map(|segments| segments as usize);
    let ended = Arc::new(AtomicBool::new(false));
    // If a signal killed the process, its namespaces and programs would remain.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        flag::register(signal, Arc::clone(&ended)).map_err(|e| failed(&e))?;
    }
    let costs = cost::measure(
        segments,
        |scenario| {
            // The reader may be gone; the error is ignored.
            let _ = writeln!(std::io::stderr(), "measuring {scenario}");
        },
        || ended.load(Ordering::Relaxed),
    );
    let costs = costs.map_err(|e| failed(&e))?;
    let text = match json {
        true => Versioned::new(Costs { scenarios: costs })
            .pretty()
            .map_err(|e| failed(&e))?,
        false => costs_table(&costs) + "\n",
    };
    crate::failure::print(&text)
}

fn costs_table(costs: &[Cost]) -> String {
    let columns = [
        text("ns A PACKET"),
        figure("DATA"),
        text("CHECKSUM"),
        figure("ACK"),
        figure("DELIVERY"),
        figure("PASS IN"),
        figure("SUPPRESS"),
        figure("PASS OUT"),
        figure("LOOKUP"),
        figure("ADDED"),
    ];
    let row = |cost: &Cost| {
        let whose = if cost.partial_checksum {
            "left"
        } else {
            "there"
        };
        let mut row = vec![
            cost.scenario.clone(),
            cost.frame.to_string(),
            whose.to_owned(),
        ];
        let figures = [
            Some(cost.ack),
            Some(cost.delivery),
            Some(cost.pass_to_guest),
            cost.suppress,
            Some(cost.pass_from_guest),
            Some(cost.lookup),
            Some(cost.added),
        ];
        row.extend(figures.map(|ns| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"))));
        row
    };
    let table = table::table(&columns, costs.iter().map(row));
    format!(
        "{table}\
         ack: program time for a segment that is acknowledged early, without its delivery into the ring (a clone)\n\
         pass in, pass out: a packet without data towards the guest, and from it\n\
         suppress: an ACK of the guest that is dropped\n\
         lookup: the search for the flow, included in each of the above\n\
         added: extra time that sending a segment takes, including the ACK's way back"
    )
}

fn taps_in_words(taps: &[TapStatus]) -> String {
    if taps.is_empty() {
        return "no tap is served".into();
    }
    let mut text = String::new();
    for tap in taps {
        let counts = |counts: &[(String, u64)]| {
            let seen = counts.iter().filter(|(_, count)| *count > 0);
            let words: Vec<_> = seen.map(|(way, count)| format!("{way} {count}")).collect();
            match words.is_empty() {
                true => "nothing yet".to_owned(),
                false => words.join(", "),
            }
        };
        let why = tap
            .why
            .as_ref()
            .map_or(String::new(), |why| format!(" ({why})"));
        text.push_str(&format!(
            "{}: {}{why}, ring of {}\n  early ACKs: {} not yet acknowledged by the guest, at most {} in one flow; {} \
             repaired with {}, {} refused, {} lost\n  to guest: {}\n  from guest: {}\n",
            tap.tap,
            tap.state,
            tap.ring,
            counted(tap.exposure, "byte"),
            tap.exposure_most,
            counted(tap.repaired, "flow"),
            counted(tap.retransmitted, "segment"),
            tap.refused,
            tap.lost_after_early_ack,
            counts(&tap.to_guest),
            counts(&tap.from_guest),
        ));
        if tap.flows.is_empty() {
            continue;
        }
        text.push_str(&flows(&tap.flows));
    }
    text.trim_end().to_owned()
}

fn flows(flows: &[FlowStatus]) -> String {
    let columns = [
        text("SENDER"),
        text("GUEST"),
        text("MODE"),
        figure("EXPOSURE"),
        figure("EARLY SEGMENTS"),
        figure("EARLY BYTES"),
        figure("SUPPRESSED"),
        figure("LIFTED"),
    ];
    let row = |flow: &FlowStatus| {
        let mode = match &flow.bypass {
            Some(why) => format!("{} ({why})", flow.mode),
            None => flow.mode.clone(),
        };
        vec![
            flow.peer.to_string(),
            flow.guest.to_string(),
            mode,
            flow.exposure.to_string(),
            flow.acked_segments.to_string(),
            flow.acked_bytes.to_string(),
            flow.suppressed.to_string(),
            flow.lifted.to_string(),
        ]
    };
    table::table(&columns, flows.iter().map(row))
}
