use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

/// The private key of RFC 8032 section 7.1, test 1, in PEM as `openssl genpkey -algorithm ed25519` writes it.
const PEM: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
";

/// Its public key.
const PUBLIC: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

fn public(text: &str) -> Result<PublicKey, PublicKeyError> {
    text.parse()
}

// === public keys ===

proptest! {
    #[test]
    fn any_key_is_read_as_it_is_written(seed in any::<[u8; 32]>()) {
        let key = PrivateKey::from_seed(&seed).public();
        let text = key.to_string();
        prop_assert_eq!(text.len(), 44);
        prop_assert_eq!(public(&text), Ok(key));
        prop_assert_eq!(PublicKey::from_spki(&[&SPKI_PREFIX[..], &key.0].concat()), Some(key));
        // PEM, whatever is around it.
        let body = Base64::encode_string(&[&PKCS8_PREFIX[..], &seed].concat());
        let pem = format!("notes\n-----BEGIN PRIVATE KEY-----\r\n{body}\r\n-----END PRIVATE KEY-----\n\nmore");
        prop_assert_eq!(PrivateKey::parse(pem.as_bytes()).unwrap().public(), key);
    }
}

#[test]
fn a_public_key_follows_from_its_private_key_as_in_rfc_8032() {
    let key = PrivateKey::parse(PEM.as_bytes()).unwrap();
    assert_eq!(key.public().to_string(), PUBLIC);
    let seed = Base64::decode_vec(PEM.lines().nth(1).unwrap()).unwrap();
    let seed: [u8; 32] = seed[16..].try_into().unwrap();
    assert_eq!(PrivateKey::from_seed(&seed).public(), key.public());
}

#[test]
fn a_text_that_is_no_public_key_is_refused_and_only_its_start_repeated() {
    let private = PEM.lines().nth(1).unwrap();
    for bad in [
        "",
        "key",
        &PUBLIC[..43],
        &PUBLIC.replace('=', ""),
        &PUBLIC.replace('/', "_"),
        &format!("{PUBLIC} "),
        &format!("{PUBLIC}\n"),
        // The last digit has bits beyond the 32 bytes.
        &PUBLIC.replace("Ro=", "Rp="),
        private,
        PEM,
        &"\u{e9}".repeat(44),
        &"A".repeat(1 << 20),
    ] {
        let error = public(bad).unwrap_err();
        assert!(matches!(error, PublicKeyError::Text(_)), "{bad}");
        let message = error.to_string();
        assert!(message.contains("44 base64 characters") && message.len() < 250);
        // The first 21 characters are the same for all private keys.
        assert!(!message.contains(&private[21..]));
        assert!(!format!("{error:?}").contains(&private[21..]));
    }
    assert!(
        public(private)
            .unwrap_err()
            .to_string()
            .starts_with("`MC4CAQAw…` is not")
    );
}

/// Returns whether a fixed signature, which needs no private key, is valid for one of a few messages.
fn anybody_can_sign(key: [u8; 32]) -> bool {
    let spki = [&SPKI_PREFIX[..], &key].concat();
    let certificate = rustls::pki_types::SubjectPublicKeyInfoDer::from(&spki[..]);
    // R is the neutral point and S is 0 (RFC 8032 section 5.1.7).
    let mut signature = vec![8, 7, 0, 64, 1];
    signature.resize(4 + 64, 0);
    let dss = <rustls::DigitallySignedStruct as ReadFrom>::read_from(&signature);
    (0..100_u8).any(|message| {
        rustls::crypto::verify_tls13_signature_with_raw_key(
            &[message],
            &certificate,
            &dss,
            &crate::crypto::provider().signature_verification_algorithms,
        )
        .is_ok()
    })
}

/// Decodes a type of TLS.
trait ReadFrom {
    fn read_from(bytes: &[u8]) -> Self;
}

impl ReadFrom for rustls::DigitallySignedStruct {
    fn read_from(bytes: &[u8]) -> Self {
        use rustls::internal::msgs::codec::{Codec, Reader};
        Self::read(&mut Reader::init(bytes)).unwrap()
    }
}

#[test]
fn a_key_for_which_anybody_can_sign_is_refused() {
    let zeros = Base64::encode_string(&[0; 32]);
    assert!(anybody_can_sign([0; 32]), "the danger is real");
    assert!(!anybody_can_sign(
        PrivateKey::from_seed(&[1; 32]).public().0
    ));
    let message = public(&zeros).unwrap_err().to_string();
    assert!(message.starts_with("`AAAAAAAA…` is a public key that no private key belongs to"));
    for mut key in SMALL_ORDER {
        for sign in [0, 0x80] {
            key[31] = key[31] & 0x7f | sign;
            let error = public(&Base64::encode_string(&key)).unwrap_err();
            assert!(matches!(error, PublicKeyError::SmallOrder(_)));
        }
    }
}

#[test]
fn a_certificate_of_another_algorithm_or_length_has_no_key() {
    let good = [&SPKI_PREFIX[..], &[7; 32]].concat();
    assert!(PublicKey::from_spki(&good).is_some());
    assert_eq!(PublicKey::from_spki(&[&good[..], &[0]].concat()), None);
    for len in 0..good.len() {
        assert_eq!(PublicKey::from_spki(&good[..len]), None);
    }
    for at in 0..SPKI_PREFIX.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(PublicKey::from_spki(&bad), None);
    }
}

// === private keys ===

#[test]
fn a_text_without_an_ed25519_key_is_refused_without_its_content() {
    let body = PEM.lines().nth(1).unwrap();
    for bad in [
        String::new(),
        body.to_owned(),
        PEM.replace("PRIVATE", "ENCRYPTED PRIVATE"),
        PEM.replace("PRIVATE", "PUBLIC"),
        PEM.replace("PRIVATE", "EC PRIVATE"),
        PEM.replace("-----END PRIVATE KEY-----", ""),
        PEM.replace(body, &body[..60]),
        // X25519 instead (RFC 8410 section 3).
        PEM.replace("K2Vw", "K2Vu"),
        PEM.replace("MC4C", "MC8C"),
        PEM.replace("IJ1h", "I!1h"),
    ] {
        let error = PrivateKey::parse(bad.as_bytes()).unwrap_err();
        assert!(matches!(error, KeyError::NoKey), "{bad}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("taut mesh keygen") && !shown.contains(&body[21..]));
    }
    assert!(matches!(
        PrivateKey::parse(b"\xff\xfe"),
        Err(KeyError::NoKey)
    ));
}

#[test]
fn debug_does_not_print_a_private_key() {
    let key = PrivateKey::parse(PEM.as_bytes()).unwrap();
    assert_eq!(format!("{key:?}"), format!("PrivateKey(of {PUBLIC})"));
    let tls = crate::tls::DialTls::new(&key, &[]);
    let shown = format!("{tls:?}");
    assert!(!shown.contains("nWGxne") && !shown.contains("157, 97, 177"));
    assert!(!shown.to_lowercase().contains("9d61b19d"));
}

// === files ===

fn file(mode: u32, text: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text).unwrap();
    let permissions = std::fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(permissions).unwrap();
    file
}

fn load_fault(path: &Path) -> String {
    PrivateKey::load(path).unwrap_err().to_string()
}

#[test]
fn a_new_key_is_only_its_owners_and_never_replaces_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh.key");
    let key = PrivateKey::create(&path, &[7; 32]).unwrap();
    assert_eq!(PrivateKey::load(&path).unwrap().public(), key.public());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let before = std::fs::read(&path).unwrap();
    let message = PrivateKey::create(&path, &[8; 32]).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("{}: it exists", path.display())),
        "{message}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
    // Nor the file that a link leads to, even if it does not exist.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
    assert!(PrivateKey::create(&link, &[8; 32]).is_err());
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn a_key_of_openssl_is_read_and_openssl_reads_ours() {
    if !taut_sys_testing::skip::has_programs(&["openssl"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let openssl = |args: &[&str]| {
        let mut command = std::process::Command::new("openssl");
        command.current_dir(dir.path()).args(args).output().unwrap()
    };
    let made = openssl(&["genpkey", "-algorithm", "ed25519", "-out", "theirs"]);
    assert!(made.status.success());
    PrivateKey::create(&dir.path().join("ours"), &[7; 32]).unwrap();
    for name in ["theirs", "ours"] {
        let key = PrivateKey::load(&dir.path().join(name)).unwrap();
        let shown = openssl(&["pkey", "-in", name, "-pubout", "-outform", "DER"]);
        assert_eq!(PublicKey::from_spki(&shown.stdout), Some(key.public()));
    }
}

#[test]
fn a_file_that_only_its_owner_can_read_is_loaded() {
    for mode in [0o600, 0o400, 0o700] {
        let file = file(mode, PEM.as_bytes());
        let key = PrivateKey::load(file.path()).unwrap();
        assert_eq!(key.public().to_string(), PUBLIC);
    }
}

#[test]
fn a_file_that_others_can_read_or_write_is_refused_with_the_command_that_mends_it() {
    for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666] {
        let file = file(mode, PEM.as_bytes());
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
                "user 1001, who can change it: run `chown {user} /etc/taut/mesh.key`"
            )),
            "{message}"
        );
    }
}

#[test]
fn a_file_without_a_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load_fault(dir.path()).contains("not a regular file"));
    assert!(load_fault(&dir.path().join("none")).contains("cannot read"));
    // Opening the pipe does not wait for a writer.
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    assert!(load_fault(&pipe).contains("not a regular file"));
    assert!(load_fault(file(0o600, b"").path()).contains("contains no Ed25519"));
    assert!(load_fault(file(0o600, b"\xff").path()).contains("contains no Ed25519"));
    let mut long = PEM.as_bytes().to_vec();
    long.resize(MAX_FILE as usize + 1, b'\n');
    assert!(load_fault(file(0o600, &long).path()).contains("longer than"));
    assert!(PrivateKey::load(file(0o600, &long[1..]).path()).is_err());
    long.truncate(MAX_FILE as usize);
    assert!(PrivateKey::load(file(0o600, &long).path()).is_ok());
    let named = file(0o600, b"x");
    assert!(load_fault(named.path()).starts_with(&named.path().display().to_string()));
}

// === proof ===

#[test]
fn a_public_key_without_its_private_key_proves_nothing() {
    use crate::acceptor::{Local, Rejection};
    use crate::sim;
    use crate::tls::{AcceptTls, DialTls};

    let thief = |of: u8| PrivateKey {
        signing: sim::key(9).signing,
        public: sim::key(of).public,
    };
    let now = std::time::Instant::now();
    let dial = DialTls::new(&thief(2), &[sim::key(1).public()]);
    let (acceptor, seen, _) = sim::shake(&dial, &sim::local(), now);
    assert_eq!(seen, Err(Rejection::UnknownKey));
    assert!(!acceptor.is_proven());

    let members = sim::members();
    let local = Local {
        name: sim::name("a"),
        tls: AcceptTls::new(&thief(1), members.clone()),
        members,
    };
    let (acceptor, _, ready) = sim::shake(&sim::dial_tls(), &local, now);
    assert_eq!(ready.err(), Some(Rejection::UnknownKey));
    assert!(!acceptor.is_proven());
}

#[test]
fn a_signature_is_of_one_key_one_context_and_one_message() {
    let (key, other) = (
        PrivateKey::from_seed(&[1; 32]),
        PrivateKey::from_seed(&[2; 32]),
    );
    let signature = key.sign("context", b"message");
    assert!(key.public().verifies("context", b"message", &signature));
    assert!(!other.public().verifies("context", b"message", &signature));
    assert!(!key.public().verifies("contextm", b"essage", &signature));
    assert!(!key.public().verifies("context", b"massage", &signature));
    let mut changed = signature;
    changed[40] ^= 1;
    assert!(!key.public().verifies("context", b"message", &changed));
}
