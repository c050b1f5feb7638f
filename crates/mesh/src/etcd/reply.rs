//! Replies of etcd. Unknown fields are ignored, because later versions add some.

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Deserializer};

use super::{Keys, Presence};
use crate::members::MAX_MEMBERS;
use crate::name::MemberName;

/// The number of characters of an error of etcd's that are kept.
const MAX_MESSAGE: usize = 200;

/// gRPC's `UNAUTHENTICATED`: the token is missing, unknown or too old.
const UNAUTHENTICATED: u32 = 16;

/// gRPC's `PERMISSION_DENIED`.
const PERMISSION_DENIED: u32 = 7;

/// The reason why a reply cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The reply is not what the call returns.
    #[error("etcd's answer is not understood: {0}")]
    Malformed(String),
    /// The reply is longer than [`super::MAX_REPLY`].
    #[error("etcd's answer is longer than {} bytes", super::MAX_REPLY)]
    TooLong,
    /// etcd has refused the call.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// An error that etcd returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("etcd: {message} (code {code})")]
pub struct Fault {
    /// The code of gRPC.
    pub code: u32,
    /// The text, without control characters, cut to 200 characters.
    pub message: String,
}

/// The list of members as it is in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The text of the list; `None` if the key does not exist.
    pub list: Option<String>,
    /// The revision of the store that was read. Changes after it are watched.
    pub revision: i64,
}

/// The relays that have announced themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Their names, in order.
    pub names: Vec<MemberName>,
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number.
    pub id: i64,
    /// Seconds until it expires.
    pub seconds: u64,
}

/// The outcome of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The relay is announced.
    Done,
    /// The name has been announced by this process; `None`: by something else than a relay.
    Taken(Option<Presence>),
}

/// A message of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watch has begun, or nothing has happened.
    Quiet,
    /// The list has changed. Of several changes this is the last.
    Changed(Offer),
    /// The watch has ended; the list must be read again. The reason is that the revision to begin with has
    /// been compacted, or that etcd has ended the watch.
    Ended {
        /// The revision has been compacted.
        compacted: bool,
    },
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "integer")]
    revision: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    key: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RangeReply {
    header: Header,
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct TokenReply {
    token: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LeaseReply {
    #[serde(rename = "ID", deserialize_with = "integer")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "integer")]
    ttl: i64,
}

/// A line of a stream.
#[derive(Deserialize)]
struct Streamed<T> {
    #[serde(default = "Option::default")]
    result: Option<T>,
    #[serde(default)]
    error: Option<ErrorReply>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorReply {
    #[serde(alias = "grpc_code")]
    code: u32,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TxnReply {
    succeeded: bool,
    responses: Vec<TxnResponse>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TxnResponse {
    #[serde(alias = "responseRange")]
    response_range: RangeReply,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WatchReply {
    header: Header,
    canceled: bool,
    #[serde(alias = "compactRevision", deserialize_with = "integer")]
    compact_revision: i64,
    events: Vec<Event>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event {
    /// Absent for a put, because that is the default.
    r#type: Option<String>,
    kv: KeyValue,
}

/// Reads the reply to [`super::authenticate`].
///
/// # Errors
/// [`ReplyError`].
pub fn token(body: &[u8]) -> Result<String, ReplyError> {
    let reply: TokenReply = parse(body)?;
    let is_sound = |token: &str| !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    Some(reply.token)
        .filter(|token| is_sound(token))
        .ok_or_else(|| ReplyError::Malformed("a token with other characters than ASCII's".into()))
}

/// Reads the reply to [`super::read_list`].
///
/// # Errors
/// [`ReplyError`].
pub fn offer(body: &[u8]) -> Result<Offer, ReplyError> {
    let reply: RangeReply = parse(body)?;
    let list = reply.kvs.first().map(|kv| text(&kv.value)).transpose()?;
    Ok(Offer {
        list,
        revision: reply.header.revision,
    })
}

/// Reads the reply to [`super::read_present`]. Keys that are no names of members are left out.
///
/// # Errors
/// [`ReplyError`].
pub fn present(body: &[u8], keys: &Keys) -> Result<Present, ReplyError> {
    let reply: RangeReply = parse(body)?;
    let start = keys.all_up();
    let name = |kv: &KeyValue| {
        let key = text(&kv.key).ok()?;
        key.strip_prefix(&start)?.parse().ok()
    };
    let names = reply.kvs.iter().take(MAX_MEMBERS).filter_map(name);
    Ok(Present {
        names: names.collect(),
    })
}

/// Reads the reply to [`super::grant`].
///
/// # Errors
/// [`ReplyError`].
pub fn lease(body: &[u8]) -> Result<Lease, ReplyError> {
    let reply: LeaseReply = parse(body)?;
    match (reply.id, u64::try_from(reply.ttl)) {
        (0, _) | (_, Err(_) | Ok(0)) => Err(ReplyError::Malformed("a lease without a term".into())),
        (id, Ok(seconds)) => Ok(Lease { id, seconds }),
    }
}

/// Reads the reply to [`super::keep`]: whether the lease still existed.
///
/// # Errors
/// [`ReplyError`].
pub fn check_kept(body: &[u8]) -> Result<bool, ReplyError> {
    let line = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(streamed::<LeaseReply>(line)?.ttl > 0)
}

/// Reads the reply to [`super::register`].
///
/// # Errors
/// [`ReplyError`].
pub fn registered(body: &[u8]) -> Result<Registered, ReplyError> {
    let reply: TxnReply = parse(body)?;
    if reply.succeeded {
        return Ok(Registered::Done);
    }
    let found = reply.responses.first();
    let found = found.and_then(|response| response.response_range.kvs.first());
    let value = found.and_then(|kv| Base64::decode_vec(&kv.value).ok());
    let presence = value.and_then(|value| Presence::decode(&value));
    Ok(Registered::Taken(presence))
}

/// Reads a line of the answer to [`super::watch_list`].
///
/// # Errors
/// [`ReplyError`].
pub fn watch_message(line: &[u8]) -> Result<WatchMessage, ReplyError> {
    let reply: WatchReply = streamed(line)?;
    let compacted = reply.compact_revision > 0;
    if reply.canceled || compacted {
        return Ok(WatchMessage::Ended { compacted });
    }
    let Some(last) = reply.events.last() else {
        return Ok(WatchMessage::Quiet);
    };
    let list = match last.r#type.as_deref() {
        None | Some("PUT") => Some(text(&last.kv.value)?),
        Some(_) => None,
    };
    Ok(WatchMessage::Changed(Offer {
        list,
        revision: reply.header.revision,
    }))
}

/// Reads the body of a reply whose status is not 200.
pub fn fault(status: u16, body: &[u8]) -> Fault {
    match serde_json::from_slice::<ErrorReply>(body) {
        Ok(reply) if !reply.message.is_empty() => reply.into(),
        // The gateway's own errors are text.
        _ => Fault {
            code: 0,
            message: clean(&format!(
                "HTTP status {status} {}",
                String::from_utf8_lossy(body)
            )),
        },
    }
}

// === impl Fault ===

impl Fault {
    /// Returns whether another token may help.
    pub fn wants_token(&self) -> bool {
        self.code == UNAUTHENTICATED
    }

    /// Returns whether this user may not do that, or is not known.
    pub fn is_denial(&self) -> bool {
        // etcd answers "user name is empty" and "authentication failed" with INVALID_ARGUMENT.
        self.code == PERMISSION_DENIED
            || self.code == UNAUTHENTICATED
            || self.message.contains("user name is empty")
            || self.message.contains("authentication failed")
    }
}

impl From<ErrorReply> for Fault {
    fn from(reply: ErrorReply) -> Self {
        Self {
            code: reply.code,
            message: clean(&reply.message),
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ReplyError> {
    serde_json::from_slice(body).map_err(|error| ReplyError::Malformed(clean(&error.to_string())))
}

fn streamed<'a, T: Deserialize<'a> + Default>(line: &'a [u8]) -> Result<T, ReplyError> {
    let reply: Streamed<T> = parse(line)?;
    match (reply.result, reply.error) {
        (_, Some(error)) => Err(ReplyError::Fault(error.into())),
        (Some(result), None) => Ok(result),
        (None, None) => Err(ReplyError::Malformed(
            "neither a result nor an error".into(),
        )),
    }
}

/// Returns what etcd stores. What is not UTF-8 is no list of members, and its signature will say so.
fn text(base64: &str) -> Result<String, ReplyError> {
    let malformed = |_| ReplyError::Malformed("a value that is not base64".into());
    let bytes = Base64::decode_vec(base64).map_err(malformed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns what may be logged of a text of etcd's.
fn clean(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(MAX_MESSAGE).collect()
}

/// Integers of 64 bits are text in proto3's JSON mapping; a number is accepted, too.
fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an integer, as text or as a number")]
    enum Integer {
        Number(i64),
        Text(String),
    }
    match Integer::deserialize(deserializer)? {
        Integer::Number(number) => Ok(number),
        Integer::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}
