#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::Shutdown;

use super::*;

#[test]
fn who_has_closed_both_ways_is_gone_and_who_has_only_asked_is_not() {
    let (asker, answerer) = UnixStream::pair().unwrap();
    assert!(!is_gone(&answerer));
    asker.shutdown(Shutdown::Write).unwrap();
    assert!(!is_gone(&answerer));
    drop(asker);
    assert!(is_gone(&answerer));
}

#[test]
fn a_question_that_nobody_waits_for_any_more_is_given_up() {
    let (tell, told) = sync_channel(1);
    let question = Question::Off { tap: "tap0".into() };
    assert_eq!(tell_and_wait(&tell, question, || true), None);
    let Ok(Event::Asked(_, asker)) = told.recv() else {
        panic!("it was asked");
    };
    assert!(!asker.is_there());
    // Nobody hears it, and nobody is hurt.
    asker.tell(Answer::Done);
}

#[test]
fn an_answer_that_does_not_come_is_not_awaited_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let _silent = UnixListener::bind(&control).unwrap();
    let answer = ask(&control, &Question::Status, Duration::from_millis(50));
    assert!(matches!(answer, Err(AskError::Late(_))), "{answer:?}");
}
