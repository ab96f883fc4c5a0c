//! Transports: where the memory of a link is, and how both sides reach it.

pub(crate) mod local;
