//! How commands fail.

use std::io::{ErrorKind, Write as _};

/// An error message, with the exit code of its kind.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error in the command line or the configuration file: exit code 2.
    Usage(String),
    /// Any other error: exit code 1.
    Run(String),
}

/// Prints the result of a command. A reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let written = std::io::stdout().write_all(text.as_bytes());
    match written.and_then(|()| std::io::stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::Run(format!(
            "cannot write to standard output: {e}"
        ))),
        _ => Ok(()),
    }
}
