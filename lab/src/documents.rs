//! The commands of `taut lab` that the documents show. `taut` parses all others.

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::Cli;

#[path = "../../crates/taut/src/reference/shown.rs"]
mod shown;

/// Returns a command with the name of this program in front of it, if it is one of `taut lab`.
fn of_lab(command: &str) -> Option<Vec<String>> {
    let words = shown::words(command.strip_prefix("taut lab ")?);
    Some(
        std::iter::once("taut-lab".to_owned())
            .chain(words)
            .collect(),
    )
}

#[test]
fn every_command_of_the_lab_in_the_documents_parses() {
    let (mut found, mut wrong) = (0, Vec::new());
    for (page, text) in shown::pages() {
        for block in shown::blocks(&page, &text) {
            for words in block
                .commands()
                .iter()
                .filter_map(|command| of_lab(command))
            {
                found += 1;
                if let Err(error) = Cli::try_parse_from(&words)
                    && error.kind() != ErrorKind::DisplayHelp
                {
                    wrong.push(format!("{}: {words:?}\n{error}", block.place));
                }
            }
        }
        let in_sentences = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for code in in_sentences {
            let Some(words) = of_lab(shown::cut(code)) else {
                continue;
            };
            found += 1;
            // In a sentence values may be placeholders, and what is required may be left out.
            let unknown = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
            if let Err(error) = Cli::try_parse_from(&words)
                && unknown.contains(&error.kind())
            {
                wrong.push(format!("{page}: `{code}`\n{error}"));
            }
        }
    }
    assert!(found > 10, "{found} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
