//! Rows: what each relay has measured of its paths, and how all relays come to know it.
//!
//! A relay's [`Row`] has a [`Figure`] (round-trip times and loss) for each other member and for
//! prefixes and destinations outside the mesh. The relay signs it with its key, so that it can
//! travel through others: a relay speaks only for its own row, whoever delivers it. A [`Table`]
//! holds the newest row of each member, [`Exchange`] decides what is sent on which link and when,
//! and [`neighbours()`] which relays have a link. [`OwnRow`] turns samples into the relay's own row
//! and decides when a change is worth telling. `docs/design/mesh-rows.md` gives the reasons, the
//! bytes and the bounds.

mod exchange;
mod figure;
mod frame;
mod history;
mod key;
mod message;
mod meter;
mod neighbours;
mod own;
mod row;
mod shares;
#[cfg(test)]
pub(crate) mod sim;
mod table;

pub use self::exchange::{Exchange, LinkFault, LinkId, MAX_LINKS, RATE, Received, Traffic};
pub use self::figure::Figure;
pub use self::frame::{Frame, FrameError, Frames, MAX_FRAME};
pub use self::key::{Key, MemberId};
pub use self::message::{MessageError, RowMessage};
pub use self::meter::Meter;
pub use self::neighbours::{LINKS, neighbours};
pub use self::own::OwnRow;
pub use self::row::{MAX_OUTSIDE, MAX_WANTED, MemberEntry, OutsideEntry, Row, SignedRow};
pub use self::table::{Learned, MAX_AGE, MAX_BYTES, MAX_CLOCK_LAG, RowFault, Table};
