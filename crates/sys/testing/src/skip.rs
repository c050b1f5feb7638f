//! What a test does on a machine that cannot run it: it says so where `make test` counts it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::{env, thread};

/// The environment variable with the file in which `scripts/test` collects skipped tests.
const FILE: &str = "TAUT_SKIPPED";

/// Reports that the running test, or a part of it, is skipped, and why: `no chromium`. `scripts/test`
/// counts these reports and prints them at its end.
///
/// # Panics
/// If the file that `TAUT_SKIPPED` names cannot be written: a skip that nobody sees is a failure.
pub fn skip(why: &str) {
    println!("SKIPPED: {why}");
    let Some(file) = env::var_os(FILE) else {
        return;
    };
    let test = thread::current();
    let line = format!("{}: {why}\n", test.name().unwrap_or("a test"));
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Returns whether all of `programs` are in `PATH`; otherwise reports the test as skipped. A test that
/// needs a program begins with
///
/// ```no_run
/// if !taut_sys_testing::skip::has_programs(&["chromium"]) {
///     return;
/// }
/// ```
pub fn has_programs(programs: &[&str]) -> bool {
    let missing = missing(programs);
    if !missing.is_empty() {
        skip(&format!("no {}", missing.join(", no ")));
    }
    missing.is_empty()
}

fn missing<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_missing =
        |program: &&str| !env::split_paths(&path).any(|dir| dir.join(program).is_file());
    programs.iter().copied().filter(is_missing).collect()
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn a_program_of_path_is_found_and_another_is_missing() {
        let programs = ["sh", "taut-program-that-is-nowhere"];
        assert_eq!(missing(&programs), [programs[1]]);
    }
}
