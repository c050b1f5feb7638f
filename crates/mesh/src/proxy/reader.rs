//! Reading exactly one header from a stream, and no byte that comes after it.

use super::{Header, ProxyError, SIGNATURE, START_LEN};

/// How far a header has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least so many bytes more belong to it, and never 0.
    More(usize),
    /// It is whole, and so many bytes long; what comes after it is the stream.
    Whole(usize),
}

/// How many bytes more the header has that begins with `bytes`, of which at most `max` bytes are
/// accepted.
///
/// # Errors
/// [`ProxyError`], at the first byte that no header could have there.
pub fn needed(bytes: &[u8], max: usize) -> Result<Progress, ProxyError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        let text = b"PROXY ";
        let seen = bytes.len().min(text.len());
        return Err(if bytes[..seen] == text[..seen] {
            ProxyError::Text
        } else {
            ProxyError::Signature
        });
    }
    if let Some(&byte) = bytes.get(12) {
        if byte >> 4 != 2 {
            return Err(ProxyError::Version(byte >> 4));
        }
        if byte & 0x0f > 1 {
            return Err(ProxyError::Command(byte & 0x0f));
        }
    }
    if bytes.len() < START_LEN {
        return Ok(Progress::More(START_LEN - bytes.len()));
    }
    let len = START_LEN + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if len > max {
        return Err(ProxyError::TooLong { len, max });
    }
    Ok(match len.checked_sub(bytes.len()) {
        None | Some(0) => Progress::Whole(len),
        Some(more) => Progress::More(more),
    })
}

/// Reads a header from a stream: bytes are read into [`space`](Reader::space), and
/// [`advance`](Reader::advance) is told how many. Never more is asked for than belongs to the
/// header, so that what follows stays in the socket.
#[derive(Debug)]
pub struct Reader(Framer);

impl Reader {
    /// Of a header of at most `max` bytes (see [`MAX_HEADER`](super::MAX_HEADER)).
    pub fn new(max: usize) -> Self {
        Self(Framer::new(max))
    }

    /// Room for the bytes that come next. Not empty before the header is whole.
    pub fn space(&mut self) -> &mut [u8] {
        self.0.space()
    }

    /// `n` bytes were read into [`space`](Reader::space). The header, once it is whole.
    ///
    /// # Errors
    /// [`ProxyError`]; nothing more is to be read then.
    ///
    /// # Panics
    /// When `n` is more than there was room for.
    pub fn advance(&mut self, n: usize) -> Result<Option<Header>, ProxyError> {
        match self.0.advance(n)? {
            Some(bytes) => Header::decode(&bytes).map(Some),
            None => Ok(None),
        }
    }
}

/// Collects the bytes of one header after the other. Takes no memory of its own until the length
/// of a header is known, and then as much as that.
#[derive(Debug)]
pub(crate) struct Framer {
    start: [u8; START_LEN],
    /// The whole header, once its length is known; empty before.
    whole: Vec<u8>,
    filled: u16,
    max: u16,
}

impl Framer {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            start: [0; START_LEN],
            whole: Vec::new(),
            filled: 0,
            max: u16::try_from(max).unwrap_or(u16::MAX),
        }
    }

    /// From the next header on, `max` bytes are accepted.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = u16::try_from(max).unwrap_or(u16::MAX);
    }

    /// A header has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.filled > 0
    }

    /// Bytes of memory it holds beside itself.
    #[cfg(test)]
    pub(crate) fn heap(&self) -> usize {
        self.whole.capacity()
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        let filled = usize::from(self.filled);
        if self.whole.is_empty() {
            &mut self.start[filled..]
        } else {
            &mut self.whole[filled..]
        }
    }

    /// The bytes of the header when it is whole; the next one begins then.
    pub(crate) fn advance(&mut self, n: usize) -> Result<Option<Vec<u8>>, ProxyError> {
        assert!(
            n <= self.space().len(),
            "more bytes than there was room for"
        );
        // Fits: a header's length is at most `max`.
        self.filled += n as u16;
        let filled = usize::from(self.filled);
        let so_far = if self.whole.is_empty() {
            &self.start[..filled]
        } else {
            &self.whole[..filled]
        };
        match needed(so_far, usize::from(self.max))? {
            Progress::Whole(_) => {
                self.filled = 0;
                if self.whole.is_empty() {
                    return Ok(Some(self.start.to_vec()));
                }
                Ok(Some(std::mem::take(&mut self.whole)))
            }
            Progress::More(more) => {
                if filled == START_LEN {
                    self.whole = self.start.to_vec();
                    self.whole.resize(START_LEN + more, 0);
                }
                Ok(None)
            }
        }
    }
}
