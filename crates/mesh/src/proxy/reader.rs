//! Reads one header from a stream.

use super::{Header, ProxyError, SIGNATURE, START_LEN, text};

/// The progress of reading a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The header has at least this many more bytes, never 0.
    More(usize),
    /// The header is complete and has this length in bytes; the stream follows.
    Whole(usize),
}

/// Returns how many more bytes a header of version 2 has that begins with `bytes`. Accepts headers of at most `max`
/// bytes.
///
/// # Errors
/// [`ProxyError`] at the first byte that is invalid in a header.
pub fn needed(bytes: &[u8], max: usize) -> Result<Progress, ProxyError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        let seen = bytes.len().min(text::PREFIX.len());
        return Err(if bytes[..seen] == text::PREFIX[..seen] {
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

/// Reads one header, of version 1 or 2, from a stream. Read bytes into [`space`](Reader::space), then call
/// [`advance`](Reader::advance) with their number. The length of a header of version 1 is not known before its
/// end, so that bytes of the stream after it may be read, too; [`into_rest`](Reader::into_rest) returns them.
#[derive(Debug)]
pub struct Reader {
    framer: Framer,
    /// The line of version 1, and what has been read after it.
    text: Vec<u8>,
    /// The number of bytes in `text` that have been read.
    read: usize,
    /// The length of the line, once it is known.
    line: usize,
}

impl Reader {
    /// Creates a reader of a header of at most `max` bytes (see [`MAX_HEADER`](super::MAX_HEADER)).
    pub fn new(max: usize) -> Self {
        Self {
            framer: Framer::new(max),
            text: Vec::new(),
            read: 0,
            line: 0,
        }
    }

    /// Returns the buffer for the next bytes, which is not empty before the header is complete.
    pub fn space(&mut self) -> &mut [u8] {
        match self.text.is_empty() {
            true => self.framer.space(),
            false => &mut self.text[self.read..],
        }
    }

    /// Processes `n` bytes that were read into [`space`](Reader::space). Returns the header once it is
    /// complete.
    ///
    /// # Errors
    /// [`ProxyError`]; do not read any further then.
    ///
    /// # Panics
    /// If `n` exceeds the buffer.
    pub fn advance(&mut self, n: usize) -> Result<Option<Header>, ProxyError> {
        if self.text.is_empty() {
            match self.framer.advance(n) {
                Ok(Some(bytes)) => return Header::decode(&bytes).map(Some),
                Ok(None) => return Ok(None),
                Err(ProxyError::Text) => {
                    self.text = vec![0; text::MAX_LINE];
                    let start = self.framer.arrived();
                    self.text[..start.len()].copy_from_slice(start);
                    self.read = start.len();
                }
                Err(error) => return Err(error),
            }
        } else {
            assert!(
                n <= self.text.len() - self.read,
                "more bytes than there was room for"
            );
            self.read += n;
        }
        let Some((header, len)) = text::parse(&self.text[..self.read])? else {
            return Ok(None);
        };
        self.line = len;
        Ok(Some(header))
    }

    /// Returns the bytes after the header that have been read.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.text.truncate(self.read);
        self.text.split_off(self.line)
    }
}

/// Collects the bytes of one header after another. Allocates memory only once the length of a header is
/// known, and exactly that much.
#[derive(Debug)]
pub(crate) struct Framer {
    start: [u8; START_LEN],
    /// The buffer of the header, once its length is known; empty before.
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

    /// Returns whether a byte of the current header has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.filled > 0
    }

    /// Returns the size of its heap memory in bytes.
    #[cfg(test)]
    pub(crate) fn heap(&self) -> usize {
        self.whole.capacity()
    }

    /// Returns the bytes of the start of the header that have arrived.
    fn arrived(&self) -> &[u8] {
        &self.start[..usize::from(self.filled).min(START_LEN)]
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        let filled = usize::from(self.filled);
        if self.whole.is_empty() {
            &mut self.start[filled..]
        } else {
            &mut self.whole[filled..]
        }
    }

    /// Returns the bytes of the header once it is complete, and begins the next one.
    pub(crate) fn advance(&mut self, n: usize) -> Result<Option<Vec<u8>>, ProxyError> {
        assert!(
            n <= self.space().len(),
            "more bytes than there was room for"
        );
        // No overflow: a header's length is at most `max`.
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
