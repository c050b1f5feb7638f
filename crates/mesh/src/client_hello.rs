//! The server name in the ClientHello at the start of a TLS stream (RFC 8446 4.1.2, RFC 6066 3), for
//! forwards that choose a destination by it. The stream is read, not changed.
//!
//! This is not a TLS implementation: it accepts every hello whose framing is right, of any version, because
//! the destination decides what it supports. rustls' `Acceptor` rejects hellos that rustls could not serve.
//! The name is the one in the clear: with Encrypted Client Hello that is the outer name.

/// The largest accepted stream up to the end of the hello, in bytes, record headers included.
pub const MAX_HELLO: usize = 16 << 10;

/// RFC 8446 5.1: content type `handshake`.
const HANDSHAKE: u8 = 22;
/// RFC 8446 5.1: the longest fragment of a record.
const MAX_FRAGMENT: usize = 1 << 14;
/// RFC 8446 4: message type `client_hello`.
const CLIENT_HELLO: u8 = 1;
/// RFC 6066 3: extension `server_name`, and name type `host_name`.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

/// A complete hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The server name in lower case, without a trailing dot; `None` if the client names none, or one that
    /// is no host name and so in no configuration.
    pub server_name: Option<String>,
}

/// A stream that does not start with a valid hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientHelloError {
    /// The stream does not start with a TLS handshake.
    #[error("the stream does not begin with a TLS handshake")]
    NotTls,
    /// The hello is longer than [`MAX_HELLO`].
    #[error("the TLS ClientHello is longer than {MAX_HELLO} bytes")]
    TooLong,
    /// The hello is malformed; what is wrong.
    #[error("the TLS ClientHello is malformed: {0}")]
    Malformed(&'static str),
}

/// Reads a hello from the start of a stream and keeps the bytes.
#[derive(Debug, Default)]
pub struct Reader {
    /// Everything that was read.
    stream: Vec<u8>,
    /// The offset of the first record that is not in `message` yet.
    record: usize,
    /// The handshake message so far, without record headers.
    message: Vec<u8>,
}

// === impl Reader ===

impl Reader {
    /// Returns the largest number of bytes that the next [`push`](Self::push) accepts. Never 0 before the
    /// hello is complete or invalid.
    pub fn room(&self) -> usize {
        MAX_HELLO - self.stream.len()
    }

    /// Adds bytes of the stream. Returns the hello once it is complete; bytes after it may be among those
    /// that were added.
    ///
    /// # Errors
    /// [`ClientHelloError`] at the first byte that is invalid; do not add any further bytes then.
    ///
    /// # Panics
    /// If there are more bytes than [`room`](Self::room).
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<ClientHello>, ClientHelloError> {
        assert!(
            bytes.len() <= self.room(),
            "more bytes than there was room for"
        );
        self.stream.extend_from_slice(bytes);
        loop {
            let record = &self.stream[self.record..];
            check_start(record)?;
            let Some((header, rest)) = record.split_first_chunk::<RECORD_HEADER>() else {
                break;
            };
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            // RFC 8446 5.1: handshake records are never empty.
            if len == 0 || len > MAX_FRAGMENT {
                return Err(ClientHelloError::Malformed("the length of a record"));
            }
            let Some(fragment) = rest.get(..len) else {
                break;
            };
            self.message.extend_from_slice(fragment);
            self.record += RECORD_HEADER + len;
            if let Some(hello) = self.complete()? {
                return Ok(Some(hello));
            }
        }
        match self.room() {
            0 => Err(ClientHelloError::TooLong),
            _ => Ok(None),
        }
    }

    /// Returns everything that was read, for the destination.
    pub fn into_stream(self) -> Vec<u8> {
        self.stream
    }

    fn complete(&self) -> Result<Option<ClientHello>, ClientHelloError> {
        let [kind, len @ ..] = match self.message.first_chunk::<MESSAGE_HEADER>() {
            Some(header) => *header,
            None => match self.message.first() {
                Some(&kind) if kind != CLIENT_HELLO => return Err(ClientHelloError::NotTls),
                _ => return Ok(None),
            },
        };
        if kind != CLIENT_HELLO {
            return Err(ClientHelloError::NotTls);
        }
        let len = usize::from(len[0]) << 16 | usize::from(len[1]) << 8 | usize::from(len[2]);
        if MESSAGE_HEADER + len + RECORD_HEADER > MAX_HELLO {
            return Err(ClientHelloError::TooLong);
        }
        match self.message.get(MESSAGE_HEADER..MESSAGE_HEADER + len) {
            Some(body) => Ok(Some(ClientHello {
                server_name: server_name(body).map_err(ClientHelloError::Malformed)?,
            })),
            None => Ok(None),
        }
    }
}

/// Checks as much of a record's content type and version as there is.
fn check_start(record: &[u8]) -> Result<(), ClientHelloError> {
    match record {
        // The minor version of a record says nothing (RFC 8446 5.1).
        [] | [HANDSHAKE] | [HANDSHAKE, 3, ..] => Ok(()),
        _ => Err(ClientHelloError::NotTls),
    }
}

// === the message ===

type Parsed<T> = Result<T, &'static str>;

/// A vector of the TLS presentation language (RFC 8446 3.4) that is taken apart from its start.
struct Vector<'a>(&'a [u8]);

impl<'a> Vector<'a> {
    fn bytes(&mut self, n: usize, what: &'static str) -> Parsed<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(what)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self, what: &'static str) -> Parsed<u8> {
        self.bytes(1, what).map(|b| b[0])
    }

    fn u16(&mut self, what: &'static str) -> Parsed<u16> {
        self.bytes(2, what)
            .map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    /// Takes a vector whose length is given in one byte.
    fn vector8(&mut self, what: &'static str) -> Parsed<Vector<'a>> {
        let len = self.u8(what)?;
        self.bytes(usize::from(len), what).map(Vector)
    }

    /// Takes a vector whose length is given in two bytes.
    fn vector16(&mut self, what: &'static str) -> Parsed<Vector<'a>> {
        let len = self.u16(what)?;
        self.bytes(usize::from(len), what).map(Vector)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the server name of a ClientHello without its header.
fn server_name(body: &[u8]) -> Parsed<Option<String>> {
    let mut hello = Vector(body);
    hello.bytes(2, "its version")?;
    hello.bytes(32, "its random")?;
    hello.vector8("its session ID")?;
    hello.vector16("its cipher suites")?;
    hello.vector8("its compression methods")?;
    // Before TLS 1.3 a hello may end here.
    if hello.is_empty() {
        return Ok(None);
    }
    let mut extensions = hello.vector16("its extensions")?;
    if !hello.is_empty() {
        return Err("bytes after its extensions");
    }
    let mut name = None;
    while !extensions.is_empty() {
        let kind = extensions.u16("an extension")?;
        let data = extensions.vector16("an extension")?;
        // RFC 8446 4.2: an extension occurs once. Two names could mean one to the relay and another to
        // the destination.
        if kind == SERVER_NAME && name.replace(host_name(data)?).is_some() {
            return Err("two server_name extensions");
        }
    }
    Ok(name.flatten())
}

/// Returns the host name of a server_name extension, if it is one.
fn host_name(mut data: Vector<'_>) -> Parsed<Option<String>> {
    let mut list = data.vector16("its list of server names")?;
    if list.is_empty() || !data.is_empty() {
        return Err("its list of server names");
    }
    let mut found = None;
    while !list.is_empty() {
        let kind = list.u8("a server name")?;
        let name = list.vector16("a server name")?.0;
        // RFC 6066 3: one name of a type.
        if kind == HOST_NAME && found.replace(checked(name)).is_some() {
            return Err("two host names");
        }
    }
    Ok(found.flatten())
}

/// Returns a host name (RFC 1123 2.1, underscores allowed) as it is compared. Clients also send addresses,
/// ports and other text (RFC 6066 3 forbids them), which the destination may accept.
fn checked(name: &[u8]) -> Option<String> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let inner = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_';
    let is_label = |label: &[u8]| (1..=63).contains(&label.len()) && label.iter().all(inner);
    match std::str::from_utf8(name) {
        Ok(text) if name.len() <= 253 && name.split(|b| *b == b'.').all(is_label) => {
            Some(text.to_ascii_lowercase())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
