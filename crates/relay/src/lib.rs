//! The split-TCP relay node.
#![forbid(unsafe_code)]
