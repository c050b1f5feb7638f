//! `taut check`: every section of the configuration file.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Command};
use serde::Serialize;
use serde::de::IgnoredAny;
use taut_config::{ConfigError, ConfigFile};
use taut_observe::versioned::Versioned;
use taut_snoop::config::Settings;

use crate::failure::{Failure, print};
use crate::{options, tune};

/// Check every section of the configuration file
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut check                      is /etc/taut/taut.toml right?
  taut check --config new.toml    and this file?

It reads the file and looks nothing up. `taut relay --check` and `taut mesh dns --check` also read the files
that their sections name, and look names up.")]
pub(crate) struct Args {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = taut_config::PATH, help_heading = "Configuration")]
    config: PathBuf,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What was found.
#[derive(Serialize)]
struct Checked {
    /// The sections that the file has.
    sections: Vec<CheckedSection>,
}

/// A section.
#[derive(Serialize)]
struct CheckedSection {
    /// Its name, such as `mesh.dns`.
    name: &'static str,
    /// What is wrong with it, with the file and, if it is known, the line; `null` if there is no mistake.
    mistake: Option<String>,
}

/// `taut` is the whole command line.
pub(crate) fn run(args: &Args, taut: &Command) -> Result<(), Failure> {
    let wrong = |error: ConfigError| Failure::Usage(error.to_string());
    let file = ConfigFile::load(&args.config).map_err(wrong)?;
    let mut checked = Checked {
        sections: Vec::new(),
    };
    for section in taut_config::SECTIONS {
        // A mistake of the whole file is reported by the first, and once.
        let is_there = file.section::<IgnoredAny>(section).map_err(wrong)?;
        if is_there.is_none() {
            continue;
        }
        let (name, result) = match section {
            "relay" => (
                section,
                taut_relay::config::Config::of_file(&file).map(drop),
            ),
            "mesh" => (
                "mesh.dns",
                taut_dns::config::Config::of_file(&file).map(drop),
            ),
            "snoop" => (section, snoop(&file)),
            _ => (section, of_options(taut, &file, section)),
        };
        checked.sections.push(CheckedSection {
            name,
            mistake: result.err().map(|error| error.to_string()),
        });
    }
    let mistakes = checked.sections.iter().filter_map(|s| s.mistake.clone());
    let mistakes = mistakes.collect::<Vec<_>>();
    print(&match args.json {
        true => Versioned::new(&checked)
            .pretty()
            .map_err(|error| Failure::Run(error.to_string()))?,
        false => text(&checked, args),
    })?;
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(Failure::Usage(mistakes.join("\ntaut: "))),
    }
}

fn of_options(taut: &Command, file: &ConfigFile, name: &str) -> Result<(), ConfigError> {
    let Some(section) = options::SECTIONS.iter().find(|known| known.name == name) else {
        return Ok(());
    };
    let matches = options::check(taut, file, section)?;
    match matches.subcommand_matches("tune") {
        Some(matches) => tune::check(matches).map_err(|what| in_section(file, name, &what)),
        None => Ok(()),
    }
}

/// Returns a mistake of a section of which no line is known: at its first key.
fn in_section(file: &ConfigFile, name: &str, what: &str) -> ConfigError {
    let entries = file.entries(name).ok().flatten().unwrap_or_default();
    let first = entries.iter().map(|entry| entry.offset).min();
    file.invalid(first.unwrap_or_default(), format!("[{name}]: {what}"))
}

fn snoop(file: &ConfigFile) -> Result<(), ConfigError> {
    let settings = Settings::of_file(file)?;
    let checked = settings.check();
    checked.map_err(|error| in_section(file, "snoop", &error.to_string()))
}

/// Returns the line about the sections without a mistake.
fn text(checked: &Checked, args: &Args) -> String {
    let right = checked.sections.iter().filter(|s| s.mistake.is_none());
    let right: Vec<_> = right.map(|s| format!("[{}]", s.name)).collect();
    let file = args.config.display();
    match (right.as_slice(), checked.sections.as_slice()) {
        ([], []) => format!("{file} has no section: nothing to check\n"),
        ([], _) => String::new(),
        ([one], _) => format!("{file}: {one} is right\n"),
        (several, _) => format!("{file}: {} are right\n", several.join(", ")),
    }
}
