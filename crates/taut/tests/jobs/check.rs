//! `taut check`, and options in the configuration file.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Runs `taut` with these words and `--config` with a file of this text. Returns its exit code and what it has printed and said, where
/// the file is called `t`.
fn taut(words: &[&str], text: &str) -> (Option<i32>, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(words).arg("--config").arg(file.path());
    let output = command.output().unwrap();
    let path = file.path().to_str().unwrap();
    let [printed, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let named = |text: String| text.replace(path, "t");
    (output.status.code(), named(printed), named(said))
}

const RIGHT: &str = "\
[[relay.forward]]
listen = \":1\"
to = \"192.0.2.1:1\"
[tune]
apply = true
skip = [\"port 22\"]
";

#[test]
fn every_section_that_there_is_is_checked() {
    let (code, printed, said) = taut(&["check"], RIGHT);
    assert_eq!((code, &*said), (Some(0), ""));
    assert_eq!(printed, "t: [relay], [tune] are right\n");

    let wrong =
        format!("{RIGHT}interval = \"often\"\n[snoop]\ntap = [\"vnet*\"]\n[watch]\nkeep = 3\n");
    let (code, printed, said) = taut(&["check"], &wrong);
    assert_eq!((code, &*printed), (Some(2), "t: [relay] is right\n"));
    let sentences: Vec<_> = said.lines().collect();
    assert_eq!(sentences.len(), 3, "{said}");
    for (sentence, part) in sentences.iter().zip([
        "taut: t:9: snoop.tap: unknown field `tap`: did you mean `taps`?",
        "taut: t:7: tune.interval: invalid value 'often'",
        "taut: t:11: [watch]: the following required arguments were not provided: --to",
    ]) {
        assert!(sentence.starts_with(part), "{said}");
    }

    let (code, printed, _) = taut(&["check", "--json"], &wrong);
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(code, Some(2));
    assert_eq!(found["sections"][0]["name"], "relay");
    assert_eq!(found["sections"][0]["mistake"], Value::Null);
    assert!(found["sections"][2]["mistake"].is_string(), "{found}");
}

#[test]
fn a_mistake_of_the_whole_file_is_said_once() {
    for (text, sentence) in [
        ("[relay\n", "taut: t:1: "),
        (
            "\n[tun]\n",
            "taut: t:2: tun: unknown field `tun`: did you mean `tune`?\n",
        ),
    ] {
        let (code, _, said) = taut(&["check"], text);
        assert_eq!(code, Some(2));
        assert!(
            said.starts_with(sentence) && said.lines().count() == 1,
            "{said}"
        );
    }
    let (code, printed, _) = taut(&["check"], "");
    assert_eq!(
        (code, &*printed),
        (Some(0), "t has no section: nothing to check\n")
    );
}

#[test]
fn a_command_reads_its_section() {
    // It is refused for what the file says.
    let text = "[tune]\nbudget = \"1MiB\"\nper_cgroup = \"2MiB\"\n";
    let (code, _, said) = taut(&["tune"], text);
    assert_eq!(code, Some(2));
    assert!(said.contains("--per-cgroup 2.0 MiB"), "{said}");
    let (code, _, said) = taut(&["tune", "--budget", "1KiB"], text);
    assert_eq!(code, Some(2));
    assert!(said.contains("at least 1.0 MiB"), "{said}");
    // `--keep` needs `--to`, which only the file has.
    let (code, _, said) = taut(&["watch", "--keep", "3"], "[watch]\nto = \"/proc/none\"\n");
    assert_eq!(code, Some(2));
    assert!(said.contains("/proc/none"), "{said}");
    let (code, _, said) = taut(&["watch"], "[watch]\nkeeep = 1\n");
    assert_eq!(code, Some(2));
    assert_eq!(
        said,
        "taut: t:2: watch.keeep: unknown field `keeep`: did you mean `keep`?\n"
    );
}
