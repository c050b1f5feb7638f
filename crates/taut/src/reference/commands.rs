//! Every command with its options, and the exit statuses.

use clap::{Arg, Command, CommandFactory as _};

use super::cell;
use crate::Cli;
use crate::observe::filter_help;

const HEAD: &str = "\
# Commands and options

Every command of `taut`, as `--help` shows it. This page is written from the code (`make reference`).

## Exit statuses

| status | meaning |
|---|---|
| 0 | the command has done what it was asked to do; a job was ended by a signal and has undone its changes |
| 1 | it could not: a message on standard error says what happened and what to do. `taut doctor`: something blocks |
| 2 | the command line or the configuration file has a mistake; nothing was done |
";

/// Returns the page.
pub(super) fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut page = HEAD.to_owned();
    section(&mut page, &cli);
    page
}

/// Appends the sections of a command and of those below it.
fn section(page: &mut String, command: &Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string);
    *page += &format!("\n## {name}\n\n{}.\n", about.unwrap_or_default());
    let usage = command.clone().render_usage().to_string();
    *page += &format!("\n```text\n{usage}\n```\n");

    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let args: Vec<_> = command.get_arguments().filter(shown).collect();
    if !args.is_empty() {
        *page += "\n| option | default | meaning |\n|---|---|---|\n";
    }
    for arg in args {
        *page += &format!(
            "| {} | {} | {} |\n",
            spelled(arg),
            default(arg),
            meaning(arg)
        );
    }
    if let Some(text) = command.get_after_help() {
        let mut text = text.to_string();
        if name != "taut top" {
            text = text.replace(filter_help!(), "A FILTER is written as for taut top.");
        }
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        *page += &format!("\n```text\n{}\n```\n", lines.join("\n").trim_matches('\n'));
    }
    for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
        section(page, below);
    }
}

/// Returns how an option is written on the command line.
fn spelled(arg: &Arg) -> String {
    let values: Vec<_> = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    let values = values.join(" ");
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<_> = short.into_iter().chain(long).collect();
    match names.last_mut() {
        Some(last) if values.is_empty() => debug_assert!(last.starts_with('-')),
        Some(last) if arg.is_require_equals_set() => *last += &format!("[={values}]"),
        Some(last) => *last += &format!(" {values}"),
        None => names.push(values),
    }
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("`{}`", cell(name)))
        .collect();
    names.join(", ")
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_default_values().iter();
    let values: Vec<_> = values
        .map(|value| format!("`{}`", value.display()))
        .collect();
    values.join(", ")
}

/// Returns the help of an option, with the values that it may have.
fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
        for value in arg
            .get_possible_values()
            .iter()
            .filter(|v| !v.is_hide_set())
        {
            let help = value.get_help().map(|help| format!(": {help}"));
            text += &format!("; `{}`{}", value.get_name(), help.unwrap_or_default());
        }
    }
    cell(&text)
}
