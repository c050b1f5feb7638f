//! `taut snoop`.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use glob::Pattern;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use taut_snoop::config::{CONFIG, GuestMac, Settings};
use taut_snoop::cost::{self, Cost};
use taut_snoop::protocol::{Answer, Question, TapStatus};
use taut_snoop::qmp::Source;
use taut_snoop::serve::{self, AskError, CONTROL};
use taut_snoop::tap_supervisor::Options;
use taut_snoop::wire::Net;

use crate::Failure;

/// Acknowledge for guests that wait for their CPU
#[derive(ClapArgs)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Acknowledges what has been put into a guest's ring, so that senders need not wait until the guest runs. \
Nothing is changed in the guest.

  taut snoop --tap tap0 --tap 'vnet*'    serve these, and those that come later
  taut snoop status                      states and counters
  taut snoop --off tap0                  before a live migration: returns when nothing is owed

SIGTERM and SIGINT end it; connections go on."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Tap of a guest, or a pattern (* and ?); may be repeated
    #[arg(short, long, value_name = "NAME")]
    tap: Vec<Pattern>,

    /// Configuration; what is said here goes over it [default: /etc/taut/taut.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Acknowledge nothing more at a tap that is served, and return when its guest has taken all that
    /// was promised
    #[arg(long, value_name = "TAP", conflicts_with_all = ["tap", "on"])]
    off: Option<String>,

    /// With --off: how long its guest has for that; after it, acknowledging stays off and this fails
    #[arg(long, value_name = "SECONDS", requires = "off", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    wait: u32,

    /// Acknowledge at it again
    #[arg(long, value_name = "TAP", conflicts_with = "tap")]
    on: Option<String>,

    /// Places of the tap's ring, at least; without it the ring stays as it is
    #[arg(long, value_name = "FRAMES")]
    ring: Option<u32>,

    /// No window that a sender is told is wider than this
    #[arg(long, value_name = "BYTES")]
    buffer: Option<ByteSize>,

    /// Promise beyond the window that the guest offers, as the paper does: see the guide before
    #[arg(long)]
    grow: bool,

    /// With --grow: what every connection of the guest is sure to take, read or not
    #[arg(long, value_name = "BYTES")]
    guest_rcvbuf: Option<ByteSize>,

    /// Acknowledge from the first segment where no other handshake can take the place in the accept queue
    #[arg(long)]
    start_early: bool,

    /// Also flows whose packets may be marked (ECT), of which the guests must not use DCTCP
    #[arg(long)]
    ecn: bool,

    /// Flows that are followed at each tap [default: 4096]
    #[arg(long, value_name = "COUNT")]
    flows: Option<u32>,

    /// Bytes of a connection that may be acknowledged early and not yet by the guest [default: 1 MiB]
    #[arg(long, value_name = "BYTES")]
    exposure: Option<ByteSize>,

    /// How long the guest may acknowledge none of them before no more are acknowledged early [default: 500ms]
    #[arg(long, value_name = "TIME")]
    exposure_time: Option<humantime::Duration>,

    /// Bytes that are retained for all guests, to be retransmitted to one that lacks them [default: 64 MiB]
    #[arg(long, value_name = "BYTES")]
    copies: Option<ByteSize>,

    /// The guest's own Ethernet address at a tap, where frames of several come from it; may be repeated
    #[arg(long, value_name = "TAP=ADDRESS")]
    guest_mac: Vec<GuestMac>,

    /// Acknowledge only for guests' addresses in this network (10.1.0.0/16); may be repeated
    #[arg(long, value_name = "NETWORK")]
    guest_net: Vec<Net>,

    /// A TTL that guests send with, beside 64, 128 and 255
    #[arg(long, value_name = "TTL", value_parser = clap::value_parser!(u8).range(1..))]
    guest_ttl: Option<u8>,

    /// QMP socket of the machine at a tap, for taut alone: early ACKs stop by themselves before a migration and while
    /// the guest is stopped. TAP may be a pattern, {tap} in SOCKET the tap's name, {1} what the first * stands for; may
    /// be repeated
    #[arg(long, value_name = "TAP=SOCKET")]
    qmp: Vec<Source>,

    /// Serve metrics (OpenMetrics) at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

    /// Where `status`, `--off` and `--on` ask [default: /run/taut/snoop.sock]
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// States and counters, by tap and flow
    Status {
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Measure what a packet costs on this machine, in a network namespace of its own
    Cost {
        /// For programs
        #[arg(long)]
        json: bool,
        /// Segments of each scenario [default: 200,000]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1000..))]
        segments: Option<u32>,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if let Some(Command::Cost { json, segments }) = args.command {
        return cost(json, segments);
    }
    let question = match (&args.command, &args.off, &args.on) {
        (Some(_), ..) => Question::Status,
        (None, Some(tap), _) => Question::Off { tap: tap.clone() },
        (None, None, Some(tap)) => Question::On { tap: tap.clone() },
        (None, None, None) => return serve(&args),
    };
    let control = args.control.as_deref().unwrap_or(Path::new(CONTROL));
    let patience = match question {
        Question::Off { .. } => Duration::from_secs(args.wait.into()),
        Question::On { .. } | Question::Status => serve::ANSWER,
    };
    let answer = serve::ask(control, &question, patience);
    let answer = answer.map_err(|e| match (e, &question) {
        (AskError::Late(_), Question::Off { tap }) => Failure::Run(format!(
            "within {patience:?} the process that serves {tap} has not answered, or its guest has not taken all that \
             was promised (see `taut snoop status`); {tap} is or will be off until `taut snoop --on {tap}`"
        )),
        (e, _) => Failure::Run(e.to_string()),
    })?;
    let Answer::Taps(taps) = answer else {
        return Ok(());
    };
    let text = match args.command {
        Some(Command::Status { json: true }) => {
            serde_json::to_string_pretty(&taps).map_err(|e| Failure::Run(e.to_string()))?
        }
        _ => table(&taps),
    };
    // Nobody may be reading any more.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn serve(args: &Args) -> Result<(), Failure> {
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
    let control = settings.control.as_deref().unwrap_or(Path::new(CONTROL));
    serve::run(Options::of(&settings), control, settings.metrics)
        .map_err(|e| Failure::Run(e.to_string()))
}

/// What the file says. The usual one need not be there.
fn configured(args: &Args) -> Result<Settings, Failure> {
    let path = args.config.as_deref().unwrap_or(Path::new(CONFIG));
    match std::fs::read_to_string(path) {
        Ok(text) => {
            Settings::parse(&text).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
        }
        Err(e) if args.config.is_none() && e.kind() == ErrorKind::NotFound => {
            Ok(Settings::default())
        }
        Err(e) => Err(Failure::Usage(format!(
            "cannot read {}: {e}",
            path.display()
        ))),
    }
}

fn cost(json: bool, segments: Option<u32>) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Run(format!("cost: {e}"));
    let segments = segments.map(|segments| segments as usize);
    let ended = Arc::new(AtomicBool::new(false));
    // Who is killed by a signal leaves its namespaces and programs behind.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        flag::register(signal, Arc::clone(&ended)).map_err(|e| failed(&e))?;
    }
    let costs = cost::measure(
        segments,
        |scenario| eprintln!("measuring {scenario}"),
        || ended.load(Ordering::Relaxed),
    );
    let costs = costs.map_err(|e| failed(&e))?;
    let text = match json {
        true => serde_json::to_string_pretty(&costs).map_err(|e| failed(&e))?,
        false => costs_table(&costs),
    };
    // Nobody may be reading any more.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn costs_table(costs: &[Cost]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "ns a packet",
        "data",
        "checksum",
        "ack",
        "delivery",
        "pass in",
        "suppress",
        "pass out",
        "lookup",
        "added",
    ]);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for cost in costs {
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
        table.add_row(row);
    }
    format!(
        "{table}\n\
         ack: a segment towards a guest that is acknowledged for it, less delivery, which puts it into the ring by \
         way of a clone\npass in, pass out: a packet without data towards the guest, and from it\nsuppress: an \
         acknowledgement of the guest's that is dropped\nlookup: finding the flow, a part of each\nadded: what \
         the sender of a segment pays more than without the programs, the acknowledgement's way back included"
    )
}

fn table(taps: &[TapStatus]) -> String {
    if taps.is_empty() {
        return "no tap is served at present".into();
    }
    let mut text = String::new();
    for tap in taps {
        let counts = |counts: &[(String, u64)]| {
            let seen = counts.iter().filter(|(_, count)| *count > 0);
            let words: Vec<_> = seen.map(|(way, count)| format!("{way} {count}")).collect();
            words.join(", ")
        };
        let why = tap
            .why
            .as_ref()
            .map_or(String::new(), |why| format!(" ({why})"));
        text.push_str(&format!(
            "{}: {}{why}, ring of {}\n  early ACKs: {} bytes not yet acknowledged by the guest, at most {} of one flow; {} flows \
             repaired with {} segments, {} lost\n  to guest: {}\n  from guest: {}\n",
            tap.tap,
            tap.state,
            tap.ring,
            tap.exposure,
            tap.exposure_most,
            tap.repaired,
            tap.retransmitted,
            tap.lost_after_early_ack,
            counts(&tap.to_guest),
            counts(&tap.from_guest),
        ));
        if tap.flows.is_empty() {
            continue;
        }
        let mut flows = Table::new();
        flows.load_style(UTF8_HORIZONTAL_ONLY);
        flows.set_header([
            "sender",
            "guest",
            "mode",
            "exposure",
            "acked",
            "bytes",
            "suppressed",
            "lifted",
        ]);
        for column in flows.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for flow in &tap.flows {
            let mode = match &flow.bypass {
                Some(why) => format!("{} ({why})", flow.mode),
                None => flow.mode.clone(),
            };
            flows.add_row([
                flow.peer.to_string(),
                flow.guest.to_string(),
                mode,
                flow.exposure.to_string(),
                flow.acked_segments.to_string(),
                flow.acked_bytes.to_string(),
                flow.suppressed.to_string(),
                flow.lifted.to_string(),
            ]);
        }
        text.push_str(&format!("{flows}\n"));
    }
    text.trim_end().to_owned()
}
