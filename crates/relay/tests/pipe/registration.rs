//! The registration, which is machine-wide, and its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use taut_netlab::link::shape::Shape;
use taut_relay::turbo::congestion_control::{Pipe, PipeOptions};
use taut_sys::child::Child;
use taut_sys::netns::Netns;
use taut_sys::socket::{LegOptions, has_congestion_control};

use crate::rig::{Relays, congestion, mesh, pipe, receive, send, wait_until};

/// Set in the process that a test starts.
const CHILD: &str = "TAUT_PIPE_TEST_CHILD";

/// Not a test by itself: the body of the process that is killed below.
#[test]
fn another_process_that_holds_a_pipe() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let pipe = Pipe::load(&PipeOptions::default()).unwrap();
    // The harness keeps the name of this test on the same line.
    println!("\npipe {}", pipe.name());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_process_ends_its_registration_but_not_its_connections() {
    let own = pipe().name();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "registration::another_process_that_holds_a_pipe",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::piped());
    let here = Arc::new(Netns::current().unwrap());
    let mut child = Child::spawn(here, command).unwrap();
    let said = child.pipes().stdout.take().unwrap();
    // Held until the process is killed: it ends if it cannot write.
    let mut lines = BufReader::new(said).lines();
    let other = { lines.by_ref() }
        .find_map(|line| Some(line.unwrap().strip_prefix("pipe ")?.to_owned()))
        .unwrap();
    assert_ne!(other, own, "two relays on one machine");
    assert!(other.starts_with("taut_pipe"), "{other}");

    let delay = Shape::delay(Duration::from_millis(1));
    let mut relays = Relays::new("pipe-killed", 4, delay, delay);
    let options = LegOptions {
        congestion: Some(other.clone()),
        ..mesh()
    };
    let listener = relays.listen(&options);
    let (near, far) = relays.connect(&listener, &options);
    assert!(has_congestion_control(&other));

    child.kill().unwrap();
    drop(lines);
    // The kernel removes it when it has closed the dead process's files.
    wait_until("the registration's end", || !has_congestion_control(&other));
    for (from, to) in [(&near, &far), (&far, &near)] {
        assert_eq!(congestion(from), other);
        let len = 8 << 20;
        std::thread::scope(|scope| {
            scope.spawn(|| send(from, len));
            assert_eq!(receive(to, len), len);
        });
    }
    // Connections that the listener accepts from now on have it too: they inherit it.
    let (_near, far) = relays.connect(&listener, &mesh());
    assert_eq!(congestion(&far), other);
    assert!(has_congestion_control(own));
}
