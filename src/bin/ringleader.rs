//! The `ringleader` command.
fn main() {}
