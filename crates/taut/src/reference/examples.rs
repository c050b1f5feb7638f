//! The commands and the configurations that the documents show.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use taut_config::{ConfigFile, SECTIONS};
use taut_snoop::config::Settings;

use super::root;
use super::shown::{Block, blocks, cut, pages, words};
use crate::{Cli, options};

#[test]
fn every_command_in_the_documents_parses() {
    let mut commands = Vec::new();
    for (page, text) in pages() {
        for block in blocks(&page, &text) {
            commands.extend(
                block
                    .commands()
                    .into_iter()
                    .map(|c| (block.place.clone(), c)),
            );
        }
    }
    assert!(commands.len() > 80, "{} commands", commands.len());
    let wrong = commands.iter().filter_map(|(place, command)| {
        let error = Cli::try_parse_from(words(command)).err()?;
        let is_wrong = !matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        );
        is_wrong.then(|| format!("{place}: {command}\n{error}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_in_a_sentence_exists() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for (i, line) in text.lines().enumerate() {
            for code in line.split('`').skip(1).step_by(2) {
                let first = code
                    .strip_prefix("taut ")
                    .and_then(|rest| rest.chars().next());
                // `taut 0.1.0` is no command, and neither is `taut ...`.
                if !first.is_some_and(|c| c.is_ascii_lowercase() || c == '-') {
                    continue;
                }
                let error = Cli::try_parse_from(words(cut(code))).err();
                let kind = error.as_ref().map(clap::Error::kind);
                // Values may be placeholders, and what is required may be left out.
                let unknown = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
                if kind.is_some_and(|kind| unknown.contains(&kind)) {
                    wrong.push(format!("{page}:{}: {code}", i + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_units_start_commands_that_parse() {
    let units = root().join("packaging/systemd");
    let mut found = 0;
    for unit in fs::read_dir(units).unwrap() {
        let unit = unit.unwrap().path();
        for line in fs::read_to_string(&unit).unwrap().lines() {
            let Some((_, command)) = line.split_once("=/usr/bin/taut ") else {
                continue;
            };
            // What the administrator adds.
            let given = |word: &&str| !word.starts_with('$');
            let words = ["taut"]
                .into_iter()
                .chain(command.split_whitespace().filter(given));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{}: {error}", unit.display());
            }
            found += 1;
        }
    }
    assert!(found >= 6, "{found} commands");
}

#[test]
fn every_configuration_in_the_documents_is_read() {
    let mut found = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for block in blocks(&page, &text) {
            // A line of JSON is what a command in the same block prints.
            let lines = block.lines.iter().take_while(|line| !line.starts_with('{'));
            let lines: Vec<_> = lines.map(String::as_str).collect();
            let text = lines.join("\n");
            let Some(section) = section(&block) else {
                continue;
            };
            found += 1;
            // A part is shown without what others explain.
            let error = read(section, &text).err();
            if let Some(error) = error.filter(|error| !error.contains("missing field")) {
                wrong.push(format!("{}: {error}", block.place));
            }
        }
    }
    assert!(found > 15, "{found} configurations");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the section that a block of configuration begins with.
fn section(block: &Block) -> Option<&str> {
    let mut lines = block.lines.iter();
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let section = first.strip_prefix('[')?.trim_start_matches('[');
    let section = section.split(']').next()?;
    let job = section.split('.').next()?;
    (SECTIONS.contains(&job) || job == "member").then_some(section)
}

/// Reads a configuration as its job does. A document may show a part; the rest is added here.
fn read(section: &str, text: &str) -> Result<(), String> {
    let path = Path::new("taut.toml");
    let job = section.split('.').next().unwrap_or_default();
    match job {
        "snoop" => {
            let file = ConfigFile::new(path, text.to_owned());
            let settings = Settings::of_file(&file).map_err(|e| e.to_string())?;
            settings.check().map_err(|e| e.to_string())
        }
        "mesh" => {
            let read = taut_dns::config::Config::parse(text, path);
            read.map(drop).map_err(|e| e.to_string())
        }
        "tune" | "watch" | "guest" => {
            let file = ConfigFile::new(path, text.to_owned());
            let found = options::SECTIONS.iter().find(|known| known.name == job);
            let read = options::check(&Cli::command(), &file, found.unwrap());
            read.map(drop).map_err(|e| e.to_string())
        }
        "member" => {
            let read = taut_relay::members::Members::parse(text);
            read.map(drop).map_err(|e| e.to_string())
        }
        _ => {
            let mut whole = text.to_owned();
            let has = |line: &str| text.lines().any(|l| l.trim_start().starts_with(line));
            if !has("[[relay.forward]]") {
                whole += "\n[[relay.forward]]\nlisten = \":1\"\nto = \"192.0.2.1:1\"\n";
            }
            let mesh = "private_key_file = \"/etc/taut/mesh.key\"\nmembers_file = \"/etc/taut/members.toml\"\n";
            if has("[relay.mesh]") && !has("private_key_file") {
                whole = whole.replacen("[relay.mesh]", &format!("[relay.mesh]\n{mesh}"), 1);
            } else if !has("[relay.mesh]") && (text.contains("relay.mesh") || has("via")) {
                whole += &format!("\n[relay.mesh]\n{mesh}");
            }
            let read = taut_relay::config::Config::parse(&whole, path);
            read.map(drop).map_err(|e| e.to_string())
        }
    }
}
