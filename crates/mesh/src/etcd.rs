//! The requests of a relay to etcd, and their answers: the JSON gateway of etcd's API, version 3.
//!
//! The gateway takes each call as a POST with a JSON body. Keys and values are base64, integers of 64 bits
//! are text, and a field that has its default value is absent (proto3's JSON mapping). A watch is one POST
//! whose answer does not end: one JSON object a line.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | a reply, or a line of a watch | [`MAX_REPLY`] | the reply is an error |
//! | relays that have announced themselves | [`crate::members::MAX_MEMBERS`] | further ones are not listed |
//! | text of an error of etcd's | 200 characters | the rest is left out |

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::members::MAX_MEMBERS;
use crate::name::MemberName;

mod lines;
mod reply;

pub use lines::Lines;
pub use reply::{
    Fault, Lease, Offer, Present, Registered, ReplyError, WatchMessage, check_kept, fault, lease,
    offer, present, registered, token, watch_message,
};

/// The largest accepted reply in bytes: a list of the largest size in base64, and ample room.
pub const MAX_REPLY: usize = 4 << 20;

/// A call: the path that it is posted to, and its JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path, such as `/v3/kv/range`.
    pub path: &'static str,
    /// The body.
    pub body: String,
}

/// The keys of a mesh in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// A relay's announcement in etcd, under its lease. No decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// A random number of the process.
    pub instance: u128,
}

// === impl Keys ===

impl Keys {
    /// Creates the keys below `prefix`, such as `/taut`.
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.trim_end_matches('/').to_owned(),
        }
    }

    /// Returns the key of the signed list of members.
    pub fn members(&self) -> String {
        format!("{}/members", self.prefix)
    }

    /// Returns the key under which the relay `name` announces itself.
    pub fn up(&self, name: &MemberName) -> String {
        format!("{}/up/{name}", self.prefix)
    }

    /// Returns what the keys of all announcements begin with.
    fn all_up(&self) -> String {
        format!("{}/up/", self.prefix)
    }
}

// === impl Presence ===

impl Presence {
    fn encode(self) -> String {
        format!("{:032x}", self.instance)
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let text = str::from_utf8(value).ok().filter(|text| text.len() == 32)?;
        let instance = u128::from_str_radix(text, 16).ok()?;
        Some(Self { instance })
    }
}

// === requests ===

/// Asks for a token; see [`token`].
pub fn authenticate(user: &str, password: &str) -> Request {
    let body = json!({ "name": user, "password": password });
    request("/v3/auth/authenticate", &body)
}

/// Asks for the list of members; see [`offer`].
pub fn read_list(keys: &Keys) -> Request {
    request("/v3/kv/range", &json!({ "key": base64(&keys.members()) }))
}

/// Asks which relays have announced themselves; see [`present`].
pub fn read_present(keys: &Keys) -> Request {
    let start = keys.all_up();
    // `0` follows `/`, so this is the first key after all that begin with `start`.
    let end = format!("{}0", start.trim_end_matches('/'));
    let body = json!({
        "key": base64(&start),
        "range_end": base64(&end),
        "limit": MAX_MEMBERS.to_string(),
        "keys_only": true,
    });
    request("/v3/kv/range", &body)
}

/// Asks to be told each change of the list of members after `revision`; see [`watch_message`].
pub fn watch_list(keys: &Keys, revision: i64) -> Request {
    let body = json!({
        "create_request": {
            "key": base64(&keys.members()),
            "start_revision": revision.saturating_add(1).to_string(),
        }
    });
    request("/v3/watch", &body)
}

/// Asks for a lease of `seconds`; see [`lease`].
pub fn grant(seconds: u64) -> Request {
    request("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))
}

/// Asks for another term of a lease; see [`check_kept`].
pub fn keep(lease: i64) -> Request {
    request("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))
}

/// Gives a lease back, and with it what was announced under it.
pub fn revoke(lease: i64) -> Request {
    request("/v3/lease/revoke", &json!({ "ID": lease.to_string() }))
}

/// Announces a relay under a lease, unless its name is taken; see [`registered`].
pub fn register(keys: &Keys, name: &MemberName, presence: Presence, lease: i64) -> Request {
    let key = base64(&keys.up(name));
    let body = json!({
        "compare": [{ "target": "CREATE", "key": key, "createRevision": "0", "result": "EQUAL" }],
        "success": [{ "requestPut": put(&key, presence, lease) }],
        "failure": [{ "requestRange": { "key": key } }],
    });
    request("/v3/kv/txn", &body)
}

/// Announces a relay under another lease than before.
pub fn renew(keys: &Keys, name: &MemberName, presence: Presence, lease: i64) -> Request {
    let key = base64(&keys.up(name));
    request("/v3/kv/put", &put(&key, presence, lease))
}

fn put(key: &str, presence: Presence, lease: i64) -> Value {
    json!({ "key": key, "value": base64(&presence.encode()), "lease": lease.to_string() })
}

fn request(path: &'static str, body: &Value) -> Request {
    Request {
        path,
        body: body.to_string(),
    }
}

fn base64(text: &str) -> String {
    Base64::encode_string(text.as_bytes())
}

#[cfg(test)]
mod tests;
