use proptest::prelude::*;

use super::*;
use crate::fuzzing::client_hello as hello_bytes;

fn read(stream: &[u8]) -> Result<Option<ClientHello>, ClientHelloError> {
    Reader::default().push(stream)
}

fn named(name: Option<&str>) -> Result<Option<ClientHello>, ClientHelloError> {
    Ok(Some(ClientHello {
        server_name: name.map(str::to_owned),
    }))
}

/// An extension as it is sent.
fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of a server_name extension with these names.
fn names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, name) in names {
        list.push(*kind);
        list.extend((name.len() as u16).to_be_bytes());
        list.extend(*name);
    }
    let mut data = (list.len() as u16).to_be_bytes().to_vec();
    data.extend(list);
    data
}

fn hello_with(extensions: &[u8]) -> Vec<u8> {
    hello_bytes(Some(extensions), 1 << 14)
}

fn malformed(extensions: &[u8]) -> &'static str {
    match read(&hello_with(extensions)) {
        Err(ClientHelloError::Malformed(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hello_has_a_name_or_none() {
    let sni = |name: &[u8]| extension(SERVER_NAME, &names(&[(HOST_NAME, name)]));
    assert_eq!(
        read(&hello_with(&sni(b"A.Example."))),
        named(Some("a.example"))
    );
    // Other extensions around it (GREASE, ALPN), and bytes after the hello.
    let around = [extension(0x0a0a, b""), sni(b"b"), extension(16, b"\0\0")].concat();
    let mut stream = hello_with(&around);
    stream.extend(b"early data");
    assert_eq!(read(&stream), named(Some("b")));
    assert_eq!(read(&hello_with(&extension(16, b"x"))), named(None));
    assert_eq!(read(&hello_with(b"")), named(None));
    assert_eq!(read(&hello_bytes(None, 99)), named(None));
    // A name of another type is ignored.
    let other = extension(SERVER_NAME, &names(&[(7, b"x"), (HOST_NAME, b"c")]));
    assert_eq!(read(&hello_with(&other)), named(Some("c")));
}

#[test]
fn a_name_that_could_mean_two_things_is_refused() {
    let sni = extension(SERVER_NAME, &names(&[(HOST_NAME, b"a")]));
    assert_eq!(
        malformed(&[sni.clone(), sni].concat()),
        "two server_name extensions"
    );
    let two = names(&[(HOST_NAME, b"a"), (HOST_NAME, b"b")]);
    assert_eq!(malformed(&extension(SERVER_NAME, &two)), "two host names");
    for data in [&b""[..], b"\0\0", b"\0\x04\0\0\x01a!"] {
        malformed(&extension(SERVER_NAME, data));
    }
}

/// Its framing is right, and no configuration can list it.
#[test]
fn a_name_that_is_no_host_name_is_none() {
    for name in [
        &b""[..],
        b".",
        b"a..b",
        b"a b",
        b"a\0",
        b"\xe9",
        b"a:443",
        b"::1",
        b"a/b",
        b"*.a",
    ] {
        let sni = extension(SERVER_NAME, &names(&[(HOST_NAME, name)]));
        assert_eq!(read(&hello_with(&sni)), named(None), "{name:?}");
    }
}

#[test]
fn a_stream_that_is_not_tls_is_refused_at_its_first_bytes() {
    for stream in [
        &b"G"[..],
        b"SSH-2.0-x\r\n",
        b"\x16\x02",
        // A complete record of another type, and a handshake that is no hello (ServerHello).
        b"\x17\x03\x03\0\x01x",
        b"\x16\x03\x03\0\x01\x02",
        // SSL 2.0's hello.
        b"\x80\x2e\x01\x03\x01",
    ] {
        assert_eq!(read(stream), Err(ClientHelloError::NotTls), "{stream:?}");
    }
    for len in [&b"\0\0"[..], b"\x40\x01"] {
        let record = [b"\x16\x03\x01", len].concat();
        assert!(matches!(read(&record), Err(ClientHelloError::Malformed(_))));
    }
}

#[test]
fn a_hello_of_the_largest_size_fits_and_a_byte_more_does_not() {
    let padded = |n: usize| hello_with(&extension(21, &vec![0; n]));
    let most = MAX_HELLO - padded(0).len();
    assert_eq!(padded(most).len(), MAX_HELLO);
    assert_eq!(read(&padded(most)), named(None));
    let long = padded(most + 1);
    assert_eq!(read(&long[..MAX_HELLO]), Err(ClientHelloError::TooLong));
    // Announced as too long: refused before it has come.
    let start = b"\x16\x03\x01\0\x04\x01\0\x40\0";
    assert_eq!(read(start), Err(ClientHelloError::TooLong));
    // Short as a message, but in so many records that it does not fit.
    let records = hello_bytes(Some(&extension(21, &vec![0; 4000])), 1);
    assert!(records.len() > MAX_HELLO);
    assert_eq!(read(&records[..MAX_HELLO]), Err(ClientHelloError::TooLong));
}

proptest! {
    #[test]
    fn a_hello_is_read_in_any_pieces_and_records_and_its_bytes_are_kept(
        name in "[a-z0-9_-]{1,20}(\\.[a-z0-9-]{1,20}){0,3}",
        padding in 0..600_usize,
        record in 1..700_usize,
        sizes in prop::collection::vec(1..500_usize, 1..10),
        rest in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let sni = extension(SERVER_NAME, &names(&[(HOST_NAME, name.as_bytes())]));
        let extensions = [extension(21, &vec![0; padding]), sni].concat();
        let mut stream = hello_bytes(Some(&extensions), record);
        let len = stream.len();
        stream.extend(&rest);
        let mut reader = Reader::default();
        let (mut at, mut sizes) = (0, sizes.into_iter().cycle());
        let hello = loop {
            let n = sizes.next().unwrap().min(reader.room()).min(stream.len() - at);
            prop_assert!(n > 0, "it ends before the hello is complete");
            let read = reader.push(&stream[at..at + n]).unwrap();
            at += n;
            match read {
                Some(hello) => break hello,
                None => prop_assert!(at < len, "the hello has come"),
            }
        };
        prop_assert_eq!(hello.server_name, Some(name));
        prop_assert_eq!(reader.into_stream(), &stream[..at]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(stream in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzzing::client_hello_stream(&stream);
    }
}
