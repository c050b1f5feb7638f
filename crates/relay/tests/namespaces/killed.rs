//! A child process of this test binary, which is killed while it holds something.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs the test `name` in a process of its own, with `value` in the environment variable `asked`,
/// and kills it when it has printed `word`. Returns the result of `meanwhile`, called just before.
pub(crate) fn kill_when_it_says<T>(
    word: &str,
    name: &str,
    (asked, value): (&str, String),
    meanwhile: impl FnOnce() -> T,
) -> T {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(asked, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
    let begun = lines.map_while(Result::ok).any(|line| line.contains(word));
    let found = begun.then(meanwhile);
    process.kill().unwrap();
    process.wait().unwrap();
    let Some(found) = found else {
        panic!("the other process did not get as far as {word}");
    };
    found
}
