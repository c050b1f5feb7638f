use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEW: &str = "FFfe0000000000000000000000000000000000000000000000000000000000aa";

fn key(hex: &str) -> Key {
    Key::from_hex(hex).unwrap()
}

fn fault(text: &str) -> String {
    Keys::parse(text).unwrap_err().to_string()
}

#[test]
fn a_file_has_one_key_or_two_and_comments() {
    let one = Keys::parse(&format!("\n# of May\n  {OLD}  \n")).unwrap();
    assert_eq!(one, Keys::new(key(OLD), None));
    assert_eq!(one.first().bytes()[31], 0x1f);
    let two = Keys::parse(&format!("{NEW}\r\n\r\n#{OLD}\r\n{OLD}")).unwrap();
    assert_eq!(two, Keys::new(key(NEW), Some(key(OLD))));
    assert_eq!(two.first(), &key(NEW));
    assert_eq!(two.iter().collect::<Vec<_>>(), [&key(NEW), &key(OLD)]);
    assert!(two.contains(&key(OLD)) && !one.contains(&key(NEW)));
}

#[test]
fn a_line_that_is_not_a_key_is_refused_by_number_and_never_repeated() {
    for bad in [
        &OLD[..62],
        &OLD[..63],
        &format!("{OLD}00"),
        &format!("0x{OLD}"),
        &OLD.replace('0', "g"),
        &format!("{} # new", OLD),
        "\u{e9}",
    ] {
        let message = fault(&format!("# keys\n{bad}\n"));
        assert!(message.starts_with("line 2 is not a key"), "{message}");
        assert!(!message.contains(bad));
    }
    assert!(fault("").contains("openssl rand -hex 32"));
    assert!(fault("# none yet\n").contains("no key"));
    let third = format!("{OLD}\n{NEW}\n{}", OLD.replace('0', "1"));
    assert!(fault(&third).starts_with("line 3 is a third key"));
    assert!(fault(&format!("{OLD}\n{OLD}")).starts_with("line 2 repeats"));
}

#[test]
fn debug_does_not_print_a_key() {
    let shown = format!("{:?}", Keys::new(key(OLD), Some(key(NEW))));
    assert_eq!(shown, "Keys { first: Key(..), second: Some(Key(..)) }");
}

proptest! {
    #[test]
    fn any_key_is_read_as_it_is_written(bytes in any::<[u8; 32]>()) {
        let hex = format!("{:x}", base16ct::HexDisplay(&bytes));
        prop_assert_eq!(Key::from_hex(&hex), Some(Key::new(bytes)));
        prop_assert_eq!(Key::from_hex(&hex.to_uppercase()), Some(Key::new(bytes)));
    }
}

fn file(mode: u32, text: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text).unwrap();
    let permissions = std::fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(permissions).unwrap();
    file
}

fn load_fault(path: &Path) -> String {
    Keys::load(path).unwrap_err().to_string()
}

#[test]
fn a_file_that_only_its_owner_can_read_is_loaded() {
    for mode in [0o600, 0o400, 0o700] {
        let file = file(mode, OLD.as_bytes());
        assert_eq!(Keys::load(file.path()).unwrap().first(), &key(OLD));
    }
}

#[test]
fn a_file_that_others_can_read_or_write_is_refused_with_the_command_that_mends_it() {
    for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666] {
        let file = file(mode, OLD.as_bytes());
        let message = load_fault(file.path());
        let remedy = format!(
            "(mode {mode:04o}): run `chmod 600 {}`",
            file.path().display()
        );
        assert!(message.contains(&remedy), "{message}");
    }
}

#[test]
fn a_file_of_another_user_is_refused_unless_root_owns_it() {
    let path = Path::new("/etc/taut/mesh.key");
    assert!(check_access(path, 0o100_600, 1000, 1000).is_ok());
    assert!(check_access(path, 0o100_600, 0, 1000).is_ok());
    for user in [0, 1000] {
        let message = check_access(path, 0o100_600, 1001, user)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(&format!(
                "user 1001, who can change them: run `chown {user} /etc/taut/mesh.key`"
            )),
            "{message}"
        );
    }
}

#[test]
fn a_file_without_keys_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load_fault(dir.path()).contains("not a regular file"));
    assert!(load_fault(&dir.path().join("none")).contains("cannot read"));
    // Opening the pipe does not wait for a writer.
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    assert!(load_fault(&pipe).contains("not a regular file"));
    assert!(load_fault(file(0o600, b"").path()).contains("contains no key"));
    assert!(load_fault(file(0o600, b"\xff").path()).contains("not text"));
    let long = vec![b'#'; MAX_FILE as usize + 1];
    assert!(load_fault(file(0o600, &long).path()).contains("longer than"));
    let named = file(0o600, b"x");
    assert!(load_fault(named.path()).starts_with(&named.path().display().to_string()));
}
