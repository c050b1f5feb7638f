//! `taut mesh plan`: which relays a session should pass, and why.

mod json;
mod running;
mod text;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args as ClapArgs;
use taut_relay::members::{self, Members};
use taut_relay::plan::{
    Change, Endpoint, Ends, LegSettings, MAX_RELAYS, MAX_TABLE, Network, Options, Planner, Relay,
    Table,
};
use taut_sys::plural::counted;

use crate::failure::Failure;

/// Choose the relays for a session, and show why
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  taut mesh plan --from 192.0.2.0/24 --to 198.51.100.7 --rtt rtt.txt
  taut mesh plan --from fra1 --to 198.51.100.7 --rtt rtt.txt --max-relays 2
  taut mesh plan --for 'dport 443' --rtt rtt.txt

A line of the file with the round trips is a path: FROM TO RTT_MS [LOSS_PERCENT] [RATE_MBIT]. FROM and TO \
are names of relays or prefixes; a line holds for both directions. `taut mesh rtt --table` prints such a \
file. docs/mesh-plan.md explains the prediction.")]
pub(super) struct Args {
    /// Where sessions come from: the name of a relay that they are at, a prefix or an address
    #[arg(
        long,
        value_name = "PLACE",
        required_unless_present = "running",
        help_heading = "The session"
    )]
    from: Option<Endpoint>,

    /// Where they go: an address, a prefix, or the name of a relay for its machine
    #[arg(
        long,
        value_name = "PLACE",
        required_unless_present = "running",
        help_heading = "The session"
    )]
    to: Option<Endpoint>,

    /// Plan for the connections of this machine that FILTER matches instead, with their measured
    /// round trips and loss; `--from` is then what the file calls this machine
    #[arg(
        long = "for",
        id = "running",
        value_name = "FILTER",
        conflicts_with = "to",
        help_heading = "The session"
    )]
    running: Option<String>,

    /// The file with the round trips
    #[arg(long, value_name = "FILE", help_heading = "The mesh")]
    rtt: PathBuf,

    /// The list of members, for clouds and prices; without it, every relay in the file with the
    /// round trips may be used
    #[arg(long, value_name = "FILE", help_heading = "The mesh")]
    members: Option<PathBuf>,

    /// Use only relays of these clouds
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "members",
        help_heading = "Routes"
    )]
    clouds: Vec<String>,

    /// The largest number of relays of a route
    #[arg(long, value_name = "COUNT", default_value_t = MAX_RELAYS, value_parser = relays, help_heading = "Routes")]
    max_relays: usize,

    /// The highest price of a route per GB: the sum of its relays' prices
    #[arg(long, value_name = "PRICE", requires = "members", value_parser = price, help_heading = "Routes")]
    max_price: Option<f64>,

    /// Size of the file whose transfer time is predicted
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1MB",
        help_heading = "The session"
    )]
    size: ByteSize,

    /// The rate at which legs between relays begin, as `rate` of [relay.mesh], in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = "The relays")]
    rate: u64,

    /// The window of legs between relays, as `window` of [relay.mesh]
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4MiB",
        help_heading = "The relays"
    )]
    window: ByteSize,

    /// Relays have no turbo start between them
    #[arg(long, help_heading = "The relays")]
    no_turbo: bool,

    /// Relays hold no connections to each other ready
    #[arg(long, help_heading = "The relays")]
    no_pool: bool,

    /// Relays do not dial upstream at the client's SYN
    #[arg(long, help_heading = "The relays")]
    no_early_syn: bool,

    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn relays(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count <= MAX_RELAYS => Ok(count),
        _ => Err(format!("must be a number from 0 to {MAX_RELAYS}")),
    }
}

fn price(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(price) if (0.0..f64::INFINITY).contains(&price) => Ok(price),
        _ => Err("must be a number of at least 0".into()),
    }
}

/// The contents of the files, and the options of the plan.
struct Known {
    table: Table,
    network: Network,
    options: Options,
    rtt: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let known = Known::read(args)?;
    let text = match (&args.running, &args.from, &args.to) {
        (Some(filter), from, _) => running::report(&known, filter, from.as_ref(), args.json)?,
        (None, Some(from), Some(to)) => report(&known, from, to, args.json)?,
        // clap requires both.
        _ => return Err(Failure::Usage("--from and --to are needed".into())),
    };
    crate::failure::print(&text)
}

/// Plans for one pair of ends.
fn report(known: &Known, from: &Endpoint, to: &Endpoint, json: bool) -> Result<String, Failure> {
    let ends = known.ends(from, to)?;
    let planner = known.planner();
    let ranking = planner.choose(&ends, None);
    let mut changes = planner.changes(&ends, &ranking);
    // Where the session comes from or goes to cannot be replaced by another relay.
    changes.retain(|change| match change {
        Change::Lost { relay, .. } => {
            let name = &known.network.relay(*relay).name;
            ![from, to].contains(&&Endpoint::Member(name.clone()))
        }
        _ => true,
    });
    if json {
        return json::plan(&planner, from, to, &ranking, &changes);
    }
    Ok(text::plan(&planner, from, to, &ranking, &changes))
}

// === impl Known ===

impl Known {
    fn read(args: &Args) -> Result<Self, Failure> {
        let table = bounded(&args.rtt, MAX_TABLE)?;
        let table = Table::parse(&table).map_err(|e| faulty(&args.rtt, &e))?;
        let relays: Vec<Relay> = match &args.members {
            Some(file) => {
                let members = Members::parse(&bounded(file, members::MAX_FILE)?);
                let members = members.map_err(|e| faulty(file, &e))?;
                warn_of_strangers(&table, &members, file);
                let relays = members.iter().map(|member| Relay::from_member(member));
                relays.collect()
            }
            None => table.relays().collect(),
        };
        check_clouds(&args.clouds, &relays)?;
        Ok(Self {
            network: table.network(relays),
            table,
            options: Options {
                clouds: args.clouds.clone(),
                max_relays: args.max_relays,
                max_price: args.max_price,
                early_syn: !args.no_early_syn,
                pool: !args.no_pool,
                legs: LegSettings {
                    turbo: !args.no_turbo,
                    rate: args.rate * 1_000_000,
                    window: Some(args.window.as_u64()),
                },
                size: args.size.as_u64(),
                ..Options::default()
            },
            rtt: args.rtt.clone(),
        })
    }

    fn planner(&self) -> Planner<'_> {
        Planner::new(&self.network, self.options.clone())
    }

    /// Returns what the file knows of these ends.
    fn ends(&self, from: &Endpoint, to: &Endpoint) -> Result<Ends, Failure> {
        let locate = |place: &Endpoint| {
            self.table.locate(place).ok_or_else(|| {
                Failure::Run(format!(
                    "{} has no path from or to {place}; add a line such as `RELAY {place} 12.5` with the round trip \
                     in milliseconds from each relay that may be near",
                    self.rtt.display()
                ))
            })
        };
        let (from, to) = (locate(from)?, locate(to)?);
        Ok(self.table.ends(&self.network, &from, &to))
    }
}

/// Refuses clouds that no relay is in: without a relay, only the direct path would be left.
fn check_clouds(wanted: &[String], relays: &[Relay]) -> Result<(), Failure> {
    let known: BTreeSet<_> = relays.iter().filter_map(|r| r.cloud.as_deref()).collect();
    let Some(unknown) = wanted.iter().find(|name| !known.contains(name.as_str())) else {
        return Ok(());
    };
    let known = match known.is_empty() {
        true => "none has a `cloud`".to_owned(),
        false => format!("theirs are {}", Vec::from_iter(known).join(", ")),
    };
    Err(Failure::Usage(format!(
        "--clouds: no member is in the cloud `{unknown}`; {known}"
    )))
}

/// Warns of relays in the file with the round trips that are not in the list of members.
fn warn_of_strangers(table: &Table, members: &Members, file: &Path) {
    let strangers = table.members();
    let strangers = strangers.filter(|name| members.by_name(name.as_str()).is_none());
    let count = strangers.clone().count();
    if let Some(first) = strangers.clone().next() {
        // The reader may be gone; the error is ignored.
        let _ = writeln!(
            io::stderr(),
            "taut: not used: {} of the file with the round trips, because {} does not list: {first}{}",
            counted(count, "relay"),
            file.display(),
            if count > 1 { ", ..." } else { "" }
        );
    }
}

/// Reads a file of at most `most` bytes.
fn bounded(path: &Path, most: u64) -> Result<String, Failure> {
    let failure =
        |e: &dyn std::fmt::Display| Failure::Run(format!("cannot read {}: {e}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(|e| failure(&e))?;
    file.take(most + 1)
        .read_to_string(&mut text)
        .map_err(|e| failure(&e))?;
    match text.len() as u64 > most {
        true => Err(failure(&format!("it has more than {most} bytes"))),
        false => Ok(text),
    }
}

fn faulty(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}
