//! Transports: where the memory of a link is, and how both sides reach it.

#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod local;
