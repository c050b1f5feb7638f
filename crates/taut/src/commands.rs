//! What holds for the command line of every command. `tests/pages/commands.rs` runs them.

use clap::{Arg, Command, CommandFactory as _};

use crate::Cli;

/// The width of a terminal on which no line of an example is wrapped.
const WIDTH: usize = 80;

/// Returns every command that can be given, with the words that name it: `taut mesh plan`.
fn commands() -> Vec<(String, Command)> {
    let mut root = Cli::command();
    // Gives each command its arguments for help, and those of the commands above it.
    root.build();
    let mut found = Vec::new();
    let mut left = vec![(root.get_name().to_owned(), root)];
    while let Some((name, command)) = left.pop() {
        let below = command.get_subcommands();
        // `lab` is another program, which has its own help.
        left.extend(
            below
                .filter(|c| !["help", "lab"].contains(&c.get_name()))
                .map(|c| (format!("{name} {}", c.get_name()), c.clone())),
        );
        found.push((name, command));
    }
    assert!(found.len() > 25, "{}", found.len());
    found
}

/// Returns the options of a command, without those that clap adds.
fn options(command: &Command) -> Vec<&Arg> {
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    options
        .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
        .collect()
}

#[test]
fn the_help_of_every_command_has_an_example_that_fits_the_terminal() {
    for (name, mut command) in commands() {
        let help = command.render_long_help().to_string();
        let (_, after) = help
            .split_once("\nExample")
            .unwrap_or_else(|| panic!("{name} --help has no example"));
        let examples = after.lines().skip(1).take_while(|line| !line.is_empty());
        let examples: Vec<_> = examples.collect();
        let whole = command.get_after_help().unwrap().to_string();
        assert!(
            examples.iter().any(|line| line.contains(&name)),
            "{name}: {examples:?}"
        );
        for line in whole.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= WIDTH, "{name}: {line}");
        }
    }
}

#[test]
fn every_option_of_every_command_is_under_a_heading_and_has_a_sentence() {
    for (name, command) in commands() {
        for option in options(&command) {
            let id = option.get_id();
            assert!(option.get_help_heading().is_some(), "{name}: {id}");
            let help = option.get_help().map(ToString::to_string);
            assert!(help.is_some_and(|h| h.len() > 8), "{name}: {id}");
        }
    }
}

#[test]
fn the_exit_statuses_are_in_the_help_of_taut() {
    let help = Cli::command().render_help().to_string();
    assert!(help.contains("Exit status of every command"), "{help}");
}
