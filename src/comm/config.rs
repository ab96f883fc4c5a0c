//! Settings of a communicator.

use std::path::PathBuf;
use std::time::Duration;

use super::env::Variables;
use crate::error::{Error, Result};
use crate::plan::Limits;
use crate::schedule::{ALGORITHMS, Encoding};
use crate::topology::PathType;

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
    /// From how many bytes of the whole message on copy engines move data between registered buffers.
    pub(crate) copies_from: Option<usize>,
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
    /// The algorithms that the planner may choose from; all if empty.
    pub(crate) algorithms: Vec<String>,
    /// The encodings that the planner may choose from; all if empty.
    pub(crate) protocols: Vec<Encoding>,
    /// The farthest path over which ranks write each other's memory.
    pub(crate) p2p_level: Option<PathType>,
    /// Thread blocks of a rank: at least, and at most.
    pub(crate) min_blocks: Option<u32>,
    pub(crate) max_blocks: Option<u32>,
    /// Where to write plans, in the form of `ringleader plan --json`.
    pub(crate) graph_dump_file: Option<PathBuf>,
    /// The machine, in place of detection.
    pub(crate) topo_file: Option<PathBuf>,
    /// Where to write the machine.
    pub(crate) topo_dump_file: Option<PathBuf>,
    /// How much to say, about what, and where.
    pub(crate) debug: Option<DebugLevel>,
    pub(crate) debug_subsystems: Vec<Subsystem>,
    pub(crate) debug_file: Option<PathBuf>,
}

/// How much a communicator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DebugLevel {
    /// Nothing.
    None,
    /// The version.
    Version,
    /// What is wrong.
    Warn,
    /// What was set up.
    Info,
    /// Every call.
    Trace,
}

impl DebugLevel {
    /// The level of a name as `NCCL_DEBUG` has it.
    pub(super) fn read(name: &str) -> Option<Self> {
        Some(match name.to_ascii_uppercase().as_str() {
            "NONE" => DebugLevel::None,
            "VERSION" => DebugLevel::Version,
            "WARN" => DebugLevel::Warn,
            "INFO" => DebugLevel::Info,
            "TRACE" => DebugLevel::Trace,
            _ => return None,
        })
    }
}

macro_rules! subsystems {
    ($($name:ident = $text:literal, $doc:literal;)*) => {
        /// What a message is about, by NCCL's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Subsystem {
            $(#[doc = $doc] $name,)*
        }

        impl Subsystem {
            /// All of them.
            pub const ALL: &[Subsystem] = &[$(Subsystem::$name),*];

            /// The name as `NCCL_DEBUG_SUBSYS` has it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Subsystem::$name => $text,)*
                }
            }
        }
    };
}

subsystems! {
    Init = "INIT", "Creation of communicators.";
    Coll = "COLL", "Collective calls.";
    P2p = "P2P", "Peer access.";
    Shm = "SHM", "Shared memory.";
    Net = "NET", "Networks; never used.";
    Graph = "GRAPH", "The machine and the plans.";
    Tuning = "TUNING", "Choices by size.";
    Env = "ENV", "Environment variables.";
    Alloc = "ALLOC", "Memory.";
    Call = "CALL", "Calls of the interface.";
    Proxy = "PROXY", "Helper threads; there are none.";
    Nvls = "NVLS", "In-switch reduction; never used.";
    Bootstrap = "BOOTSTRAP", "How ranks find each other.";
    Reg = "REG", "Registered buffers.";
    Profile = "PROFILE", "Profiling.";
    Ras = "RAS", "Health of ranks.";
}

/// Most channels a message can be shared among.
const MAX_CHANNELS: usize = 64;

impl Config {
    /// The defaults: everything chosen by size, waits without limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses one algorithm, `ring`, `tree`, `direct` or `one_shot`, for every collective it can do. The others stay as chosen.
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

    /// From how many bytes of the whole message on copy engines move data between registered buffers
    /// ([`Communicator::register`](super::Communicator::register)); without, from 64 MiB, or 256 MiB for reductions, and never
    /// where ranks share a device: there a stream that waits for a peer can hold up the queue that the peer's work is in, and
    /// only a large `CUDA_DEVICE_MAX_CONNECTIONS` makes that unlikely.
    pub fn copies_from(mut self, bytes: usize) -> Self {
        self.copies_from = Some(bytes);
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

    /// Lets an operation fail with [`Error::Timeout`] when nothing has happened for so long; without, ranks wait for ever.
    ///
    /// On CPU ranks the time begins anew whenever the waiting rank gets something to do. On GPU ranks it begins when
    /// [`OnStream::synchronize`](super::OnStream::synchronize) is called, the only call that waits; what is waited for some
    /// other way has no limit. The rank whose time is up gets [`Error::Timeout`] with what the other ranks are doing, all others
    /// [`Error::Aborted`], and the communicator can only be dropped.
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

    /// Lets the planner choose from these algorithms only: `ring`, `tree`, `direct`, `one_shot`, `forest`.
    pub fn algorithms<I: IntoIterator<Item: Into<String>>>(mut self, names: I) -> Self {
        self.algorithms = names.into_iter().map(Into::into).collect();
        self
    }

    /// Lets the planner choose from these encodings only.
    pub fn encodings(mut self, encodings: impl Into<Vec<Encoding>>) -> Self {
        self.protocols = encodings.into();
        self
    }

    /// The farthest path over which ranks may write each other's memory; beyond it they meet in host memory.
    pub fn p2p_level(mut self, level: PathType) -> Self {
        self.p2p_level = Some(level);
        self.p2p_disabled |= level == PathType::Loc;
        self
    }

    /// Gives a rank at least and at most so many thread blocks.
    pub fn blocks(mut self, at_least: u32, at_most: u32) -> Self {
        (self.min_blocks, self.max_blocks) = (Some(at_least), Some(at_most));
        self
    }

    /// Plans for the machine in this file instead of the one that is detected.
    pub fn topology_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.topo_file = Some(path.into());
        self
    }

    /// Writes the machine to this file, as NCCL topology XML.
    pub fn topology_dump_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.topo_dump_file = Some(path.into());
        self
    }

    /// Writes plans to this file.
    pub fn graph_dump_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.graph_dump_file = Some(path.into());
        self
    }

    /// How much to say.
    pub fn debug(mut self, level: DebugLevel) -> Self {
        self.debug = Some(level);
        self
    }

    /// What to say something about; NCCL's default without.
    pub fn debug_subsystems(mut self, subsystems: impl Into<Vec<Subsystem>>) -> Self {
        self.debug_subsystems = subsystems.into();
        self
    }

    /// Where to say it: a file, in whose name `%h` is the host and `%p` the process.
    pub fn debug_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.debug_file = Some(path.into());
        self
    }

    /// What a plan may use under these settings, for a GPU with one rank.
    pub fn limits(&self) -> Limits {
        let default = Limits::default();
        let algorithms = match &self.algorithm {
            Some(name) => vec![name.clone()],
            None => self.algorithms.clone(),
        };
        Limits {
            algorithms,
            encodings: self.encoding.map_or_else(|| self.protocols.clone(), |only| vec![only]),
            max_blocks: self.max_blocks.unwrap_or(default.max_blocks),
            min_blocks: self.min_blocks,
            tile_bytes: self.tile_bytes,
            p2p: !self.p2p_disabled,
            ..default
        }
    }

    /// The file with the machine, if one was given.
    pub fn topology_path(&self) -> Option<&std::path::Path> {
        self.topo_file.as_deref()
    }

    /// Settings from the environment: NCCL's variables as far as they mean something in one host, `RINGLEADER_CHANNELS` (a
    /// number) and `RINGLEADER_TIMEOUT` (seconds). `docs/environment.md` has the table. A variable of NCCL that is not
    /// known is named on stderr, once.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] naming the variable, its value and what is allowed.
    pub fn from_env() -> Result<Self> {
        let variables = Variables::of_process();
        let config = variables.config()?;
        variables.warn();
        Ok(config)
    }

    /// Checks what the builder methods took without looking.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(name) = &self.algorithm {
            check_algorithm("Config::algorithm", name)?;
        }
        for name in self.algorithms.iter().filter(|name| *name != "forest") {
            check_algorithm("Config::algorithms", name)?;
        }
        let blocks = [self.min_blocks, self.max_blocks].into_iter().flatten();
        if let Some(bad) = blocks.into_iter().find(|blocks| !(1..=1024).contains(blocks)) {
            return Err(Error::invalid_value("Config::blocks", bad.to_string(), "1 to 1024"));
        }
        if let (Some(min), Some(max)) = (self.min_blocks, self.max_blocks)
            && min > max
        {
            let expected = format!("at most the maximum, which is {max}");
            return Err(Error::invalid_value("Config::blocks", min.to_string(), expected));
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

    /// How much to say: as set here, else as `NCCL_DEBUG` says, else nothing.
    pub(super) fn debug_level(&self) -> DebugLevel {
        match self.info {
            Some(true) => self.debug.map_or(DebugLevel::Info, |level| level.max(DebugLevel::Info)),
            Some(false) => DebugLevel::None,
            None => self
                .debug
                .or_else(|| std::env::var("NCCL_DEBUG").ok().and_then(|v| DebugLevel::read(&v)))
                .unwrap_or(DebugLevel::None),
        }
    }
}

fn check_algorithm(setting: &str, name: &str) -> Result<()> {
    let known: Vec<_> = ALGORITHMS.iter().map(|a| a.name()).collect();
    match known.contains(&name) {
        true => Ok(()),
        false => Err(Error::invalid_value(setting, name, known.join(", "))),
    }
}

pub(super) fn check_channels(setting: &str, channels: usize, text: &str) -> Result<()> {
    match (1..=MAX_CHANNELS).contains(&channels) {
        true => Ok(()),
        false => Err(Error::invalid_value(setting, text, format!("1 to {MAX_CHANNELS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_set_what_the_planner_may_use() {
        let config = Config::new().algorithms(["ring", "forest"]).blocks(2, 16).p2p_level(PathType::Loc);
        let limits = config.limits();
        assert_eq!((limits.min_blocks, limits.max_blocks, limits.p2p), (Some(2), 16, false));
        assert_eq!(limits.algorithms, ["ring", "forest"]);
        assert_eq!(config.algorithm("tree").limits().algorithms, ["tree"]);
        for bad in [Config::new().blocks(3, 2), Config::new().blocks(0, 2), Config::new().algorithms(["x"])] {
            assert!(matches!(bad.check(), Err(Error::InvalidValue { .. })));
        }
    }
}
