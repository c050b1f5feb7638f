//! Lines of a stream that arrives in pieces.

use super::{MAX_REPLY, ReplyError};

/// The part of a line that has arrived.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Takes a piece of the stream and returns the lines that it completes, without their ends and without
    /// empty ones.
    ///
    /// # Errors
    /// [`ReplyError::TooLong`] if a line is longer than [`MAX_REPLY`].
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, ReplyError> {
        let mut complete = Vec::new();
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            if self.0.len() + part.len() > MAX_REPLY {
                return Err(ReplyError::TooLong);
            }
            self.0.extend_from_slice(part);
            if self.0.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.0);
                let line = line.trim_ascii();
                if !line.is_empty() {
                    complete.push(line.to_vec());
                }
            }
        }
        Ok(complete)
    }
}
