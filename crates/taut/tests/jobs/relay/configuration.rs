//! Mistakes in the configuration, and `--check`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{
    FORWARD, MeshFiles, NEXT, Running, assert_one_sentence, refused, server, taut,
};

#[test]
fn a_mistake_in_the_configuration_is_one_message_with_its_line() {
    for (config, part) in [
        (
            format!("[relay]\nworker = 2\n{FORWARD}"),
            ":2: relay.worker: unknown field `worker`",
        ),
        (
            "[[relay.forward]]\nlisten = \"here\"\nto = \"x:1\"\n".into(),
            ":2: relay.forward[0].listen[0]: `here`",
        ),
        (
            "[[relay.forward]]\nlisten = \":1\"\nto = \"x\"\n".into(),
            ":3: relay.forward[0].to: `x`",
        ),
        ("[relay]\nworkers = 2\n".into(), "no [[relay.forward]]"),
        (
            format!("{0}{0}", FORWARD.replace("127.0.0.1:0", "127.0.0.1:99")),
            ":5: relay.forward[1].listen[0]: 127.0.0.1:99 is in relay.forward[0].listen[0] already",
        ),
        (
            format!("{FORWARD}name = \"a\"\n{FORWARD}name = \"a\"\n"),
            ":8: relay.forward[1].name: `a` is the name of relay.forward[0] already",
        ),
        (
            format!("{FORWARD}name = \"mesh\"\n"),
            ":4: relay.forward[0].name: `mesh`",
        ),
        (
            format!("{FORWARD}upstream_dscp = 64\n"),
            ":4: relay.forward[0].upstream_dscp: must be from 0 to 63",
        ),
        ("[relay\n".into(), ":1: "),
    ] {
        let (output, said) = refused(&config);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_one_sentence(&said, part);
    }
}

#[test]
fn a_file_that_is_not_text_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    let output = taut().arg("--config").arg(file.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_one_sentence(&String::from_utf8(output.stderr).unwrap(), "cannot read");
}

#[test]
fn a_port_in_use_is_one_message() {
    let (_holder, addr) = server();
    let config = FORWARD.replace("127.0.0.1:0", &addr.to_string());
    let (output, said) = refused(&config);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(
        &said,
        &format!("cannot listen on {addr}: the port is in use"),
    );
}

#[test]
fn a_metrics_port_in_use_is_one_message() {
    let (_holder, addr) = server();
    let (output, said) = refused(&format!("[relay]\nmetrics = \"{addr}\"\n{FORWARD}"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(&said, &format!("cannot serve metrics on {addr}"));
}

#[test]
fn a_destination_without_an_address_is_one_message() {
    // No resolver can answer there.
    enter_private_network();
    let (output, said) = refused(&FORWARD.replace("127.0.0.1:9", "nowhere.invalid:80"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_one_sentence(&said, "cannot look up `nowhere.invalid:80`");
}

#[test]
fn too_few_descriptors_are_one_message() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("[relay]\nmax_sessions = 1000\n{FORWARD}")).unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 256 && exec \"$0\" relay --config \"$1\""])
        .arg(env!("CARGO_BIN_EXE_taut"))
        .arg(file.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_one_sentence(&said, "file descriptors and this process may open 256");
}

#[test]
fn a_second_relay_on_the_same_port_is_refused() {
    let (_server, addr) = server();
    let first = Running::start(addr, &[]);
    let output = taut()
        .args(["--listen", &first.listen.to_string(), "--to", "127.0.0.1:9"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_one_sentence(
        &String::from_utf8(output.stderr).unwrap(),
        "the port is in use",
    );
}

#[test]
fn a_check_exits_without_a_relay_and_says_what_prevents_one() {
    enter_private_network();
    let (_holder, taken) = server();
    let check = |config: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, config).unwrap();
        let args = [Path::new("--check"), Path::new("--config"), file.path()];
        let output = taut().args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    // The port is in use, as it is while the relay runs.
    let running = FORWARD.replace("127.0.0.1:0", &taken.to_string());
    assert_eq!(check(&running), (Some(0), String::new()));
    let (code, said) = check(&FORWARD.replace("127.0.0.1:9", "nowhere.invalid:80"));
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "cannot look up `nowhere.invalid:80`");
    let (code, said) = check("[relay]\nworker = 2\n");
    assert_eq!(code, Some(2));
    assert_one_sentence(&said, "unknown field `worker`");
}

#[test]
fn a_check_of_peers_dials_each_relay_and_says_who_does_not_accept_this_one() {
    let files = MeshFiles::new();
    let check = || {
        let mut check = taut();
        let output = check
            .arg("--check=peers")
            .arg("--config")
            .arg(files.config())
            .output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = check();
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "refuses connections");
    // The next relay knows this one, and then it does not.
    for (known, expected) in [("own", 0), ("third", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        files.list_at(&path("members.toml"), &["next", known]);
        let mesh = format!(
            "[relay.mesh]\nprivate_key_file = {:?}\nmembers_file = {:?}\nlisten = \"{NEXT}\"\nallow = \"127.0.0.1:9\"\n",
            files.dir.path().join("next"),
            path("members.toml"),
        );
        fs::write(path("taut.toml"), format!("{FORWARD}{mesh}")).unwrap();
        let _next = Running::with_config(&path("taut.toml"));
        let (code, said) = check();
        assert_eq!(code, Some(expected), "{said}");
        match expected {
            0 => assert!(said.contains("ready after"), "{said}"),
            _ => assert_one_sentence(&said, "does not accept this relay's key"),
        }
    }
}

#[test]
fn a_log_level_that_does_not_exist_is_refused() {
    let args = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    let output = taut()
        .env("TAUT_LOG", "verbose")
        .args(args)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_one_sentence(
        &String::from_utf8(output.stderr).unwrap(),
        "TAUT_LOG: `verbose`",
    );
}

#[test]
fn every_line_of_the_log_is_an_object_when_json_is_asked_for() {
    let args = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    let run = |log: &str| {
        let mut command = taut();
        command.env("TAUT_LOG_FORMAT", "json").env("TAUT_LOG", log);
        let mut child = command.args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines: Vec<serde_json::Value> = Vec::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            let object: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(
                object["timestamp"].is_string() && object["message"].is_string(),
                "{line}"
            );
            if object["listen"].is_string() {
                kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            }
            lines.push(object);
        }
        (child.wait().unwrap().code(), lines)
    };
    let (code, lines) = run("info");
    assert_eq!(code, Some(0));
    // Others than INFO, if another relay of this machine has the default socket.
    assert!(
        lines.iter().all(|line| line["level"].is_string()),
        "{lines:?}"
    );

    let (code, lines) = run("verbose");
    assert_eq!((code, lines.len()), (Some(2), 1));
    assert_eq!(lines[0]["level"], "ERROR");
}

#[test]
fn a_device_or_source_address_that_does_not_exist_is_one_message() {
    for (setting, part) in [
        (
            "upstream_device = \"no-such\"",
            "cannot use relay.forward.upstream_device",
        ),
        (
            "upstream_address = \"192.0.2.1\"",
            "cannot use relay.forward.upstream_address",
        ),
    ] {
        let (output, said) = refused(&format!("{FORWARD}{setting}\n"));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_one_sentence(&said, part);
    }
}
