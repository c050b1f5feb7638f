#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::Shutdown;
use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn a_client_is_gone_once_it_has_closed_both_directions() {
    let (asker, answerer) = UnixStream::pair().unwrap();
    assert!(!is_gone(&answerer));
    asker.shutdown(Shutdown::Write).unwrap();
    assert!(!is_gone(&answerer));
    drop(asker);
    assert!(is_gone(&answerer));
}

#[test]
fn a_question_is_abandoned_when_its_client_has_gone() {
    let (tell, told) = sync_channel(1);
    let question = Question::Off { tap: "tap0".into() };
    assert_eq!(tell_and_wait(&tell, question, || true), None);
    let Ok(Event::Asked(_, asker)) = told.recv() else {
        panic!("it was asked");
    };
    assert!(!asker.is_there());
    // An answer to a client that has gone is harmless.
    asker.tell(Answer::Done);
}

#[test]
fn a_client_does_not_wait_forever_for_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let _silent = UnixListener::bind(&control).unwrap();
    let answer = ask(&control, &Question::Status, Duration::from_millis(50));
    assert!(matches!(answer, Err(AskError::Late(_))), "{answer:?}");
}
