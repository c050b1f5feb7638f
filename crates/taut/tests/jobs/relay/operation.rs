//! The control socket, reload, and what changes while a relay runs.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{
    FORWARD, MeshFiles, NEXT, PATIENCE, Running, address, assert_one_sentence, get, operate, pair,
    server, taut,
};

#[test]
fn sighup_reloads_the_configuration_and_sessions_continue() {
    enter_private_network();
    let (server, addr) = server();
    let (other, other_addr) = self::server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let forward = |listen: &str, to: SocketAddr| {
        format!("[[relay.forward]]\nlisten = \"{listen}\"\nto = \"{to}\"\n")
    };
    fs::write(file.path(), forward("127.0.0.1:0", addr)).unwrap();
    let mut relay = Running::with_config(file.path());
    let (mut client, mut far) = pair(&relay, &server);

    // A mistake changes nothing and is logged with its line.
    fs::write(file.path(), "[relay]\nworker = 2\n").unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("keeping the former configuration");
    assert!(said.contains(":2: relay.worker: unknown field"), "{said}");
    drop(pair(&relay, &server));

    let text = "[relay]\nworkers = 13\nmax_pipes = 3\n".to_owned()
        + &forward("127.0.0.1:0", addr)
        + &forward("127.0.0.5:0", other_addr);
    fs::write(file.path(), text).unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("has been read again");
    for part in ["relay.workers cannot be changed", "max_pipes cannot be"] {
        assert_eq!(said.matches(part).count(), 1, "no `{part}` in: {said}");
    }
    let (_, rest) = said.split_once("listen=127.0.0.5:").unwrap();
    let port: u16 = rest.split_whitespace().next().unwrap().parse().unwrap();
    let through_new = TcpStream::connect(("127.0.0.5", port)).unwrap();
    other.accept().unwrap();
    drop(through_new);

    fs::write(file.path(), forward("127.0.0.5:0", other_addr)).unwrap();
    relay.signal(Signal::HUP);
    relay.wait_for_log("has been read again");
    let deadline = Instant::now() + PATIENCE;
    while TcpListener::bind(relay.listen).is_err() {
        assert!(Instant::now() < deadline, "the old port stays open");
    }
    client.write_all(b"still here").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"still here");
}

#[test]
fn a_reload_that_the_sandbox_refuses_is_one_sentence_and_sessions_go_on() {
    let files = MeshFiles::new();
    let (server, addr) = server();
    let listen = address(8080);
    let mesh = fs::read_to_string(files.config()).unwrap();
    let (_, mesh) = mesh.split_once("[relay.mesh]").unwrap();
    let write = |routes: &str, to: SocketAddr| {
        let routes = files.dir.path().join(routes);
        let text = format!(
            "[[relay.forward]]\nlisten = \"{listen}\"\nto = \"{to}\"\n[relay.mesh]{mesh}routes_file = {routes:?}\n"
        );
        fs::write(files.config(), text).unwrap();
    };
    write("one/routes", addr);
    let mut relay = Running::with_config(&files.config());
    let (mut client, mut far) = pair(&relay, &server);
    for (routes, why) in [
        ("two/routes", "restart the relay to change it"),
        ("one/new/routes", "and reload again"),
    ] {
        write(routes, address(8000));
        relay.signal(Signal::HUP);
        let said = relay.wait_for_log("keeping the former configuration");
        let line = said.lines().last().unwrap();
        assert!(line.contains("SIGHUP: relay.mesh.routes_file: "), "{line}");
        assert!(line.contains(why), "{line}");
        assert!(!files.dir.path().join(routes).parent().unwrap().exists());
        // The session goes on, and new ones go where they went.
        client.write_all(b"on").unwrap();
        far.read_exact(&mut [0; 2]).unwrap();
        drop(pair(&relay, &server));
    }
    write("one/other", addr);
    relay.signal(Signal::HUP);
    relay.wait_for_log("has been read again");
}

#[test]
fn the_files_of_a_running_relay_are_restricted() {
    let dir = tempfile::tempdir().unwrap();
    let (config, logs) = (dir.path().join("taut.toml"), dir.path().join("logs"));
    let log = logs.join("log");
    let text = format!("[relay]\ncontrol = \"off\"\nsession_log = {log:?}\n{FORWARD}");
    fs::write(&config, text).unwrap();
    let mut relay = Running::with_config(&config);
    // Another directory at the same path is not the one that the sandbox allows.
    fs::rename(&logs, dir.path().join("old")).unwrap();
    fs::create_dir(&logs).unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("has been read again");
    relay.signal(Signal::TERM);
    let (code, rest) = relay.end();
    let said = said + &rest;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cannot reopen the session log"), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    assert!(!log.exists());
}

/// Returns the user of a process.
fn user_of(relay: &Running) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", relay.child.id())).unwrap();
    let users = status.lines().find_map(|l| l.strip_prefix("Uid:")).unwrap();
    users.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn the_control_socket_of_a_killed_relay_is_replaced_and_a_strangers_is_not() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test starts relays that become another user and must run as root; `make test` does"
    );
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(dir.path(), 0o755);
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("run/control"));
    fs::write(
        &config,
        format!("[relay]\ncontrol = {control:?}\n{FORWARD}"),
    )
    .unwrap();
    mode(&config, 0o644);
    let wait_until_it_answers = || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (code, said) = operate(&control, &["status", "--json"]);
            if code == Some(0) {
                return;
            }
            assert!(Instant::now() < deadline, "{said}");
        }
    };
    let mut relay = Running::with_config(&config);
    wait_until_it_answers();
    assert_ne!(user_of(&relay), 0);
    relay.child.kill().unwrap();
    relay.child.wait().unwrap();
    let left = fs::symlink_metadata(&control).unwrap().ino();

    // The next one has another user.
    let relay = Running::with_config(&config);
    wait_until_it_answers();
    assert_ne!(user_of(&relay), 0);
    assert_ne!(fs::symlink_metadata(&control).unwrap().ino(), left);
    drop(relay);

    // Where everybody may place sockets, that of another user stays.
    mode(control.parent().unwrap(), 0o1777);
    chown(&control, Some(54_321), None).unwrap();
    let left = fs::symlink_metadata(&control).unwrap().ino();
    let mut command = taut();
    command.args(["--no-sandbox", "--config"]).arg(&config);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_one_sentence(
        &said,
        "belongs to user 54321, and any user may place files in its directory",
    );
    let (code, said) = operate(&control, &["status"]);
    assert_eq!(code, Some(1), "{said}");
    assert_one_sentence(
        &said,
        "belongs to user 54321, and any user may place files in its directory",
    );
    assert_eq!(fs::symlink_metadata(&control).unwrap().ino(), left);
}

#[test]
fn an_operator_lists_ends_and_drains_over_the_control_socket() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("control"));
    let (listen, metrics) = (address(8080), address(9464));
    let text = format!(
        "[relay]\ncontrol = {control:?}\nmetrics = \"{metrics}\"\n\
         [[relay.forward]]\nname = \"web\"\nlisten = \"{listen}\"\nto = \"{addr}\"\n"
    );
    fs::write(&config, &text).unwrap();
    let mut relay = Running::with_config(&config);
    relay.wait_for_log("serving OpenMetrics");
    let (mut first, mut first_far) = pair(&relay, &server);
    first.write_all(b"12345").unwrap();
    first_far.read_exact(&mut [0; 5]).unwrap();
    let (mut second, _far) = pair(&relay, &server);
    let run = |args: &[&str]| operate(&control, args);
    // The relay opens the socket after its ports.
    let deadline = Instant::now() + PATIENCE;
    while !control.exists() {
        assert!(Instant::now() < deadline, "no control socket");
        std::thread::yield_now();
    }

    let port = first.local_addr().unwrap().port();
    let session_of = |port: u16| {
        let (code, said) = run(&["sessions", "--json", "--client", "127.0.0.1"]);
        assert_eq!(code, Some(0), "{said}");
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list["sessions"]["matching"], 2, "{said}");
        let rows = list["sessions"]["sessions"].as_array().unwrap().clone();
        let client = format!("127.0.0.1:{port}");
        rows.into_iter()
            .find(|row| row["client"] == *client)
            .unwrap()
    };
    let row = session_of(port);
    assert_eq!(row["to_upstream"], 5, "{row}");
    assert_eq!(row["upstream"], addr.to_string(), "{row}");
    assert_eq!(
        (&row["state"], &row["forward"]),
        (&"relaying".into(), &"web".into())
    );
    let (_, said) = run(&["sessions", "--forward", "other"]);
    assert_eq!(said.lines().count(), 1, "{said}");

    // One session ends, the other goes on.
    let other = session_of(second.local_addr().unwrap().port());
    let (code, said) = run(&["end", "--session", other["id"].as_str().unwrap()]);
    assert_eq!((code, said.as_str()), (Some(0), "1 session reset\n"));
    let error = second.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let (code, said) = run(&["end"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "give --session, --forward, --peer or --client");

    // A drained forward refuses connections until the drain is undone.
    let (code, said) = run(&["drain", "--forward", "nothing"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "there is no forward `nothing`");
    assert_eq!(run(&["drain", "--forward", "web"]).0, Some(0));
    while TcpListener::bind(listen).is_err() {
        assert!(Instant::now() < deadline, "the port stays open");
    }
    let (_, said) = run(&["status"]);
    assert!(said.contains("web: drained"), "{said}");
    assert!(said.contains("nothing is broken"), "{said}");
    assert_eq!(run(&["reload"]).0, Some(0));
    TcpStream::connect(listen).unwrap_err();
    assert_eq!(run(&["drain", "--forward", "web", "--undo"]).0, Some(0));
    drop(pair(&relay, &server));
    first.write_all(b"6").unwrap();
    first_far.read_exact(&mut [0; 1]).unwrap();

    // The result of a reload comes back.
    fs::write(&config, "[relay]\nworker = 2\n").unwrap();
    let (code, said) = run(&["reload"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, ":2: relay.worker: unknown field");
    fs::write(&config, text.replace("[relay]", "[relay]\nworkers = 13")).unwrap();
    let (code, said) = run(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("relay.workers cannot be changed"), "{said}");

    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(run(&["drain"]).0, Some(0));
    while !get(metrics, "/readyz").starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "ready although it drains");
    }
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    let (_, said) = run(&["status"]);
    assert!(said.contains("draining"), "{said}");
    drop((first, first_far));
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["status"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "cannot connect");
}

#[test]
fn an_operator_leads_sessions_around_a_relay() {
    let files = MeshFiles::new();
    let (server, addr) = server();
    // It accepts connections and says nothing.
    let next = TcpListener::bind(NEXT).unwrap();
    let control = files.dir.path().join("control");
    let config = fs::read_to_string(files.config()).unwrap();
    let config = config.replace("127.0.0.1:9", &addr.to_string());
    let config = config.replace("via =", "direct = true\nvia =");
    let config = format!("[relay]\ncontrol = {control:?}\nconnect_timeout = \"60s\"\n{config}");
    fs::write(files.config(), config).unwrap();
    let relay = Running::with_config(&files.config());
    drop(next.accept().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !control.exists() {
        assert!(Instant::now() < deadline, "no control socket");
        std::thread::yield_now();
    }
    let run = |args: &[&str]| operate(&control, args);
    let (code, said) = run(&["drain", "--peer", "nobody"]);
    assert_eq!(code, Some(1));
    assert_one_sentence(&said, "no forward leads through a relay `nobody`");
    let (code, said) = run(&["drain", "--peer", "next"]);
    assert_eq!(code, Some(0), "{said}");
    let (_, said) = run(&["status"]);
    assert!(
        said.contains("next: drained; 0 connections ready"),
        "{said}"
    );
    // The first of them does not wait for the silent relay.
    drop(pair(&relay, &server));
    assert_eq!(run(&["reload"]).0, Some(0));
    drop(pair(&relay, &server));
    assert_eq!(run(&["drain", "--peer", "next", "--undo"]).0, Some(0));
    let (_, said) = run(&["status"]);
    assert!(said.contains("next: 0 connections ready"), "{said}");
    assert_eq!(run(&["drain", "--peer", "next", "--undo"]).0, Some(1));
}

#[test]
fn connections_to_the_destination_come_from_the_configured_addresses() {
    let (server, addr) = server();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = FORWARD.replace("127.0.0.1:9", &addr.to_string());
    let more = "upstream_address = [\"127.0.0.8\", \"127.0.0.9\"]\nupstream_dscp = 46\n";
    fs::write(
        file.path(),
        format!("[relay]\nuser_timeout = \"20s\"\n{config}{more}"),
    )
    .unwrap();
    let relay = Running::with_config(file.path());
    let mut from: Vec<_> = (0..2)
        .map(|_| {
            pair(&relay, &server)
                .1
                .peer_addr()
                .unwrap()
                .ip()
                .to_string()
        })
        .collect();
    from.sort();
    assert_eq!(from, ["127.0.0.8", "127.0.0.9"]);
}

#[test]
fn an_address_that_the_machine_gets_is_known_at_once() {
    enter_private_network();
    let mut relay = Running::start(address(8000), &[]);
    let added = Command::new("ip")
        .args(["address", "add", "192.0.2.1/32", "dev", "lo"])
        .status();
    assert!(added.unwrap().success());
    relay.wait_for_log("the addresses of this machine have changed");
}

#[test]
fn a_changed_list_of_members_is_adopted_but_not_one_that_has_lost_most_of_them() {
    let files = MeshFiles::new();
    files.list(&["own", "next", "third"]);
    let mut relay = Running::with_config(&files.config());
    files.list(&["own", "next"]);
    relay.wait_for_log("members.toml has changed: 2 members");
    files.list(&["own", "next", "third"]);
    relay.wait_for_log("members.toml has changed: 3 members");
    // The configuration still names it, which must not keep it from being revoked.
    files.list(&["own", "third"]);
    relay.wait_for_log("WARN next is no longer a member");
    relay.wait_for_log("members.toml has changed: 2 members");
    files.list(&["own", "next", "third"]);
    relay.wait_for_log("members.toml has changed: 3 members");
    files.list(&["own"]);
    let said = relay.wait_for_log("members.toml has 1 member and had 3: keeping the former list");
    assert!(!said.contains("has changed"), "{said}");
    fs::write(files.dir.path().join("members.toml"), "[[member]]\n").unwrap();
    relay.wait_for_log("keeping the former list of members");
}
