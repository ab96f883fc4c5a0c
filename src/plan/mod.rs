//! From a topology and a message size to a schedule.
