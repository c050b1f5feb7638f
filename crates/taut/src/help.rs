//! The help of `taut`: its commands, grouped by purpose.

use clap::Command;

/// The headings, and the commands below each.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Look", &["status", "why", "top", "watch", "doctor"]),
    ("Repair", &["tune", "relay", "mesh", "snoop", "guest"]),
    ("Try", &["tour", "lab"]),
    ("Set up", &["check", "completions", "man", "help"]),
];

/// Returns `taut` with its commands in groups.
pub(crate) fn grouped(mut taut: Command) -> Command {
    // Adds the command `help`.
    taut.build();
    let header = *taut.get_styles().get_header();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        groups += &format!("{header}{heading}:{header:#}\n");
        for name in names {
            let command = taut.find_subcommand(name);
            let about = command.and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups += &format!("  {name:<12} {about}\n");
        }
        groups.push('\n');
    }
    taut.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let mut taut = Cli::command();
        taut.build();
        let mut there: Vec<&str> = taut.get_subcommands().map(Command::get_name).collect();
        let mut named: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        there.sort_unstable();
        named.sort_unstable();
        assert_eq!(there, named);
    }

    #[test]
    fn no_line_of_the_help_is_longer_than_a_terminal_is_wide() {
        let help = grouped(Cli::command()).render_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(help.contains("\nRepair:\n  tune "), "{help}");
    }
}
