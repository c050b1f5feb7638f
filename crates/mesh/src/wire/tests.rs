use super::*;
use crate::sim::*;

// Made by an independent program (Python's hmac and struct) from docs/design/mesh-hello.md, with the
// key, the nonces and the hello of `sim`. They may change only together with the version.
const OPENING: &str = concat!(
    "0d0a0d0a000d0a515549540a2000004ae0000101e10020d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1",
    "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1ef0020e17ce21bd76d1418feaf8b8dcc900efd006269e13a9b",
    "15f52a72a6ea1132d396",
);
const GREETING: &str = concat!(
    "0d0a0d0a000d0a515549540a2000004ae0000101e10020a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1",
    "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1ef002049e1e9c3f02091eb8e24ccbe86f3b7e868952103f743",
    "727ca2a19ff8f290ea20",
);
const PROOF: &str = concat!(
    "0d0a0d0a000d0a515549540a20000023ef00207cbf514445b4447fa5404cfda40c20fee0cd718161",
    "c7310c2993fa977f751dc1",
);
const HELLO: &str = concat!(
    "0d0a0d0a000d0a515549540a2111008ac0000201000000009c4001bbe0000101e200010805001007",
    "07070707070707070707070707070702000b6578616d706c652e6f7267e3002f030f72656c61792d",
    "622e6578616d706c651b580104c63364071b58021020010db80000000000000000000000071b58ef",
    "00201fc7608fe88d5e52d7c217a9f64ea132c8001c2d2ab7dc944645ab7473d5a5b8",
);

fn hex(bytes: &[u8]) -> String {
    format!("{:x}", base16ct::HexDisplay(bytes))
}

#[test]
fn messages_have_the_bytes_of_the_specification() {
    let now = std::time::Instant::now();
    let mut acceptor = accepted(now);
    let (ready, recording) = shake(&mut acceptor, &keys(), &keys(), THEIRS, now).unwrap();
    assert_eq!(hex(&recording.opening), OPENING);
    assert_eq!(hex(&recording.greeting), GREETING);
    assert_eq!(hex(&recording.proof), PROOF);
    assert_eq!(hex(&ready.hello(&hello())), HELLO);
}

#[test]
fn a_mac_is_valid_for_one_kind_key_and_pair_of_nonces() {
    let good = session().seal(Kind::Proof, proxy::bare_start(Command::Local));
    let sealed = Sealed::parse_handshake(&good).unwrap();
    assert!(session().is_sealed(Kind::Proof, &sealed));
    for kind in [Kind::Opening, Kind::Greeting, Kind::Hello] {
        assert!(!session().is_sealed(kind, &sealed));
    }
    let other_key = Session {
        key: key(2),
        ..session()
    };
    let swapped = Session {
        acceptor: THEIRS,
        dialler: OURS,
        ..session()
    };
    for other in [other_key, swapped] {
        assert!(!other.is_sealed(Kind::Proof, &sealed));
    }
}
