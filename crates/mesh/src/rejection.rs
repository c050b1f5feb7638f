//! The reasons for turning a peer away.

/// The reason why one end of a connection between relays turned the other away. Its label is the
/// `cause` in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The message is malformed: not a PROXY protocol header, inconsistent lengths, or a field that is
    /// missing, repeated or of the wrong length.
    #[error(
        "the peer did not send a message between relays: another program may be connecting to this port"
    )]
    BadFrame,
    /// The message exceeds the limit for its kind.
    #[error("the peer's message is longer than any message between relays")]
    TooLong,
    /// The peer uses another version of the hello.
    #[error(
        "the peer speaks another version of the hello: run the same release of Taut on both relays"
    )]
    Version,
    /// The first message was made with a key that this relay lacks.
    #[error("the peer uses a key that this relay lacks: compare the key files of the two relays")]
    WrongKey,
    /// The first message was valid, but its sender could not answer the challenge: it may be a replay.
    #[error("the peer's proof does not answer this connection's challenge: it may be a replay")]
    Replayed,
    /// The hello's MAC is wrong: the hello was altered in transit or copied from another connection.
    #[error("the hello does not belong to this connection: its traffic may be altered in transit")]
    Forged,
    /// The hello is genuine, but its destination is invalid.
    #[error("the peer's hello does not name a valid host and port as destination")]
    BadDestination,
    /// The hello is genuine, but its route is malformed or too long.
    #[error("the peer's hello has an invalid route")]
    BadRoute,
    /// The session has reached its limit of relays.
    #[error("the session has reached its limit of relays: the routes may contain a loop")]
    NoHops,
    /// The handshake was not complete in time.
    #[error("the peer did not complete the handshake in time")]
    TimedOutHandshake,
    /// No hello arrived before the connection's idle limit.
    #[error("the ready connection was not used before its idle limit")]
    TimedOutIdle,
    /// The hello had begun and was not complete in time.
    #[error("the peer began a hello and did not complete it in time")]
    TimedOutHello,
    /// The peer closed during the handshake or hello.
    #[error("the peer closed the connection before its handshake or hello was complete")]
    ClosedEarly,
}

impl Rejection {
    /// All rejections, in the order of [`Self::index`].
    pub const ALL: [Self; 13] = [
        Self::BadFrame,
        Self::TooLong,
        Self::Version,
        Self::WrongKey,
        Self::Replayed,
        Self::Forged,
        Self::BadDestination,
        Self::BadRoute,
        Self::NoHops,
        Self::TimedOutHandshake,
        Self::TimedOutIdle,
        Self::TimedOutHello,
        Self::ClosedEarly,
    ];

    /// Returns the name used in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::BadFrame => "bad_frame",
            Self::TooLong => "too_long",
            Self::Version => "version",
            Self::WrongKey => "wrong_key",
            Self::Replayed => "replayed",
            Self::Forged => "forged",
            Self::BadDestination => "bad_destination",
            Self::BadRoute => "bad_route",
            Self::NoHops => "no_hops",
            Self::TimedOutHandshake => "timed_out_handshake",
            Self::TimedOutIdle => "timed_out_idle",
            Self::TimedOutHello => "timed_out_hello",
            Self::ClosedEarly => "closed_early",
        }
    }

    /// Returns the position in [`Rejection::ALL`], for arrays of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rejection_has_its_own_index_and_label() {
        for (i, cause) in Rejection::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), i);
            assert_eq!(
                Rejection::ALL
                    .iter()
                    .filter(|c| c.label() == cause.label())
                    .count(),
                1
            );
        }
    }
}
