//! DNS cookies ([RFC 7873](https://www.rfc-editor.org/rfc/rfc7873)): a client that sends back the cookie that this
//! server has given it has proven its address, which a query over UDP otherwise does not.
//!
//! The server's part of a cookie has the form of [RFC 9018](https://www.rfc-editor.org/rfc/rfc9018): a time and a
//! keyed hash, so that the server remembers no client.

use std::hash::Hasher as _;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;

/// The length of the client's part.
const CLIENT: usize = 8;

/// The length of this server's part (RFC 9018 section 4).
const SERVER: usize = 16;

/// The length of an option with both parts.
pub const LENGTH: usize = CLIENT + SERVER;

/// The version of the server's part, and three reserved bytes.
const VERSION: [u8; 4] = [1, 0, 0, 0];

/// How old a cookie may be, in seconds (RFC 9018 section 4.3).
const MAX_AGE: u32 = 3600;

/// How far in the future its time may be, in seconds.
const MAX_AHEAD: u32 = 300;

/// The server's secret.
#[derive(Clone)]
pub struct Cookies {
    secret: [u8; 16],
}

/// A cookie as a query has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// What the client has chosen; the answer repeats it.
    client: [u8; CLIENT],
    /// What a server has given it.
    server: ServerPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerPart {
    None,
    /// Of another length than this server gives.
    Foreign,
    Some([u8; SERVER]),
}

/// What a cookie proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The client has none of a server yet.
    New,
    /// This server has given it to this address, within the last hour.
    Proven,
    /// It has not, or too long ago: the cookie is forged, of another server, or of this one before a restart.
    Invalid,
}

// === impl Cookies ===

impl Cookies {
    /// Returns cookies of this secret, which must be random.
    pub fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// Returns what `cookie` from `source` proves at `now`, in seconds since 1970.
    pub fn check(&self, cookie: &Cookie, source: IpAddr, now: u32) -> Proof {
        let server = match cookie.server {
            ServerPart::None => return Proof::New,
            ServerPart::Foreign => return Proof::Invalid,
            ServerPart::Some(server) => server,
        };
        let [.., a, b, c, d] = *server.first_chunk::<8>().unwrap_or(&[0; 8]);
        let made = u32::from_be_bytes([a, b, c, d]);
        // Times wrap around (RFC 1982).
        let is_current = now.wrapping_sub(made) <= MAX_AGE || made.wrapping_sub(now) <= MAX_AHEAD;
        match is_current && self.server_part(cookie.client, source, made) == server {
            true => Proof::Proven,
            false => Proof::Invalid,
        }
    }

    /// Returns the option of the answer: the client's part, and a new one of this server.
    pub fn answer(&self, cookie: &Cookie, source: IpAddr, now: u32) -> [u8; LENGTH] {
        let mut option = [0; LENGTH];
        option[..CLIENT].copy_from_slice(&cookie.client);
        option[CLIENT..].copy_from_slice(&self.server_part(cookie.client, source, now));
        option
    }

    fn server_part(&self, client: [u8; CLIENT], source: IpAddr, made: u32) -> [u8; SERVER] {
        let mut part = [0; SERVER];
        part[..4].copy_from_slice(&VERSION);
        part[4..8].copy_from_slice(&made.to_be_bytes());
        let mut hash = SipHasher24::new_with_key(&self.secret);
        hash.write(&client);
        hash.write(&part[..8]);
        match source {
            IpAddr::V4(ip) => hash.write(&ip.octets()),
            IpAddr::V6(ip) => hash.write(&ip.octets()),
        }
        // RFC 9018 has the hash as the reference implementation of SipHash writes it.
        part[8..].copy_from_slice(&hash.finish().to_le_bytes());
        part
    }
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cookies").finish_non_exhaustive()
    }
}

// === impl Cookie ===

impl Cookie {
    /// Reads an option. Returns `None` if its length is wrong (RFC 7873 section 5.2.2).
    pub fn read(option: &[u8]) -> Option<Self> {
        let (client, server) = option.split_first_chunk::<CLIENT>()?;
        let server = match server.len() {
            0 => ServerPart::None,
            8..=32 => match server.try_into() {
                Ok(server) => ServerPart::Some(server),
                Err(_) => ServerPart::Foreign,
            },
            _ => return None,
        };
        Some(Self {
            client: *client,
            server,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let byte = |i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        std::array::from_fn(byte)
    }

    #[test]
    fn a_cookie_is_that_of_the_example_in_rfc_9018() {
        // Appendix A.1.
        let cookies = Cookies::new(bytes("e5e973e5a6b2a43f48e7dc849e37bfcf"));
        let asked = Cookie::read(&bytes::<8>("2464c4abcf10c957")).unwrap();
        let (source, now) = ("198.51.100.100".parse().unwrap(), 0x5cf7_9f11);
        assert_eq!(cookies.check(&asked, source, now), Proof::New);
        let answer = cookies.answer(&asked, source, now);
        let expected = "2464c4abcf10c957010000005cf79f111f8130c3eee29480";
        assert_eq!(answer, bytes(expected));
    }

    #[test]
    fn a_cookie_proves_one_address_for_an_hour() {
        let cookies = Cookies::new([7; 16]);
        let (source, other) = (
            "2001:db8::1".parse().unwrap(),
            "2001:db8::2".parse().unwrap(),
        );
        let now = u32::MAX - 10;
        let given = cookies.answer(&Cookie::read(&[1; 8]).unwrap(), source, now);
        let given = Cookie::read(&given).unwrap();
        let at = |source, now| cookies.check(&given, source, now);
        assert_eq!(at(source, now), Proof::Proven);
        assert_eq!(at(source, now.wrapping_add(MAX_AGE)), Proof::Proven);
        assert_eq!(at(source, now.wrapping_add(MAX_AGE + 1)), Proof::Invalid);
        assert_eq!(at(source, now - MAX_AHEAD), Proof::Proven);
        assert_eq!(at(source, now - MAX_AHEAD - 1), Proof::Invalid);
        assert_eq!(at(other, now), Proof::Invalid);
        let restarted = Cookies::new([8; 16]);
        assert_eq!(restarted.check(&given, source, now), Proof::Invalid);
    }

    #[test]
    fn a_cookie_of_another_length_is_malformed_or_of_another_server() {
        let read = |length: usize| Cookie::read(&vec![0; length]);
        assert!(
            [0, 7, 9, 15, 41]
                .iter()
                .all(|length| read(*length).is_none())
        );
        let (cookies, source) = (Cookies::new([7; 16]), "192.0.2.1".parse().unwrap());
        for length in [16, 23, 25, 40] {
            let foreign = read(length).unwrap();
            assert_eq!(cookies.check(&foreign, source, 0), Proof::Invalid);
        }
    }

    proptest! {
        #[test]
        fn a_changed_bit_proves_nothing(bit in 0usize..(8 * LENGTH), client: [u8; 8], now: u32) {
            let (cookies, source) = (Cookies::new([7; 16]), "192.0.2.1".parse().unwrap());
            let mut given = cookies.answer(&Cookie::read(&client).unwrap(), source, now);
            given[bit / 8] ^= 1 << (bit % 8);
            let cookie = Cookie::read(&given).unwrap();
            prop_assert_eq!(cookies.check(&cookie, source, now), Proof::Invalid);
        }
    }
}
