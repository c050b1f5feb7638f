//! Early SYN on real devices: two namespaces, a link between them, and the program at the relay's
//! end.

mod flood;
mod gone;
mod identity;
mod joined;
mod mesh;
mod rig;
mod seen;
mod transparent;
