//! Connections between relays that carry no session yet: those dialled from here and those accepted.

pub(crate) mod inbound;
pub(crate) mod pool;
