//! `taut mesh dns`: an authoritative DNS server that leads clients to the nearest relay.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use ipnet::IpNet;
use serde::Serialize;
use taut_dns::answer::{Answers, By, Client};
use taut_dns::config::Config;
use taut_dns::serve::{self, Bound};
use taut_dns::zone::Family;
use taut_observe::versioned::Versioned;
use taut_sys::privileges;

use crate::confine::{self, Confined, SandboxArgs};
use crate::failure::Failure;

/// Answer DNS queries with the relay that is nearest to the client
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut mesh dns                          run the server of [mesh.dns]
  taut mesh dns --check                  is the configuration right?
  taut mesh dns --explain 203.0.113.9    which relay does this client get?

SIGTERM and SIGINT end it, SIGHUP makes it read the configuration again.")]
pub(crate) struct Args {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = taut_config::PATH, help_heading = "Configuration")]
    config: PathBuf,

    /// Check the configuration and the file of round-trip times, and exit
    #[arg(long, help_heading = "Configuration")]
    check: bool,

    /// Print the relays in the order in which a client at this address or prefix would get them, and exit
    #[arg(
        long,
        value_name = "CLIENT",
        conflicts_with = "check",
        help_heading = "Output"
    )]
    explain: Option<String>,

    /// With --explain: print JSON
    #[arg(long, requires = "explain", help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// A server whose ports are bound, with reduced privileges.
pub(crate) struct Job {
    args: Args,
    config: Config,
    /// `None`: nothing is to be served.
    bound: Option<Bound>,
    confined: Option<Confined>,
}

/// Prepares the start while the process has one thread, because privileges are per thread. The ports
/// are bound first, since nothing needs a privilege afterwards.
pub(crate) fn prepare(args: Args) -> Result<Job, Failure> {
    let config = Config::load(&args.config).map_err(|e| Failure::Usage(e.to_string()))?;
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let serves = !args.check && args.explain.is_none();
    let bound = serves.then(|| Bound::new(&config)).transpose();
    let bound = bound.map_err(|e| run(&e))?;
    // A check by root reads what the server reads with the rights that the server has.
    if serves || (args.check && taut_sys::probe::is_root()) {
        privileges::drop_to(config.user.as_deref(), &[]).map_err(|e| run(&e))?;
    }
    let confined = serves.then(|| confine::enter(confine::dns(args.sandbox).as_ref()));
    let confined = confined.transpose()?;
    Ok(Job {
        args,
        config,
        bound,
        confined,
    })
}

pub(crate) fn run(job: Job) -> Result<(), Failure> {
    let Job {
        args,
        config,
        bound,
        confined,
    } = job;
    let run = |e: serve::ServeError| Failure::Run(e.to_string());
    if let Some(client) = &args.explain {
        return explain(&config, client, args.json);
    }
    let Some(bound) = bound else {
        let mut notes = serve::check(&config).map_err(run)?;
        // At SIGHUP the server reads it with the rights that it has left.
        if let Err(error) = Config::load(&args.config) {
            notes.push(format!("a reload will fail: {error}"));
        }
        notes.push("the configuration is valid".to_owned());
        return crate::failure::print(&(notes.join("\n") + "\n"));
    };
    if let Some(confined) = confined {
        confined.log();
    }
    if config.user.is_none() && taut_sys::probe::is_root() {
        tracing::warn!(
            "this server runs as root: it has given up every capability, but may still read and write root's \
             files; set mesh.dns.user to a user without rights, such as `nobody`"
        );
    }
    let reread = Box::new(move || Config::load(&args.config));
    serve::run(config, bound, reread).map_err(run)
}

/// The relays for a client, as JSON.
#[derive(Serialize)]
struct Explanation<'a> {
    /// The client's address.
    client: IpAddr,
    /// The length of the prefix for which the order is the same.
    scope: u8,
    /// The relays in the order in which the client would get them.
    relays: Vec<ExplainedRelay<'a>>,
}

/// A relay of an [`Explanation`].
#[derive(Serialize)]
struct ExplainedRelay<'a> {
    /// The relay's name.
    relay: &'a str,
    /// The round-trip time that decides, in milliseconds; `None` without one.
    rtt_ms: Option<f64>,
    /// The prefix to which that time was measured; `None` without a time.
    prefix: Option<String>,
}

/// Prints the order of preference of a client.
fn explain(config: &Config, client: &str, json: bool) -> Result<(), Failure> {
    let network = client.parse::<IpNet>().map(|net| net.addr());
    let address = network.or_else(|_| client.parse::<IpAddr>()).map_err(|_| {
        let client = client.escape_default();
        Failure::Usage(format!(
            "--explain: `{client}` is neither an address nor a prefix"
        ))
    })?;
    let answers = serve::preview(config).map_err(|e| Failure::Run(e.to_string()))?;
    let order = order(&answers, address);
    if json {
        let relays = order.iter().map(|(relay, why)| {
            let (rtt, prefix) = why
                .as_ref()
                .map(|(rtt, net)| (*rtt, net.to_string()))
                .unzip();
            ExplainedRelay {
                relay,
                rtt_ms: rtt,
                prefix,
            }
        });
        let explanation = Explanation {
            client: address,
            scope: answers.nearness.find(address).scope,
            relays: relays.collect(),
        };
        let text = Versioned::new(&explanation).line();
        return crate::failure::print(&text.map_err(|e| Failure::Run(e.to_string()))?);
    }
    let mut text = String::new();
    for (relay, why) in order {
        text += &match why {
            Some((rtt, prefix)) => format!("{relay}: {rtt:.1} ms to {prefix}\n"),
            None => format!(
                "{relay}: no round-trip time to this client; in the order of the configuration\n"
            ),
        };
    }
    crate::failure::print(&text)
}

type Measured = (f64, IpNet);

/// Returns each relay once, with the round-trip time in milliseconds and its prefix.
fn order(answers: &Answers, address: IpAddr) -> Vec<(String, Option<Measured>)> {
    let prefixes: Vec<_> = answers.nearness.find(address).prefixes().collect();
    let client = Client {
        subnet: None,
        resolver: address,
    };
    let mut order = Vec::<(String, Option<Measured>)>::new();
    for (id, by) in answers.order(client) {
        let Some(relay) = answers.relays.get(usize::from(id)) else {
            continue;
        };
        if order.iter().any(|(name, _)| *name == relay.name) {
            continue;
        }
        let measured = prefixes.iter().find_map(|near| {
            let (_, rtt) = near.relays.iter().find(|(relay, _)| *relay == id)?;
            Some((rtt.as_secs_f64() * 1000.0, near.prefix))
        });
        let family = Family::of(address);
        let name = match relay.address(family) {
            Some(_) => relay.name.clone(),
            None => continue,
        };
        order.push((name, measured.filter(|_| by != By::Fallback)));
    }
    order
}
