//! The reasons for turning a peer away.

use strum::{IntoStaticStr, VariantArray};

/// The reason why one end of a connection between relays turned the other away. Its label is the
/// `cause` in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Rejection {
    /// The message is malformed: not a PROXY protocol header, inconsistent lengths, or a field that is
    /// missing, repeated or of the wrong length.
    #[error("the peer did not send a hello: another program may be connecting to this port")]
    BadFrame,
    /// The hello exceeds the limit.
    #[error("the peer's message is longer than any hello")]
    TooLong,
    /// The peer uses another version of the hello.
    #[error(
        "the peer speaks another version of the hello: run the same release of Taut on both relays"
    )]
    Version,
    /// The peer's key is not that of a member, or not that of the member that was dialled.
    #[error(
        "the peer's key is not that of an expected member of the mesh: compare the lists of members of the two relays"
    )]
    UnknownKey,
    /// The peer refuses this relay's key.
    #[error(
        "the peer does not accept this relay's key: compare the peer's list of members with `taut mesh pubkey` here"
    )]
    KeyRefused,
    /// The peer broke TLS, or its records were altered in transit.
    #[error("the connection broke TLS: it may be altered in transit, or the peer is not a relay")]
    Tls,
    /// The connection is not protected, and its addresses are not in a trusted network.
    #[error(
        "the peer did not begin with TLS: list its network in trusted_networks of both relays, or of none"
    )]
    Unprotected,
    /// The hello is for another relay.
    #[error("the hello is for another relay: the peer's list of members has a wrong address")]
    Misdirected,
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
    /// The peer takes no more sessions on a connection that is ready: it is draining.
    #[error("the peer is draining")]
    Withdrawn,
    /// The peer has no room for another connection that is ready.
    #[error(
        "the peer has no room for more ready connections: raise its max_ready, or lower pool_max here"
    )]
    Full,
}

impl Rejection {
    /// All rejections, in the order of [`Self::index`].
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name used in metrics and logs.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// Returns the position in [`Rejection::ALL`], for arrays of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}
