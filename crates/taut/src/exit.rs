//! The end of the program.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::log;

/// Reports the failure of a command. Returns the exit code of the program.
pub(crate) fn exit_code(result: Result<(), Failure>) -> ExitCode {
    let (sentence, code) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(sentence)) => (sentence, ExitCode::from(2)),
        Err(Failure::Run(sentence)) => (sentence, ExitCode::FAILURE),
    };
    log::say_failure(&sentence);
    log::finish();
    code
}
