//! How messages follow one another on a link: a kind, a length, the message.

/// The longest message of a frame, in bytes. The longest row has about 60,000.
pub const MAX_FRAME: usize = 64 << 10;

/// The kind and the length before a message.
const HEAD: usize = 4;

/// The kinds of messages.
mod kind {
    pub(super) const SUMMARY: u8 = 1;
    pub(super) const ROW: u8 = 2;
    pub(super) const PING: u8 = 3;
    pub(super) const PONG: u8 = 4;
}

/// A message on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The versions of rows that the sender has: an ID of a member and a version, 12 bytes each.
    Summary(Vec<u8>),
    /// A row, whole or what has changed of it.
    Row(Vec<u8>),
    /// Asks for a [`Frame::Pong`] with the same bytes.
    Ping([u8; 8]),
    /// The answer.
    Pong([u8; 8]),
}

/// Bytes that are not frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than [`MAX_FRAME`].
    #[error("a message of {0} bytes; at most {MAX_FRAME} are accepted")]
    TooLong(usize),
    /// A message of fixed length has another one.
    #[error("a message of kind {0} has the wrong length")]
    Length(u8),
}

/// Collects the frames of a stream. Holds at most one incomplete frame.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    failed: Option<FrameError>,
}

// === impl Frame ===

impl Frame {
    /// Encodes the frame.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, message): (u8, &[u8]) = match self {
            Self::Summary(message) => (kind::SUMMARY, message),
            Self::Row(message) => (kind::ROW, message),
            Self::Ping(message) => (kind::PING, message),
            Self::Pong(message) => (kind::PONG, message),
        };
        let len = u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes();
        let mut bytes = Vec::with_capacity(HEAD + message.len());
        bytes.extend_from_slice(&[kind, len[1], len[2], len[3]]);
        bytes.extend_from_slice(message);
        bytes
    }

    /// Returns the frame of this kind, or `None` if this release does not know it: a later one may
    /// send more.
    fn decode(kind: u8, message: &[u8]) -> Result<Option<Self>, FrameError> {
        let eight = || message.try_into().map_err(|_| FrameError::Length(kind));
        Ok(Some(match kind {
            kind::SUMMARY => Self::Summary(message.to_vec()),
            kind::ROW => Self::Row(message.to_vec()),
            kind::PING => Self::Ping(eight()?),
            kind::PONG => Self::Pong(eight()?),
            _ => return Ok(None),
        }))
    }
}

// === impl Frames ===

impl Frames {
    /// Adds bytes of the stream and appends the frames that are complete to `frames`.
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be continued, and later calls return the same error.
    pub fn receive(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.bytes.extend_from_slice(bytes);
        let mut rest = &self.bytes[..];
        let ended = loop {
            let &[kind, a, b, c, ref after @ ..] = rest else {
                break Ok(());
            };
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            if len > MAX_FRAME {
                break Err(FrameError::TooLong(len));
            }
            let Some((message, after)) = after.split_at_checked(len) else {
                break Ok(());
            };
            match Frame::decode(kind, message) {
                Ok(frame) => frames.extend(frame),
                Err(error) => break Err(error),
            }
            rest = after;
        };
        self.failed = ended.err();
        self.bytes = match self.failed {
            None => rest.to_vec(),
            Some(_) => Vec::new(),
        };
        ended
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let message = prop::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            message.clone().prop_map(Frame::Summary),
            message.prop_map(Frame::Row),
            any::<[u8; 8]>().prop_map(Frame::Ping),
            any::<[u8; 8]>().prop_map(Frame::Pong),
        ]
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_however_the_stream_is_cut(
            sent in prop::collection::vec(any_frame(), 0..10), size in 1_usize..50,
        ) {
            let stream: Vec<u8> = sent.iter().flat_map(Frame::encode).collect();
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for piece in stream.chunks(size) {
                frames.receive(piece, &mut got).unwrap();
                prop_assert!(frames.bytes.len() < HEAD + MAX_FRAME);
            }
            prop_assert_eq!(got, sent);
        }
    }

    #[test]
    fn a_long_message_is_refused_before_it_has_arrived_and_an_unknown_kind_is_skipped() {
        let mut got = Vec::new();
        let error = Frames::default().receive(&[kind::ROW, 1, 0, 1], &mut got);
        assert_eq!(error, Err(FrameError::TooLong((64 << 10) + 1)));
        let ping = Frame::Ping([7; 8]);
        let stream = [vec![99, 0, 0, 2, 1, 1], ping.encode()].concat();
        Frames::default().receive(&stream, &mut got).unwrap();
        assert_eq!(got, [ping]);
    }
}
