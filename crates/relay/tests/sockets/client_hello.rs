//! A TLS ClientHello, as a client sends it.

/// Returns a hello with this server name, in records of at most `record` bytes.
pub(crate) fn client_hello(name: Option<&str>, record: usize) -> Vec<u8> {
    let with_len = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let server_name = |name: &str| {
        let entry = [&[0][..], &with_len(name.as_bytes())].concat();
        [&[0, 0][..], &with_len(&with_len(&entry))].concat()
    };
    // supported_versions: TLS 1.3.
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
    extensions.extend(name.map(server_name).unwrap_or_default());
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    // No session ID, one cipher suite, no compression.
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend(with_len(&extensions));
    let len = (body.len() as u32).to_be_bytes();
    let message = [&[1, len[1], len[2], len[3]], &body[..]].concat();
    let records = message
        .chunks(record)
        .map(|fragment| [&[22, 3, 1][..], &with_len(fragment)].concat());
    records.flatten().collect()
}
