//! Why a peer was turned away.

/// Why one end of a connection between relays turned the other away. The label of each is the
/// `cause` in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Not a message of the handshake: no header of the PROXY protocol, lengths that do not fit, a
    /// field that is missing, there twice, or of the wrong length.
    #[error(
        "what the peer sent is not a message between relays: something else may be connecting to this port"
    )]
    BadFrame,
    /// Longer than any message of its kind may be.
    #[error("the peer's message is longer than one between relays can be")]
    TooLong,
    /// Another version of the hello.
    #[error(
        "the peer speaks another version of the hello: run the same release of Taut on both relays"
    )]
    Version,
    /// The first message was made with none of the keys held here.
    #[error("the peer holds none of the keys held here: compare the key files of the two relays")]
    WrongKey,
    /// The first message was right, but its sender could not answer the challenge: it may be a
    /// recording.
    #[error("the peer's proof does not answer this connection's challenge: it may be a recording")]
    Replayed,
    /// The hello's MAC does not fit: it was changed on its way, or taken from another connection.
    #[error(
        "the hello was not made for this connection by the peer that proved itself: somebody may be altering what relays send"
    )]
    Forged,
    /// The hello is genuine, but its destination is none.
    #[error("the peer's hello names no host and port that could be connected to")]
    BadDestination,
    /// The hello is genuine, but its list of relays is malformed or too long.
    #[error("the peer's hello has a route that cannot be followed")]
    BadRoute,
    /// The session has been through as many relays as it may.
    #[error(
        "the session has passed as many relays as it may: there may be a loop among the routes"
    )]
    NoHops,
    /// The handshake was not over in time.
    #[error("the peer did not complete the handshake in time")]
    TimedOutHandshake,
    /// No hello came for as long as a connection may be held ready.
    #[error("the connection was held ready for as long as it may be, and was not used")]
    TimedOutIdle,
    /// The hello had begun and was not complete in time.
    #[error("the peer began a hello and did not complete it in time")]
    TimedOutHello,
    /// The peer closed in the middle.
    #[error("the peer closed the connection before its handshake or hello was complete")]
    ClosedEarly,
}

impl Rejection {
    /// Every cause.
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

    /// The name used in metrics and logs.
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

    /// Its place in [`Rejection::ALL`], for a counter of each.
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_their_own_place_and_label() {
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
