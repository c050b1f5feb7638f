//! `taut relay`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use taut_relay::addr::{Destination, Listen};
use taut_relay::config::{Config, ConfigError, Forward};
use taut_relay::serve;

use crate::Failure;

/// Read when neither `--config` nor `--listen` is given.
const DEFAULT_CONFIG: &str = "/etc/taut/taut.toml";

/// Run a relay node: split long TCP connections into short ones
#[derive(ClapArgs)]
#[command(after_help = "\
Without options, reads the [relay] section of /etc/taut/taut.toml. A relay on its own:

  taut relay --listen :8080 --to origin.example:80

SIGTERM and SIGINT drain: no new connections, and the open ones have relay.drain_timeout to end; \
a second signal resets them. SIGHUP reads the configuration again; sessions go on.")]
pub(crate) struct Args {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address to listen on: ADDRESS:PORT, [ADDRESS]:PORT, or :PORT for all; may be repeated
    #[arg(short, long, value_name = "ADDR", requires = "to")]
    listen: Vec<Listen>,

    /// Destination or next relay of what comes in on --listen
    #[arg(short, long, value_name = "HOST:PORT", requires = "listen")]
    to: Option<Destination>,

    /// Serve OpenMetrics here, at /metrics
    #[arg(short, long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let config = configuration(&args).map_err(|e| Failure::Usage(e.to_string()))?;
    let reread = Box::new(move || configuration(&args));
    serve::run(&config, reread).map_err(|e| Failure::Run(e.to_string()))
}

/// The file, with the flags over it: a forward on the command line comes besides the file's.
fn configuration(args: &Args) -> Result<Config, ConfigError> {
    let to = args.to.as_ref();
    let forward = to.map(|to| Forward::new(args.listen.clone(), to.clone()));
    let mut config = match (&args.config, forward) {
        (None, Some(forward)) => Config::new(vec![forward]),
        (None, None) => Config::load(Path::new(DEFAULT_CONFIG))?,
        (Some(path), None) => Config::load(path)?,
        (Some(path), Some(forward)) => {
            let mut config = Config::load(path)?;
            config.forwards.push(forward);
            config
        }
    };
    if args.metrics.is_some() {
        config.metrics = args.metrics;
    }
    Ok(config)
}
