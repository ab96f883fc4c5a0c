//! Schedules: pure data that says which rank moves what, and when.
