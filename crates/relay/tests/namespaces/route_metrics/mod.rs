//! Routes with an initial congestion window and windows that follow the need, between hosts of a world.

mod cleanup;
mod node;
mod rig;
mod routes;
mod windows;
