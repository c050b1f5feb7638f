//! The fields of a hello, in a header of the PROXY protocol.

use crate::proxy::{self, Frame, ProxyError};
use crate::rejection::Rejection;

/// The version of the hello.
pub(crate) const VERSION: u8 = 2;

/// The longest accepted hello, in bytes: with all fields of the longest header that is passed on.
pub(crate) const MAX_HELLO: usize = 1024 + proxy::MAX_HEADER;

/// Types of TLVs, from the range that the PROXY protocol reserves for applications.
pub(crate) mod kind {
    pub(crate) const VERSION: u8 = 0xe0;
    pub(crate) const RECEIVER: u8 = 0xe1;
    pub(crate) const HOPS: u8 = 0xe2;
    pub(crate) const ROUTE: u8 = 0xe3;
    pub(crate) const PURPOSE: u8 = 0xe4;
    pub(crate) const PASSED: u8 = 0xe5;
}

/// A hello whose form was checked, and its fields.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    pub(crate) frame: Frame<'a>,
    fields: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Parses `bytes`, which must be one header.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Rejection> {
        let frame = Frame::parse(bytes).map_err(rejection)?;
        let (_, fields) = frame.split().map_err(rejection)?;
        for tlv in proxy::tlvs(fields) {
            tlv.map_err(rejection)?;
        }
        Ok(Self { frame, fields })
    }

    /// Returns the value of field `kind`, which must occur once and have `LEN` bytes.
    pub(crate) fn field<const LEN: usize>(&self, kind: u8) -> Result<[u8; LEN], Rejection> {
        let value = self.optional_field(kind)?.ok_or(Rejection::BadFrame)?;
        value.try_into().map_err(|_| Rejection::BadFrame)
    }

    /// Returns the value of field `kind`, which may occur at most once.
    pub(crate) fn optional_field(&self, kind: u8) -> Result<Option<&'a [u8]>, Rejection> {
        let mut found = proxy::tlvs(self.fields)
            .flatten()
            .filter(|(k, _)| *k == kind)
            .map(|(_, value)| value);
        match (found.next(), found.next()) {
            (value, None) => Ok(value),
            _ => Err(Rejection::BadFrame),
        }
    }

    /// Checks the version before all other fields, so that a relay of another release is reported as such.
    pub(crate) fn check_version(&self) -> Result<(), Rejection> {
        match self.field(kind::VERSION)? {
            [VERSION] => Ok(()),
            _ => Err(Rejection::Version),
        }
    }
}

/// Converts an error of the format.
pub(crate) fn rejection(error: ProxyError) -> Rejection {
    match error {
        ProxyError::TooLong { .. } => Rejection::TooLong,
        _ => Rejection::BadFrame,
    }
}
