//! The ranks that are measured: where they are, and why there.

use std::fmt;

use super::case::Case;
use super::data;
#[cfg(feature = "cuda")]
use super::gpu::{self, GpuRanks};
use super::host::HostRanks;
use super::table::{Row, Table};
use crate::comm::{Communicator, Config};
use crate::error::{Error, Result};

/// Where ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// In threads of this process.
    Cpu,
    /// On this machine's GPUs.
    Cuda,
    /// On GPUs if there are any, else in threads.
    Auto,
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda),
            "auto" => Ok(Device::Auto),
            _ => Err(Error::invalid_value("device", text, "cpu, cuda or auto")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
            Device::Auto => "auto",
        })
    }
}

/// How calls reach a GPU. CPU ranks always have a thread each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One thread enqueues the calls of all ranks.
    OneThread,
    /// Each rank has a thread.
    ThreadPerGpu,
    /// The calls are captured in a CUDA graph, which is replayed.
    Graph,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::OneThread => "stream, one thread",
            Mode::ThreadPerGpu => "stream, one thread a rank",
            Mode::Graph => "graph replay",
        })
    }
}

/// Whether NCCL is measured too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nccl {
    /// It is not.
    Off,
    /// With the same buffers.
    Plain,
    /// With buffers of its own, registered as symmetric windows (NCCL 2.27 and later).
    Window,
}

/// What a [`Bench`] is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the ranks are.
    pub device: Device,
    /// How many; without, two CPU ranks, or one on each GPU.
    pub ranks: Option<usize>,
    /// The communicator's settings.
    pub config: Config,
    /// The most bytes of a message: what GPU buffers must hold.
    pub most_bytes: usize,
    /// How calls reach GPUs.
    pub mode: Mode,
    /// Whether outputs on GPUs are registered, so that copy engines may fill them.
    pub register: bool,
    /// Whether NCCL is measured beside.
    pub nccl: Nccl,
}

/// Ranks that are ready to be measured.
#[derive(Debug)]
pub struct Bench {
    ranks: Ranks,
    why: String,
}

#[derive(Debug)]
enum Ranks {
    Host(HostRanks),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuRanks>),
}

impl Bench {
    /// Makes a communicator and, on GPUs, its buffers; measures what copy engines can do.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for settings out of range, [`Error::Unavailable`] if GPUs or NCCL are asked for and
    /// cannot be used, [`Error::Cuda`] if the driver refuses something.
    pub fn new(setup: &Setup) -> Result<Self> {
        let gpus = gpu_count();
        let (on_gpus, why) = match (setup.device, &gpus) {
            (Device::Cpu, _) => (false, "CPU ranks, as asked for".to_owned()),
            (Device::Cuda, Err(why)) => return Err(why.clone()),
            (Device::Cuda, Ok(n)) => (true, format!("GPUs, as asked for; there {}", are(*n))),
            (Device::Auto, Ok(n)) => (true, format!("GPUs, because there {}", are(*n))),
            (Device::Auto, Err(why)) => (false, format!("CPU ranks, because {why}")),
        };
        if !on_gpus {
            if setup.nccl != Nccl::Off {
                let reason = "NCCL has no CPU ranks; compare on a machine with two or more GPUs".into();
                return Err(Error::Unavailable { what: "a comparison with NCCL".into(), reason });
            }
            let host = HostRanks::new(setup.ranks.unwrap_or(2), &setup.config)?;
            return Ok(Bench { ranks: Ranks::Host(host), why });
        }
        #[cfg(feature = "cuda")]
        return Ok(Bench { ranks: Ranks::Gpu(Box::new(GpuRanks::new(setup, gpus?)?)), why });
        #[cfg(not(feature = "cuda"))]
        unreachable!("without the feature there are no GPUs");
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.comms().len()
    }

    /// Whether the ranks are on GPUs.
    pub fn on_gpus(&self) -> bool {
        !matches!(self.ranks, Ranks::Host(_))
    }

    /// Where the ranks are, and why there.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The machine, one line for each thing.
    pub fn machine(&self) -> Vec<String> {
        match &self.ranks {
            Ranks::Host(_) => vec![cpu()],
            #[cfg(feature = "cuda")]
            Ranks::Gpu(gpus) => gpus.machine(),
        }
    }

    /// The communicator's channels, as NCCL prints them.
    pub fn channels(&self) -> Vec<String> {
        self.comms().iter().flat_map(Communicator::channels).collect()
    }

    fn comms(&self) -> &[Communicator] {
        match &self.ranks {
            Ranks::Host(host) => host.comms(),
            #[cfg(feature = "cuda")]
            Ranks::Gpu(gpus) => gpus.comms(),
        }
    }

    /// What copy engines move from each GPU to the next while both directions are busy, in GB/s, measured when the
    /// bench was made. `None` where no two GPUs can reach each other.
    pub fn limit(&self) -> Option<f64> {
        match &self.ranks {
            Ranks::Host(_) => None,
            #[cfg(feature = "cuda")]
            Ranks::Gpu(gpus) => gpus.limit(),
        }
    }

    /// NCCL's version, if it is measured.
    pub fn nccl_version(&self) -> Option<String> {
        match &self.ranks {
            Ranks::Host(_) => None,
            #[cfg(feature = "cuda")]
            Ranks::Gpu(gpus) => gpus.nccl_version(),
        }
    }

    /// The table that fits this bench's rows.
    pub fn table(&self) -> Table {
        Table { ranks: self.ranks(), nccl: self.nccl_version().is_some(), limit: self.limit() }
    }

    /// Whether a call can be measured: whether CPU ranks have memory for its buffers (GPU ranks have theirs already), and
    /// whether its results can be checked. The factor of a pre-multiplied sum must be so small that no sum leaves the
    /// type's range: in which order contributions are added is the algorithm's choice, so what becomes of infinities
    /// depends on it. Without [`Timing::check`](super::Timing::check) any factor can be measured.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the memory that is needed and the memory there is, [`Error::InvalidValue`] for `op`.
    pub fn check(&self, case: &Case, timing: &super::Timing) -> Result<()> {
        case.op.check(case.dtype)?;
        if timing.check {
            data::check_factor(case, self.ranks())?;
        }
        match &self.ranks {
            Ranks::Host(host) => host.check(case),
            #[cfg(feature = "cuda")]
            Ranks::Gpu(_) => Ok(()),
        }
    }

    /// Times a call and checks its results.
    ///
    /// # Errors
    /// As [`check`](Self::check); what the call returns; [`Error::Timeout`] if it does not finish.
    pub fn measure(&mut self, case: &Case, timing: &super::Timing) -> Result<Row> {
        self.check(case, timing)?;
        match &mut self.ranks {
            Ranks::Host(host) => Ok(Row { case: *case, ours: host.measure(case, timing)?, nccl: None }),
            #[cfg(feature = "cuda")]
            Ranks::Gpu(gpus) => gpus.measure(case, timing),
        }
    }
}

#[cfg(feature = "cuda")]
impl Bench {
    /// Runs a call beside a matrix product that fills the GPUs, with several numbers of lanes and `config` for the
    /// rest, and measures how much each slows.
    ///
    /// # Errors
    /// [`Error::Unavailable`] on CPU ranks; else as [`measure`](Self::measure).
    pub fn overlap(
        &mut self,
        case: &Case,
        timing: &super::Timing,
        config: &Config,
    ) -> Result<Vec<super::Overlap>> {
        match &mut self.ranks {
            Ranks::Host(_) => {
                let reason = "it needs GPUs, where a product can run beside a collective".into();
                Err(Error::Unavailable { what: "an overlap measurement".into(), reason })
            }
            Ranks::Gpu(gpus) => gpus.overlap(case, timing, config),
        }
    }
}

fn are(gpus: usize) -> String {
    if gpus == 1 { "is one".to_owned() } else { format!("are {gpus}") }
}

#[cfg(feature = "cuda")]
fn gpu_count() -> Result<usize> {
    gpu::count()
}

#[cfg(not(feature = "cuda"))]
fn gpu_count() -> Result<usize> {
    let reason = "it was built without the feature `cuda`".into();
    Err(Error::Unavailable { what: "the CUDA engine".into(), reason })
}

/// The processor's name, where Linux tells it, and how many threads it runs for us.
fn cpu() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or("CPU", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {cores} {}", if cores == 1 { "core" } else { "cores" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Timing;
    use crate::types::{Collective, DataType, ReduceOp};

    fn setup(device: Device) -> Setup {
        Setup {
            device,
            ranks: Some(3),
            config: Config::new(),
            most_bytes: 1 << 20,
            mode: Mode::OneThread,
            register: false,
            nccl: Nccl::Off,
        }
    }

    #[test]
    fn every_collective_is_measured_and_right_on_cpu_ranks() {
        let mut bench = Bench::new(&setup(Device::Cpu)).unwrap();
        let timing = Timing { calls: Some(2), samples: 2, warmup: 1, ..Timing::default() };
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root: 1 },
            Collective::Reduce { root: 2 },
        ] {
            for (dtype, op) in [
                (DataType::F32, ReduceOp::Sum),
                (DataType::I8, ReduceOp::Max),
                (DataType::BF16, ReduceOp::Avg),
            ] {
                for in_place in [false, true] {
                    let case = Case { collective, dtype, op, bytes: 60_000, in_place };
                    let row = bench.measure(&case, &timing).unwrap();
                    assert_eq!(row.ours.wrong, Some(0), "{case:?}");
                    assert!(row.ours.seconds > 0.0);
                }
            }
        }
        assert_eq!(bench.channels().len(), 3);
        assert!(bench.machine()[0].contains("core"));
    }

    #[test]
    fn zero_bytes_and_one_rank_are_measured() {
        let mut bench = Bench::new(&Setup { ranks: Some(1), ..setup(Device::Cpu) }).unwrap();
        for bytes in [0, 8] {
            let case = Case {
                collective: Collective::AllGather,
                dtype: DataType::F64,
                op: ReduceOp::Sum,
                bytes,
                in_place: false,
            };
            assert_eq!(bench.measure(&case, &Timing::default()).unwrap().ours.wrong, Some(0));
        }
    }

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        let refused = Bench::new(&Setup { nccl: Nccl::Plain, ..setup(Device::Cpu) }).unwrap_err().to_string();
        assert!(refused.contains("NCCL has no CPU ranks"), "{refused}");
        assert!(Bench::new(&Setup { ranks: Some(0), ..setup(Device::Cpu) }).is_err());
        let mut bench = Bench::new(&setup(Device::Cpu)).unwrap();
        let (collective, dtype, op) = (Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        let huge = Case { collective, dtype, op, bytes: 1 << 48, in_place: false };
        let refused = bench.measure(&huge, &Timing::default()).unwrap_err().to_string();
        assert!(
            refused.contains("1.5 PiB of memory for the buffers of 3 ranks for all_reduce of 262144G"),
            "{refused}"
        );
        let op = ReduceOp::PreMulSum(f64::INFINITY.into());
        let endless = Case { op, bytes: 8, ..huge };
        assert!(
            bench.measure(&endless, &Timing::default()).unwrap_err().to_string().contains("premulsum:inf")
        );
        let unchecked = Timing { check: false, ..Timing::default() };
        assert_eq!(bench.measure(&endless, &unchecked).unwrap().ours.wrong, None);
        if gpu_count().is_err() {
            assert!(Bench::new(&setup(Device::Cuda)).is_err());
            assert!(Bench::new(&setup(Device::Auto)).unwrap().why().contains("because"));
        }
    }
}
