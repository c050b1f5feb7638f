//! `taut relay`: runs a relay node.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use taut_relay::config::{Config, ConfigError, Forward};
use taut_relay::handover::Passed;
use taut_relay::net::addr::{Destination, Listen};
use taut_relay::node;
use taut_relay::serve::{self, Beginning, ControlSocket};
use taut_sys::activation::{self, Activated};
use taut_sys::privileges::{self, Capability};

use self::confine::User;
use crate::confine::{Confined, Confinement, SandboxArgs};
use crate::failure::Failure;

mod confine;
mod operate;
mod upgrade;

/// Run a relay node: split long TCP connections into short ones
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut relay              as /etc/taut/taut.toml says
  taut relay --check      could it start?
  taut relay status       what a running relay does
  taut relay upgrade      replace it by this program, without a gap
  taut relay --listen :8080 --to origin.example:80

SIGTERM and SIGINT drain the relay: it accepts no more connections and gives open sessions \
relay.drain_timeout to end; a second signal resets them. SIGHUP reloads the configuration; sessions \
continue.

--check exits with 0 if a relay could start, 1 if it could not (a name without an address, a key that \
cannot be read), 2 if the configuration file has a mistake. A port in use is no error. --check=peers also \
dials each relay of the mesh up to the end of its handshake.

TAUT_LOG sets what is logged: error, warn, info (the default), debug, trace or off, or more of one part, \
such as TAUT_LOG=info,taut_relay=debug.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// A command to a running relay
    #[command(subcommand)]
    command: Option<operate::Command>,

    /// Configuration file
    #[arg(short, long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,

    // Not a doc comment: rustdoc would read the brackets as a link.
    #[arg(
        short,
        long,
        value_name = "ADDR",
        requires = "to",
        help = "Address to listen on: ADDRESS:PORT, [ADDRESS]:PORT, or :PORT for all addresses; may be repeated",
        help_heading = "A forward without a file"
    )]
    listen: Vec<Listen>,

    /// Destination or upstream relay of connections to --listen
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        requires = "listen",
        help_heading = "A forward without a file"
    )]
    to: Option<Destination>,

    /// Address to serve OpenMetrics on, at /metrics
    #[arg(short, long, value_name = "ADDR", help_heading = "Metrics")]
    metrics: Option<Listen>,

    /// Check the configuration, names, keys and addresses, and exit without starting a relay; `--check=peers`
    /// dials the relays of the mesh, too
    #[arg(
        long,
        value_name = "WHAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "config",
        help_heading = "Configuration"
    )]
    check: Option<Check>,

    /// Replace the running relay (`taut relay upgrade` starts the new process with this)
    #[arg(long, hide = true, help_heading = "Configuration")]
    replace: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Check {
    /// The configuration, names, keys and addresses.
    Config,
    /// These, and that each relay of the mesh answers and accepts this one.
    Peers,
}

impl Args {
    /// Returns the file that a reload reads.
    fn file(&self) -> Option<&Path> {
        match (&self.config, self.listen.is_empty()) {
            (Some(path), _) => Some(path),
            (None, true) => Some(Path::new(taut_config::PATH)),
            (None, false) => None,
        }
    }

    /// Returns the command to a running relay, if it is one.
    pub(crate) fn take_command(&mut self) -> Option<operate::Command> {
        self.command.take()
    }
}

/// Carries out a command to a running relay.
pub(crate) fn operate(command: operate::Command) -> Result<(), Failure> {
    operate::run(command)
}

/// A relay that is ready to start, with reduced privileges.
pub(crate) struct Job {
    args: Args,
    config: Config,
    inherited: Vec<Passed>,
    control: Option<ControlSocket>,
    /// `None`: it only checks.
    confined: Option<(User, Vec<Capability>, Confined)>,
}

/// Prepares the start while the process has one thread, because privileges are per thread. Drops
/// unneeded privileges before anything is opened, so that a reload can open everything again.
pub(crate) fn prepare(args: Args) -> Result<Job, Failure> {
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let default = Path::new(taut_config::PATH);
    let is_missing = || default.try_exists().is_ok_and(|is_there| !is_there);
    if args.config.is_none() && args.file() == Some(default) && is_missing() {
        return Err(Failure::Usage(format!(
            "{} is missing. Write it, with a [[relay.forward]], or start without a file:\n\n    \
             taut relay --listen :8080 --to HOST:PORT\n",
            default.display()
        )));
    }
    let config = configuration(&args).map_err(|e| Failure::Usage(e.to_string()))?;
    if args.replace {
        // The terminal of the command that has started this process may close. A process that leads a group
        // already has none.
        let _ = rustix::process::setsid();
    }
    let activated = activation::take().map_err(|e| run(&e))?;
    let passed = |socket: Activated| Passed {
        addr: socket.addr,
        fd: socket.fd,
    };
    let inherited = activated.into_iter().map(passed).collect();
    let mut job = Job {
        args,
        config,
        inherited,
        control: None,
        confined: None,
    };
    let config = &job.config;
    let no_sandbox = job.args.sandbox.no_sandbox;
    if let Some(refusal) = confine::refusal(config).filter(|_| !no_sandbox) {
        return Err(Failure::Usage(refusal));
    }
    let keep: Vec<_> = confine::needed(config)
        .into_iter()
        .filter(|capability| privileges::has(*capability))
        .collect();
    if let Some(user) = &config.user {
        privileges::drop_to(Some(user), &keep).map_err(|e| run(&e))?;
    }
    let is_check = job.args.check.is_some();
    let user = User::of(config, job.args.file());
    let dropped = match &user {
        User::Unprivileged(user) => {
            if !is_check {
                // Only root can open it in its directory.
                job.control = ControlSocket::open(config);
            }
            privileges::become_unprivileged(user, &keep)
        }
        User::AsConfigured | User::Root(_) => privileges::limit_to(&keep),
    };
    dropped.map_err(|e| run(&e))?;
    // A check reads what the relay reads with the rights that the relay has, and does no more.
    if is_check {
        return Ok(job);
    }
    let sandbox = (!no_sandbox).then(|| confine::sandbox(config, &keep));
    let confined = Confinement {
        keep: keep.clone(),
        sandbox,
    };
    job.confined = Some((user, keep, confined.enter()?));
    Ok(job)
}

/// Checks the configuration and prints what is wrong with it.
fn check(config: &Config, what: Check) -> Result<(), Failure> {
    let mut findings = node::check(config);
    for warning in &findings.warnings {
        let _ = writeln!(std::io::stderr(), "taut: warning: {warning}");
    }
    if what == Check::Peers && findings.errors.is_empty() {
        for peer in node::check_peers(config) {
            let named = format!("{} ({})", peer.name, peer.address);
            match peer.outcome {
                Ok(took) => {
                    let took = took.as_secs_f64() * 1000.0;
                    let _ = writeln!(std::io::stdout(), "{named}: ready after {took:.1} ms");
                }
                Err(problem) => findings.errors.push(format!("{named} {problem}")),
            }
        }
    }
    if findings.errors.is_empty() {
        let notes = findings.notes.iter().map(|note| format!("{note}\n"));
        return crate::failure::print(
            &(notes.collect::<String>() + "the configuration is valid\n"),
        );
    }
    Err(Failure::Run(findings.errors.join("\ntaut: ")))
}

pub(crate) fn run(job: Job) -> Result<(), Failure> {
    let Job {
        args,
        config,
        inherited,
        control,
        confined,
    } = job;
    let Some((user, kept, confined)) = confined else {
        return check(&config, args.check.unwrap_or(Check::Config));
    };
    confined.log();
    match &user {
        User::AsConfigured => {}
        User::Unprivileged(user) => {
            tracing::info!("nothing here needs root: the relay runs as {user}");
        }
        User::Root(reason) => {
            tracing::info!("the relay stays root, because {reason}; relay.user names another user");
        }
    }
    let restricts_files = confined.restricts_files();
    let folders = restricts_files.then(|| confine::list_folders(&config));
    let beginning = Beginning {
        inherited,
        control,
        replaces: args.replace,
    };
    let reload = Box::new(move || {
        let config = configuration(&args).map_err(|error| error.to_string())?;
        let refusal = folders
            .as_ref()
            .and_then(|folders| confine::outside(&config, folders));
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        warn_of_missing(&config, &user, &kept);
        Ok(config)
    });
    serve::run(&config, beginning, reload).map_err(|e| Failure::Run(e.to_string()))
}

/// Logs what a reloaded configuration needs and the running relay has given up.
fn warn_of_missing(config: &Config, user: &User, kept: &[Capability]) {
    let reason = confine::needs_root(config).filter(|_| matches!(user, User::Unprivileged(_)));
    if let Some(reason) = reason {
        tracing::warn!(
            "the new configuration needs a restart of the relay: {reason}, and it has given up root's rights"
        );
    }
    let needed = confine::needed(config);
    let missing = needed.iter().filter(|c| !kept.contains(c));
    let missing: Vec<_> = missing.map(|capability| capability.name()).collect();
    if !missing.is_empty() {
        tracing::warn!(
            "the new configuration needs a restart of the relay: it has given up {}",
            missing.join(" and ")
        );
    }
}

/// Reads the configuration file and applies the flags. A forward on the command line is added to
/// those in the file.
fn configuration(args: &Args) -> Result<Config, ConfigError> {
    let to = args.to.as_ref();
    let forward = to.map(|to| Forward::new(args.listen.clone(), to.clone()));
    let mut config = match (&args.config, forward) {
        (None, Some(forward)) => Config::new(vec![forward]),
        (None, None) => Config::load(Path::new(taut_config::PATH))?,
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

/// Removes characters that could control the terminal: names come from another process.
fn plain(text: &str) -> String {
    let is_plain = |c: &char| !c.is_control() || *c == '\n';
    text.chars().filter(is_plain).collect()
}
