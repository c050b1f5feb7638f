//! The list of members in etcd: `taut relay` and `taut mesh sign` beside a real server and etcdctl.

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use taut_sys_testing::skip::has_programs;

use self::rig::*;

// === the list ===

#[test]
fn a_relay_without_a_list_gets_it_from_etcd_and_follows_its_changes() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a", "b"], &[]));
    let relay = operator.relay("a", &etcd);
    assert_eq!(relay.count(), 2);
    let signed = operator.sign(&["a", "b", "c"], &[]);
    etcd.put(&signed);
    relay.wait_for(3);
    assert_eq!(fs::read_to_string(relay.list_file()).unwrap(), signed);
    assert!(relay.members()["expires_in"].as_f64().unwrap() > 89.0 * 86_400.0);
    // A member is removed.
    etcd.put(&operator.sign(&["a", "b"], &[]));
    relay.wait_for(2);
    assert!(relay.members()["refused"].as_object().unwrap().is_empty());
}

#[test]
fn a_check_before_the_first_start_dials_the_relays_of_the_list_in_etcd() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a", &format!("b@{UNUSED}")], &[]));
    let folder = tempfile::tempdir().unwrap();
    let config = operator.configure("a", folder.path(), &endpoints(&etcd));
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("[relay.mesh]\n", "[relay.mesh]\npeers = \"*\"\n");
    fs::write(&config, text).unwrap();
    let mut check = taut();
    check
        .args(["relay", "--check=peers", "--config"])
        .arg(config);
    let output = check.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("b ({UNUSED}) refuses connections");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn whoever_owns_etcd_can_neither_add_a_relay_nor_bring_one_back() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    let old = operator.sign(&["a", "b", "stolen"], &[]);
    etcd.put(&old);
    let mut relay = operator.relay("a", &etcd);
    let new = operator.sign(&["a", "b"], &[]);
    etcd.put(&new);
    relay.wait_for(2);
    // A forged list, of another key and of none, and a changed one.
    let forger = Operator::new();
    let forged = forger.sign(&["a", "b", "intruder"], &["--serial", "9000000000"]);
    let unsigned = fs::read_to_string(forger.path("members.toml")).unwrap();
    let changed = new.replace("name = \"b\"", "name = \"x\"");
    for list in [forged, unsigned, changed, "what?".to_owned()] {
        let before = relay.refused("signature");
        etcd.put(&list);
        wait_until("the refusal", || relay.refused("signature") > before);
    }
    // The old list is validly signed, and stays refused after a restart.
    etcd.put(&old);
    wait_until("the refusal", || relay.refused("older") > 0);
    assert!(relay.etcd("refusal").as_str().unwrap().contains("serial"));
    relay.kill();
    relay.start_again();
    wait_until("the refusal", || relay.refused("older") > 0);
    assert_eq!(relay.count(), 2);
    assert_eq!(fs::read_to_string(relay.list_file()).unwrap(), new);
    // The good list is accepted again.
    etcd.put(&new);
    wait_until("the list", || relay.etcd("refusal").is_null());
}

#[test]
fn a_list_that_is_gone_or_has_lost_more_than_half_is_not_believed_without_the_operators_word() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    let full = operator.sign(&["a", "b", "c", "d", "e"], &[]);
    etcd.put(&full);
    let relay = operator.relay("a", &etcd);
    etcd.operator(&["del", "--prefix", "/taut/"]);
    wait_until("the refusal", || relay.refused("missing") > 0);
    // There is one warning for all refusals of a minute.
    wait_until("a warning", || relay.log().contains("refused (missing)"));
    // `taut mesh sign` would not sign such a list over the former one; elsewhere it has no former one.
    fs::remove_file(operator.path("members.signed")).unwrap();
    etcd.put(&operator.sign(&["a", "b"], &["--serial", "8000000000"]));
    wait_until("the refusal", || relay.refused("smaller") > 0);
    assert_eq!(relay.count(), 5);
    assert_eq!(fs::read_to_string(relay.list_file()).unwrap(), full);
    etcd.put(&operator.sign(&["a", "b"], &["--smaller"]));
    relay.wait_for(2);
    // A relay that has missed that list believes the next one.
    let mut late = operator.relay("b", &etcd);
    late.kill();
    fs::write(late.list_file(), &full).unwrap();
    etcd.put(&operator.sign(&["a", "b"], &[]));
    late.start_again();
    late.wait_for(2);
}

// === the server ===

#[test]
fn everything_goes_on_while_etcd_is_gone_also_a_start() {
    let Some((operator, mut etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a", "b"], &[]));
    let mut relay = operator.relay("a", &etcd);
    wait_until("a read", || relay.reads());
    etcd.kill();
    wait_until("the loss", || !relay.reads());
    let warned = |relay: &Relay, times| {
        wait_until("a warning", || {
            relay.log().matches("etcd cannot be used").count() == times
        });
    };
    warned(&relay, 1);
    relay.kill();
    relay.start_again();
    assert_eq!(relay.count(), 2);
    // Only what it has warned of can be well again.
    warned(&relay, 2);
    etcd.start_again();
    etcd.put(&operator.sign(&["a", "b", "c"], &[]));
    relay.wait_for(3);
    wait_until("good news", || {
        relay.log().contains("etcd can be used again")
    });
}

#[test]
fn a_watch_that_begins_at_a_compacted_revision_is_replaced() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a"], &[]));
    // The relay reads the list again only after an hour. Its third connection, after those for the first list and
    // for calls, is the watch, which is held up on its way.
    let gate = Gate::new(etcd.clients[0], 2);
    let keys = format!(
        "endpoints = [\"http://{}\"]\ninterval = \"1h\"\ntimeout = \"60s\"\nannounce = false\n",
        gate.address
    );
    let relay = Relay::start(&operator, "a", &keys);
    let watch = gate.next();
    // A watch may begin at the revision of a compaction, not before it.
    etcd.put(&operator.sign(&["a", "b", "c"], &[]));
    etcd.put(&operator.sign(&["a", "b"], &[]));
    let status = etcd.operator(&["endpoint", "status", "--write-out", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    etcd.operator(&["compact", "--physical", &revision]);
    watch.send(()).unwrap();
    // The next watch is not held up.
    drop(gate.next());
    relay.wait_for(2);
    assert_eq!(relay.etcd("compacted"), 1);
    etcd.put(&operator.sign(&["a"], &[]));
    relay.wait_for(1);
    assert!(relay.etcd("changes").as_u64() > Some(0));
}

#[test]
fn a_server_whose_answers_are_lost_is_left_for_another() {
    if !has_programs(&["nft"]) {
        return;
    }
    let Some((operator, etcd)) = start(2) else {
        return;
    };
    etcd.put(&operator.sign(&["a"], &[]));
    let keys = format!("{}timeout = \"1s\"\n", endpoints(&etcd));
    let relay = Relay::start(&operator, "a", &keys);
    let first = etcd.url(etcd.clients[0]);
    wait_until("the first server", || {
        relay.reads() && relay.etcd("endpoint") == first
    });
    // What the relay sends arrives; the answers do not.
    let cut = format!(
        "add table inet cut; add chain inet cut input {{ type filter hook input priority 0; }}; \
         add rule inet cut input tcp sport {} drop",
        etcd.clients[0].port()
    );
    let done = Command::new("nft").arg(cut).status().unwrap();
    assert!(done.success());
    let other = etcd.url(etcd.clients[1]);
    wait_until("the other server", || {
        relay.reads() && relay.etcd("endpoint") == other
    });
    let list = operator.sign(&["a", "b"], &[]);
    let put = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &other, "put", "/taut/members", &list])
        .status();
    assert!(put.unwrap().success());
    relay.wait_for(2);
    assert!(relay.etcd("failures")["timed_out"].as_u64().unwrap() > 0);
}

// === announcements ===

#[test]
fn a_killed_relay_is_absent_when_its_lease_has_expired_and_a_second_of_its_name_is_noticed() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a", "b"], &[]));
    let a = operator.relay("a", &etcd);
    wait_until("the announcement of a", || a.etcd("present") == 1);
    // Only these have leases that expire soon: `a` must keep its own although the machine may be busy.
    let short = |name| {
        let keys = format!("{}lease = \"3s\"\n", endpoints(&etcd));
        Relay::start(&operator, name, &keys)
    };
    let mut b = short("b");
    wait_until("both", || a.etcd("present") == 2);
    // Another machine with the key and the name of `a`.
    let second = short("a");
    b.kill();
    wait_until("the absence", || a.etcd("absent")[0] == "b");
    assert_eq!(a.count(), 2);
    wait_until("the duplicate", || {
        second
            .log()
            .contains("announced itself in etcd by the name")
    });
    assert!(!a.log().contains("by the name of this relay"));
    b.start_again();
    wait_until("its return", || a.etcd("present") == 2);
}

// === protection ===

#[test]
fn a_relay_that_may_not_announce_itself_still_watches_the_list_and_says_so() {
    let Some((operator, etcd)) = start(1) else {
        return;
    };
    etcd.put(&operator.sign(&["a"], &[]));
    let list = operator.sign(&["a", "b"], &[]);
    for line in [
        "user add root:secret",
        "role add root",
        "user grant-role root root",
        "role add relay",
        "role grant-permission relay read /taut/members",
        "user add relay:word",
        "user grant-role relay relay",
        "auth enable",
    ] {
        etcd.operator(&line.split(' ').collect::<Vec<_>>());
    }
    let password = etcd.path("password");
    fs::write(&password, "word\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let user = format!("user = \"relay\"\npassword_file = {password:?}\n");
    let relay = Relay::start(&operator, "a", &format!("{}{user}", endpoints(&etcd)));
    wait_until("a refusal", || {
        let why = relay.etcd("announcement");
        why.as_str()
            .is_some_and(|why| why.contains("permission denied"))
    });
    etcd.operator(&["--user", "root:secret", "put", "/taut/members", &list]);
    wait_until("a change that the watch reports", || {
        relay.etcd("changes").as_u64() > Some(0)
    });
    relay.wait_for(2);
    assert!(relay.reads());
    assert_eq!(relay.etcd("failures"), serde_json::json!({}));
    let log = relay.log();
    let warnings = log.matches("cannot announce itself").count();
    assert_eq!(warnings, 1, "{log}");
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart_and_its_expiry_is_exported() {
    let Some((operator, etcd)) = start_with_tls() else {
        return;
    };
    etcd.put(&operator.sign(&["a"], &[]));
    let path = |name: &str| format!("{:?}", etcd.path(name));
    let keys = format!(
        "{}ca_file = {}\ncert_file = {}\nkey_file = {}\n",
        endpoints(&etcd),
        path("ca.pem"),
        path("client.pem"),
        path("client.key")
    );
    let relay = Relay::start(&operator, "a", &keys);
    wait_until("the first read", || relay.reads());
    let left = |days: f64| {
        let left = relay.expires("client certificate for etcd");
        left > (days - 0.1) * 86_400.0 && left < (days + 0.1) * 86_400.0
    };
    assert!(left(20.0));
    etcd.renew_client(10);
    wait_until("the renewed certificate", || left(10.0));
    assert!(relay.log().contains("certificates for etcd were renewed"));
    wait_until("a read", || relay.reads());
    // One that cannot be used is not adopted.
    fs::write(etcd.path("client.pem"), "no certificate").unwrap();
    wait_until("a warning", || relay.log().contains("cannot be used"));
    assert!(relay.reads() && left(10.0));
}

#[test]
fn tls_with_certificates_and_a_user_with_a_role_are_used_and_their_lack_is_reported() {
    let Some((operator, etcd)) = start_with_tls() else {
        return;
    };
    let list = operator.sign(&["a"], &[]);
    etcd.put(&list);
    for line in [
        "user add root:secret",
        "role add root",
        "user grant-role root root",
        "role add relay",
        "role grant-permission relay read /taut/members",
        "role grant-permission --prefix=true relay readwrite /taut/up/",
        "user add relay:word",
        "user grant-role relay relay",
        "auth enable",
    ] {
        etcd.operator(&line.split(' ').collect::<Vec<_>>());
    }
    let secret = |name: &str, text: &str| {
        fs::write(etcd.path(name), text).unwrap();
        let run = Command::new("chmod")
            .arg("600")
            .arg(etcd.path(name))
            .status();
        assert!(run.unwrap().success());
        etcd.path(name)
    };
    let path = |name: &str| format!("{:?}", etcd.path(name));
    let password = secret("password", "word\n");
    let wrong = secret("wrong", "wrong\n");
    let authority = format!("{}ca_file = {}\n", endpoints(&etcd), path("ca.pem"));
    let client = format!(
        "cert_file = {}\nkey_file = {}\n",
        path("client.pem"),
        path("client.key")
    );
    let user = |file: &std::path::Path| format!("user = \"relay\"\npassword_file = {file:?}\n");

    let relay = Relay::start(
        &operator,
        "a",
        &format!("{authority}{client}{}", user(&password)),
    );
    assert_eq!(relay.count(), 1);
    wait_until("the announcement", || relay.etcd("present") == 1);
    // `--check` says what prevents it.
    let check = |etcd_keys: &str| {
        let folder = tempfile::tempdir().unwrap();
        let config = operator.configure("a", folder.path(), etcd_keys);
        fs::write(folder.path().join("members.toml"), &list).unwrap();
        let output = taut()
            .args(["relay", "--check", "--config"])
            .arg(config)
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let said = check(&format!("{authority}{client}{}", user(&password)));
    assert!(
        said.contains("the list of members in etcd has 1 member"),
        "{said}"
    );
    let said = check(&format!("{authority}{}", user(&password)));
    assert!(
        said.contains("TLS: ") || said.contains("the connection has ended"),
        "{said}"
    );
    let said = check(&format!("{authority}{client}"));
    assert!(said.contains("check the user"), "{said}");
    let said = check(&format!("{authority}{client}{}", user(&wrong)));
    assert!(said.contains("authentication failed"), "{said}");
    // The server's certificate is of another authority.
    let other = tempfile::tempdir().unwrap();
    make_certificates(other.path());
    let other = other.path().join("ca.pem");
    let foreign = format!("{}ca_file = {other:?}\n", endpoints(&etcd));
    let said = check(&format!("{foreign}{client}{}", user(&password)));
    assert!(said.contains("TLS: "), "{said}");
}
