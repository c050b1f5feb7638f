//! `taut completions` and `taut man`: completions and manual pages.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;

use crate::failure::{Failure, print};

/// Print the completions of a shell
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut completions bash > /etc/bash_completion.d/taut
  taut completions zsh > /usr/local/share/zsh/site-functions/_taut
  taut completions fish > ~/.config/fish/completions/taut.fish")]
pub(crate) struct CompletionsArgs {
    /// Of which shell
    shell: Shell,
}

/// Print the manual page of a command
#[derive(ClapArgs)]
#[command(after_help = "\
Examples:
  taut man relay drain | man -l -
  taut man --to /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The words of the command, such as `relay drain`
    #[arg(conflicts_with = "to")]
    command: Vec<String>,

    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    to: Option<PathBuf>,
}

/// Prints the completions of the command line `taut`.
pub(crate) fn completions(args: &CompletionsArgs, mut taut: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut taut, "taut", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Prints, or writes, manual pages of the command line `taut`.
pub(crate) fn man(args: &ManArgs, mut taut: Command) -> Result<(), Failure> {
    if let Some(directory) = &args.to {
        return clap_mangen::generate_to(taut, directory).map_err(|error| {
            Failure::Run(format!(
                "cannot write pages to {}: {error}",
                directory.display()
            ))
        });
    }
    // Gives each command its arguments for help, and the name with those above it.
    taut.build();
    let mut command = &taut;
    for (at, word) in args.command.iter().enumerate() {
        command = command.find_subcommand(word).ok_or_else(|| {
            let words = args.command[..=at].join(" ");
            Failure::Usage(format!("there is no command `taut {words}`"))
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .and_then(|()| page.flush())
        .map_err(|error| Failure::Run(error.to_string()))?;
    print(&String::from_utf8_lossy(&page))
}
