//! TLS 1.3 in the kernel (the `tls` ULP; linux/tls.h, Documentation/networking/tls.rst): the socket
//! takes and gives plaintext, and the kernel makes and opens the records.
//!
//! A stream gets the ULP ([`attach`]) and then a key for each direction. From then on reads, writes and
//! splice(2) move plaintext. The other records (alerts, handshake messages) need [`recv`] and
//! [`send_record`].
//!
//! What TCP cannot take at once of a record that has been made stays in a queue of the kernel's. It is
//! neither in the send queue of TCP nor does close(2) or shutdown(2) wait for it: compare
//! [`records_made`] with [`written`] before either.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::size_of;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg, setsockopt};

use crate::Errno;
use crate::raw_sockopt::last_error;
use crate::socket::unacknowledged;
use crate::tcp_info::TcpInfo;

/// The bytes that a record adds to its plaintext: header, content type and tag (RFC 8446 section 5.2).
pub const RECORD_OVERHEAD: u64 = 5 + 1 + 16;

/// The longest plaintext of a record in bytes (RFC 8446 section 5.1).
pub const MAX_PLAINTEXT: usize = 1 << 14;

/// The content type of an alert (RFC 8446 appendix B.1).
const ALERT: u8 = 21;

/// The key of one direction of a connection, for ChaCha20-Poly1305 (RFC 8446 section 7.3).
#[derive(Clone, Copy)]
pub struct Key<'a> {
    /// The secret key.
    pub key: &'a [u8; 32],
    /// What the nonce of each record is made of.
    pub iv: &'a [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

/// What [`recv`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes of the stream, at least one.
    Data(usize),
    /// The content of an alert of this length.
    Alert(usize),
    /// A handshake message, or a part of one, of this length.
    Handshake(usize),
    /// A record of another type.
    Other,
    /// The end of the TCP stream.
    Fin,
}

/// Gives a connected stream the ULP. Until it has keys, it works as before.
///
/// # Errors
/// `ENOENT` if the kernel has no TLS and cannot load it (loading needs CAP_NET_ADMIN); `ENOTCONN` if the
/// stream is not connected; `EEXIST` if it has a ULP.
pub fn attach(stream: impl AsFd) -> Result<(), Errno> {
    setsockopt(&stream, TcpUlp::default(), b"tls").map_err(errno)
}

/// Sets the key for sending. All that is written from now on becomes records.
///
/// # Errors
/// `ENOENT` if the kernel lacks the cipher; `ENOMEM`; `EBUSY` if a key is set.
pub fn set_sending_key(stream: impl AsFd, key: &Key<'_>) -> Result<(), Errno> {
    setsockopt(&stream, TcpTlsTx, &key.info()).map_err(errno)
}

/// Sets the key for receiving. The next unread byte must be the first of a record.
///
/// # Errors
/// Those of [`set_sending_key`].
pub fn set_receiving_key(stream: impl AsFd, key: &Key<'_>) -> Result<(), Errno> {
    setsockopt(&stream, TcpTlsRx, &key.info()).map_err(errno)
}

/// Reads bytes of the stream, or one record of another type, into `buf`.
///
/// # Errors
/// `EAGAIN` if no whole record has arrived; `EBADMSG` if a record cannot be opened, `EMSGSIZE` or
/// `EINVAL` if it cannot be one; otherwise the connection's error.
pub fn recv(stream: impl AsFd, buf: &mut [u8]) -> Result<Received, Errno> {
    /// Space for the type of a record, aligned as the kernel's macros expect.
    #[repr(C, align(8))]
    struct Control([u8; 32]);
    let mut control = Control([0; 32]);
    let mut parts = [IoSliceMut::new(buf)];
    let message = recvmsg::<()>(
        stream.as_fd().as_raw_fd(),
        &mut parts,
        Some(&mut control.0),
        MsgFlags::empty(),
    )
    .map_err(errno)?;
    let len = message.bytes;
    let kind = message.cmsgs().map_err(errno)?.find_map(|c| match c {
        ControlMessageOwned::TlsGetRecordType(kind) => Some(kind),
        _ => None,
    });
    Ok(match kind {
        Some(TlsGetRecordType::Alert) => Received::Alert(len),
        Some(TlsGetRecordType::Handshake) => Received::Handshake(len),
        Some(TlsGetRecordType::ApplicationData) | None if len > 0 => Received::Data(len),
        Some(TlsGetRecordType::ApplicationData) | None => Received::Fin,
        Some(_) => Received::Other,
    })
}

/// Sends an alert: level and description (RFC 8446 section 6).
///
/// # Errors
/// Those of [`send_record`].
pub fn send_alert(stream: impl AsFd, alert: [u8; 2]) -> Result<(), Errno> {
    send_record(stream, ALERT, &alert)
}

/// Sends a record of this content type (RFC 8446 appendix B.1). `content` must fit in one.
///
/// # Errors
/// `EAGAIN` if the send queue is full; otherwise the connection's error.
pub fn send_record(stream: impl AsFd, kind: u8, content: &[u8]) -> Result<(), Errno> {
    const SPACE: usize = 32;
    #[repr(C, align(8))]
    struct Control([u8; SPACE]);
    let mut control = Control([0; SPACE]);
    let mut part = libc::iovec {
        iov_base: content.as_ptr().cast_mut().cast(),
        iov_len: content.len(),
    };
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: only computes a size.
    let space = unsafe { libc::CMSG_SPACE(1) } as usize;
    assert!(space <= SPACE, "a control message of one byte fits");
    message.msg_controllen = space;
    // SAFETY: `message` describes a control buffer of `space` bytes, aligned for `cmsghdr`, so its first
    // header exists, and one byte of data follows it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as usize;
        *libc::CMSG_DATA(header) = kind;
    }
    // SAFETY: the borrowed descriptor is open; all that `message` points to outlives the call, and the
    // kernel only reads it.
    let sent = unsafe {
        libc::sendmsg(
            stream.as_fd().as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Returns the number of the next record to be sent.
///
/// # Errors
/// `EBUSY` if the stream has no key for sending.
pub fn records_made(stream: impl AsFd) -> Result<u64, Errno> {
    type Info = libc::tls12_crypto_info_chacha20_poly1305;
    // SAFETY: the structure is plain data for which all zeroes is a valid value.
    let mut info: Info = unsafe { std::mem::zeroed() };
    #[expect(clippy::cast_possible_truncation, reason = "it has 56 bytes")]
    let mut len = size_of::<Info>() as libc::socklen_t;
    // SAFETY: the borrowed descriptor is open; the kernel writes at most `len` bytes, the size of `info`,
    // and the length to `len`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_TLS,
            libc::TLS_TX,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(u64::from_be_bytes(info.rec_seq)),
        _ => Err(last_error()),
    }
}

/// Returns the number of bytes that TCP has been given so far, plus a constant of the connection. Never more
/// than that; less if an acknowledgement arrives during the call.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel does not count the bytes acknowledged.
pub fn written(stream: impl AsFd) -> Result<u64, Errno> {
    let acknowledged = TcpInfo::of(&stream)?.bytes_acked;
    // Read later: what is acknowledged in between is missing instead of counted twice.
    let queued = unacknowledged(&stream) as u64;
    Ok(acknowledged.ok_or(Errno::OPNOTSUPP)? + queued)
}

/// Returns the same, but never less, or `None` if acknowledgements keep arriving.
///
/// # Errors
/// Those of [`written`].
pub fn exactly_written(stream: impl AsFd) -> Result<Option<u64>, Errno> {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let before = TcpInfo::of(&stream)?.bytes_acked;
        let written = written(&stream)?;
        if TcpInfo::of(&stream)?.bytes_acked == before {
            return Ok(Some(written));
        }
    }
    Ok(None)
}

/// Tries all of it on a connection of this process with itself on 127.0.0.1. Makes the kernel load its
/// module, if permitted.
///
/// # Errors
/// Those of the functions above; `ENOENT` if the kernel has no TLS, or not this cipher.
pub fn probe() -> Result<(), io::Error> {
    const WORD: &[u8] = b"taut";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    // Another process may connect first.
    let own = near.local_addr()?;
    let mut far = loop {
        match listener.accept()? {
            (far, from) if from == own => break far,
            _ => {}
        }
    };
    let key = Key {
        key: &[1; 32],
        iv: &[2; 12],
        sequence: 3,
    };
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        attach(stream)?;
        set_sending_key(stream, &key)?;
        set_receiving_key(stream, &key)?;
    }
    near.write_all(WORD)?;
    let mut word = [0; WORD.len()];
    far.read_exact(&mut word)?;
    send_alert(&far, [1, 0])?;
    let works = word == WORD
        && recv(&near, &mut word)? == Received::Alert(2)
        && records_made(&near)? == key.sequence + 1
        && written(&near).is_ok();
    match works {
        true => Ok(()),
        false => Err(Errno::PROTO.into()),
    }
}

// === impl Key ===

impl Key<'_> {
    fn info(&self) -> TlsCryptoInfo {
        TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
            info: libc::tls_crypto_info {
                version: libc::TLS_1_3_VERSION,
                cipher_type: libc::TLS_CIPHER_CHACHA20_POLY1305,
            },
            iv: *self.iv,
            key: *self.key,
            salt: [],
            rec_seq: self.sequence.to_be_bytes(),
        })
    }
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

#[cfg(test)]
mod tests;
