//! Settings of a communicator.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::schedule::{ALGORITHMS, Encoding};

/// Settings of a communicator, the same for all its ranks.
///
/// ```
/// use ringleader::Config;
/// use std::time::Duration;
///
/// let config = Config::new().algorithm("ring").channels(2).timeout(Duration::from_secs(30));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The algorithm to use where it can do the collective; chosen by size without.
    pub(crate) algorithm: Option<String>,
    /// How many channels share a message; chosen without.
    pub(crate) channels: Option<usize>,
    /// Lanes of each worker on a GPU; chosen by size without.
    pub(crate) lanes: Option<u32>,
    /// Bytes of a tile on a GPU; chosen by size without.
    pub(crate) tile_bytes: Option<usize>,
    /// How slots are encoded on a GPU; chosen by size without.
    pub(crate) encoding: Option<Encoding>,
    /// Operations that GPU ranks count as done already.
    pub(crate) operations_done: u64,
    /// Whether ranks on different GPUs may not write each other's memory.
    pub(crate) p2p_disabled: bool,
    /// Whether ranks may not meet in pinned host memory.
    pub(crate) shm_disabled: bool,
    /// How long an operation may wait without any progress.
    pub(crate) timeout: Option<Duration>,
    /// Whether to print what was set up.
    pub(crate) info: Option<bool>,
}

/// Most channels a message can be shared among.
const MAX_CHANNELS: usize = 64;

impl Config {
    /// The defaults: everything chosen by size, waits without limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses one algorithm, `ring`, `direct` or `one_shot`, for every collective it can do. The others stay as chosen.
    pub fn algorithm(mut self, name: impl Into<String>) -> Self {
        self.algorithm = Some(name.into());
        self
    }

    /// Shares every message among so many channels, 1 to 64.
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = Some(channels);
        self
    }

    /// Runs every worker of a GPU rank as so many thread blocks, 1 to 128; fewer where the device or the links' memory
    /// have no room for them.
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Encodes every message between GPU ranks like this where it fits; larger messages, or paths that break up 128-byte
    /// stores, fall back to bulk.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = Some(encoding);
        self
    }

    /// Starts the operation counter of GPU ranks at `count` rather than 0. Results do not depend on it; tests use it to
    /// see flags wrap around without four billion calls. At most 2^40.
    pub fn operations_done(mut self, count: u64) -> Self {
        self.operations_done = count;
        self
    }

    /// Cuts messages between GPU ranks into tiles of so many bytes, rounded down to a multiple of 128.
    pub fn tile_bytes(mut self, bytes: usize) -> Self {
        self.tile_bytes = Some(bytes);
        self
    }

    /// Whether ranks on different GPUs may write each other's memory over NVLink or PCIe. They may by default.
    pub fn p2p(mut self, allowed: bool) -> Self {
        self.p2p_disabled = !allowed;
        self
    }

    /// Whether ranks may meet in pinned host memory where P2P is not possible. They may by default.
    pub fn shm(mut self, allowed: bool) -> Self {
        self.shm_disabled = !allowed;
        self
    }

    /// Lets an operation fail with [`Error::Timeout`] when nothing has happened for so long.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Whether to print channels and transports to stderr at creation. By default the environment decides: yes with
    /// `NCCL_DEBUG=INFO`.
    pub fn info(mut self, print: bool) -> Self {
        self.info = Some(print);
        self
    }

    /// Settings from the environment: `NCCL_ALGO` (an algorithm's name), `NCCL_PROTO` (`Simple`, `LL`, `LL128`),
    /// `NCCL_P2P_DISABLE` and `NCCL_SHM_DISABLE` (0 or 1), `RINGLEADER_CHANNELS` (a number),
    /// `RINGLEADER_TIMEOUT` (seconds).
    ///
    /// # Errors
    /// [`Error::InvalidValue`] naming the variable.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut config = Config::new();
        if let Some(name) = get("NCCL_ALGO") {
            let name = name.to_ascii_lowercase();
            check_algorithm("NCCL_ALGO", &name)?;
            config.algorithm = Some(name);
        }
        for (name, flag) in
            [("NCCL_P2P_DISABLE", &mut config.p2p_disabled), ("NCCL_SHM_DISABLE", &mut config.shm_disabled)]
        {
            match get(name).as_deref() {
                None | Some("0") => {}
                Some("1") => *flag = true,
                Some(other) => return Err(Error::invalid_value(name, other, "0 or 1")),
            }
        }
        if let Some(name) = get("NCCL_PROTO") {
            let bad = |_| Error::invalid_value("NCCL_PROTO", &name, "Simple, LL or LL128");
            config.encoding = Some(name.parse().map_err(bad)?);
        }
        if let Some(text) = get("RINGLEADER_CHANNELS") {
            let channels = text.parse().unwrap_or(0);
            check_channels("RINGLEADER_CHANNELS", channels, &text)?;
            config.channels = Some(channels);
        }
        if let Some(text) = get("RINGLEADER_TIMEOUT") {
            let limit = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
            let bad = || Error::invalid_value("RINGLEADER_TIMEOUT", &text, "a number of seconds, such as 30");
            config.timeout = Some(limit.ok_or_else(bad)?);
        }
        Ok(config)
    }

    /// Checks what the builder methods took without looking.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(name) = &self.algorithm {
            check_algorithm("Config::algorithm", name)?;
        }
        if let Some(channels) = self.channels {
            check_channels("Config::channels", channels, &channels.to_string())?;
        }
        if self.operations_done > 1 << 40 {
            let value = self.operations_done.to_string();
            return Err(Error::invalid_value("Config::operations_done", value, "at most 2^40"));
        }
        if let Some(lanes) = self.lanes.filter(|l| !(1..=128).contains(l)) {
            return Err(Error::invalid_value("Config::lanes", lanes.to_string(), "1 to 128"));
        }
        if let Some(bytes) = self.tile_bytes.filter(|b| !(128..=1 << 24).contains(b)) {
            return Err(Error::invalid_value("Config::tile_bytes", bytes.to_string(), "128 to 16777216"));
        }
        Ok(())
    }

    /// Whether to print what was set up.
    pub(crate) fn wants_info(&self) -> bool {
        self.info.unwrap_or_else(|| {
            std::env::var("NCCL_DEBUG")
                .is_ok_and(|v| ["INFO", "TRACE"].contains(&v.to_ascii_uppercase().as_str()))
        })
    }
}

fn check_algorithm(setting: &str, name: &str) -> Result<()> {
    let known: Vec<_> = ALGORITHMS.iter().map(|a| a.name()).collect();
    match known.contains(&name) {
        true => Ok(()),
        false => Err(Error::invalid_value(setting, name, known.join(", "))),
    }
}

fn check_channels(setting: &str, channels: usize, text: &str) -> Result<()> {
    match (1..=MAX_CHANNELS).contains(&channels) {
        true => Ok(()),
        false => Err(Error::invalid_value(setting, text, format!("1 to {MAX_CHANNELS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config> {
        Config::from_variables(|n| variables.iter().find(|v| v.0 == n).map(|v| v.1.to_owned()))
    }

    #[test]
    fn the_environment_is_read_and_checked() {
        let config =
            from(&[("NCCL_ALGO", "Ring"), ("RINGLEADER_CHANNELS", "4"), ("RINGLEADER_TIMEOUT", "1.5")]);
        let expected = Config::new().algorithm("ring").channels(4).timeout(Duration::from_millis(1500));
        assert_eq!(config, Ok(expected));
        for bad in [("NCCL_ALGO", "tree!"), ("RINGLEADER_CHANNELS", "0"), ("RINGLEADER_TIMEOUT", "-1")] {
            let message = from(&[bad]).unwrap_err().to_string();
            assert!(message.contains(bad.0) && message.contains(bad.1), "{message}");
        }
    }
}
