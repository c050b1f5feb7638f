//! The manual pages and shell completions of a program, for packages: of `taut`, and of `taut-lab`, which has this file too.
//!
//! A test writes them, because packages are also made for machines whose programs do not run here.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::Cli;

const NAME: &str = env!("CARGO_BIN_NAME");

/// Writes below the directory `TAUT_PAGES`, which scripts/package sets, or else below a temporary one.
#[test]
fn every_command_has_a_manual_page_and_every_shell_its_completions() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = std::env::var_os("TAUT_PAGES").map(PathBuf::from);
    let directory = directory.as_deref().unwrap_or(temporary.path()).join(NAME);
    std::fs::create_dir_all(&directory).unwrap();

    clap_mangen::generate_to(Cli::command(), &directory).unwrap();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Cli::command(), NAME, &directory).unwrap();
    }

    require_pages(&Cli::command(), NAME, &directory);
    for file in [
        format!("{NAME}.bash"),
        format!("{NAME}.fish"),
        format!("_{NAME}"),
    ] {
        assert!(directory.join(&file).exists(), "{file}");
    }
}

/// Fails unless the command and those below it have pages.
fn require_pages(command: &Command, name: &str, directory: &Path) {
    let page = std::fs::read_to_string(directory.join(format!("{name}.1")));
    let page = page.unwrap_or_else(|e| panic!("{name}.1: {e}"));
    assert!(page.contains(".SH SYNOPSIS"), "{page}");
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        require_pages(below, &format!("{name}-{}", below.get_name()), directory);
    }
}
