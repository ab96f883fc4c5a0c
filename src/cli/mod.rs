//! The `ringleader` command.
