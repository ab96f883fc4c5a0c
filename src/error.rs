//! The one error type. Every variant says what was wrong, where, and what to do about it.

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument of a collective call was refused; nothing was enqueued.
    #[error("{call} on rank {rank}: {argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// The method: `all_reduce`.
        call: &'static str,
        /// The rank that made the call.
        rank: usize,
        /// The argument's name.
        argument: &'static str,
        /// What was given.
        value: String,
        /// What would have been accepted.
        expected: String,
    },

    /// A setting, option or environment variable has a value that is not allowed.
    #[error("{name} is {value:?}, expected {expected}")]
    InvalidValue {
        /// The setting's name: `NCCL_ALGO`, `type`, `Config::ranks`.
        name: String,
        /// What was given.
        value: String,
        /// What would have been accepted.
        expected: String,
    },

    /// A file could not be read as what it should be.
    #[error("{file}{}: {reason}", line.map(|l| format!(" line {l}")).unwrap_or_default())]
    Parse {
        /// The file's name, or what stands for it.
        file: String,
        /// The line, counted from 1, where known.
        line: Option<usize>,
        /// What is wrong with it.
        reason: String,
    },

    /// The operating system refused something.
    #[error("{action}: {reason}")]
    System {
        /// What was attempted, with the object's name.
        action: String,
        /// The system's answer.
        reason: String,
    },

    /// A schedule failed verification: running it would give wrong data, hang, or corrupt an in-place buffer.
    #[error("schedule {schedule} is not valid: {reason}")]
    InvalidSchedule {
        /// The schedule's name: `ring all_reduce on 4 ranks`.
        schedule: String,
        /// Rank, worker and fold, and what is wrong there.
        reason: String,
    },

    /// No schedule fits the request.
    #[error("no plan for {request}: {reason}")]
    NoPlan {
        /// What was asked for.
        request: String,
        /// Why nothing fits, and what would.
        reason: String,
    },

    /// Two ranks have no way to move data.
    #[error("no transport from rank {from} to rank {to}: {reason}")]
    NoTransport {
        /// The sending rank.
        from: usize,
        /// The receiving rank.
        to: usize,
        /// Why each transport was refused, and what to change.
        reason: String,
    },

    /// Something this build or this machine does not have was asked for.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it is missing and what to install or change.
        reason: String,
    },

    /// A CUDA driver call failed.
    #[error("{call} failed on rank {rank} (device {device}): {reason}")]
    Cuda {
        /// The driver call: `cuMemAlloc_v2`.
        call: &'static str,
        /// The rank on whose behalf it was made.
        rank: usize,
        /// The CUDA ordinal of the device.
        device: usize,
        /// The driver's error name and text, with a hint where there is one.
        reason: String,
    },

    /// Ranks of one communicator made different calls as the same operation.
    #[error(
        "ranks disagree about operation {operation}: rank {rank} called {call}, rank {peer} called {peer_call}{}",
        if call == peer_call { "; their buffers are not registered alike, or at different offsets" } else { "" }
    )]
    Mismatch {
        /// The operation's number on this communicator.
        operation: u64,
        /// One rank.
        rank: usize,
        /// Its call.
        call: String,
        /// The other rank.
        peer: usize,
        /// The other's call.
        peer_call: String,
    },

    /// An operation did not finish in time.
    #[error("operation {operation} timed out after {seconds:.1} s on rank {rank}: {report}", seconds = *milliseconds as f64 / 1e3)]
    Timeout {
        /// The operation's number on this communicator.
        operation: u64,
        /// The rank that waited.
        rank: usize,
        /// How long it waited.
        milliseconds: u64,
        /// Which ranks are where.
        report: String,
    },

    /// The communicator was aborted, by this rank or another, and can only be dropped.
    #[error("the communicator was aborted on rank {rank}: {reason}")]
    Aborted {
        /// The rank that noticed.
        rank: usize,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// The same error under the name by which whoever gave the value knows the setting: a command-line option's, for
    /// example. Errors about anything else stay as they are.
    ///
    /// ```
    /// use ringleader::{Communicator, Config};
    ///
    /// let refused = Communicator::cpu(2, &Config::new().channels(99)).unwrap_err();
    /// assert_eq!(refused.named("Config::channels", "--channels").to_string(), "--channels is \"99\", expected 1 to 64");
    /// ```
    pub fn named(self, setting: &str, by: &str) -> Self {
        match self {
            Error::InvalidValue { name, value, expected } if name == setting => {
                Error::InvalidValue { name: by.into(), value, expected }
            }
            other => other,
        }
    }

    /// An [`Error::InvalidValue`].
    pub fn invalid_value(
        name: impl Into<String>,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Error::InvalidValue { name: name.into(), value: value.into(), expected: expected.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_sentences() {
        let e = Error::Parse { file: "topo.xml".into(), line: Some(3), reason: "no <system>".into() };
        assert_eq!(e.to_string(), "topo.xml line 3: no <system>");
        let e = Error::Timeout { operation: 7, rank: 1, milliseconds: 1500, report: "rank 0 is at 6".into() };
        assert_eq!(e.to_string(), "operation 7 timed out after 1.5 s on rank 1: rank 0 is at 6");
    }
}
