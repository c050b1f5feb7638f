use super::*;

fn entry(target: Target, before: &str, after: &str) -> Entry {
    let text = |text: &str| Value::Text(text.to_owned());
    Entry::new(target, text(before), text(after))
}

#[test]
fn the_value_from_before_the_first_change_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/journal");
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "2", "3"))
        .unwrap();
    journal
        .note(entry(Target::ReceiveMaximum(1), "8", "9"))
        .unwrap();
    journal.undone(&Target::ReceiveMaximum(1)).unwrap();
    // Simulates kill -9.
    drop(journal);
    let journal = Journal::free(&path).unwrap();
    let left: Vec<_> = journal.entries().cloned().collect();
    let earlier = Some(Value::Text("2".to_owned()));
    let expected = Entry {
        earlier,
        ..entry(Target::SendMaximum(1), "1", "3")
    };
    assert_eq!(left, [expected]);
    journal.close().unwrap();
    assert!(path.exists());
}

#[test]
fn the_file_is_removed_when_all_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    journal.undone(&Target::SendMaximum(1)).unwrap();
    journal.close().unwrap();
    assert!(!path.exists());
}

#[test]
fn one_process_at_a_time_holds_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let held = Journal::free(&path).unwrap();
    let second = Journal::open(&path).unwrap_err();
    assert!(matches!(second, JournalError::Held(_)), "{second}");
    assert!(
        second
            .to_string()
            .contains("one `taut tune --apply` at a time")
    );
    drop(held);
    Journal::free(&path).unwrap();
}

#[test]
fn incomplete_and_foreign_lines_lose_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&path, [&whole[..], b"\xff{}\n", &whole[..cut]].concat()).unwrap();
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Target::ReceiveMaximum(1), "8", "9"))
            .unwrap();
        drop(journal);
        assert_eq!(Journal::free(&path).unwrap().entries().count(), 2, "{cut}");
    }
}

#[test]
fn the_file_grows_with_current_entries_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    for cookie in 0..3000 {
        let target = Target::SendBuffer(cookie);
        journal.note(entry(target.clone(), "1", "2")).unwrap();
        journal.undone(&target).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap().lines().count() < 1100);
    // The journal is still locked and can still be written.
    assert!(matches!(Journal::open(&path), Err(JournalError::Held(_))));
    journal
        .note(entry(Target::ReceiveMaximum(1), "1", "2"))
        .unwrap();
    drop(journal);
    assert_eq!(Journal::free(&path).unwrap().entries().count(), 2);
}

#[test]
fn what_a_killed_process_has_left_is_counted_without_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    assert_eq!(Journal::abandoned(&path).unwrap(), 0);
    assert!(!path.exists());
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    // Its owner runs.
    assert_eq!(Journal::abandoned(&path).unwrap(), 0);
    drop(journal);
    // A child of another test may have the file for a moment.
    let began = std::time::Instant::now();
    while Journal::abandoned(&path).unwrap() == 0 && began.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    assert_eq!(Journal::abandoned(&path).unwrap(), 1);
    let text = fs::read_to_string(&path).unwrap();
    let of_another_boot = text.replace(&boot().unwrap(), "another");
    fs::write(&path, &of_another_boot).unwrap();
    assert_eq!(Journal::abandoned(&path).unwrap(), 0);
    assert_eq!(fs::read_to_string(&path).unwrap(), of_another_boot);
}

#[test]
fn the_entries_of_another_boot_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::free(&path).unwrap();
    journal
        .note(entry(Target::SendMaximum(1), "1", "2"))
        .unwrap();
    drop(journal);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&boot().unwrap(), "another")).unwrap();
    assert_eq!(Journal::free(&path).unwrap().entries().count(), 0);
}

#[test]
fn a_file_that_is_no_journal_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hosts");
    for text in [
        "127.0.0.1 localhost\n",
        "{}\n",
        "x",
        "{\"undone\":{\"send-buffer\":1}}\n",
    ] {
        fs::write(&path, text).unwrap();
        assert!(
            matches!(Journal::free(&path), Err(JournalError::Other(_))),
            "{text}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn a_journal_that_another_user_could_have_written_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    drop(Journal::free(&path).unwrap());
    for (of, open, closed) in [(&*path, 0o622, 0o600), (dir.path(), 0o777, 0o700)] {
        fs::set_permissions(of, fs::Permissions::from_mode(open)).unwrap();
        assert!(
            matches!(Journal::free(&path), Err(JournalError::Untrusted(_))),
            "{of:?}"
        );
        fs::set_permissions(of, fs::Permissions::from_mode(closed)).unwrap();
        Journal::free(&path).unwrap();
    }
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(matches!(Journal::free(&path), Err(JournalError::Io { .. })));
}
