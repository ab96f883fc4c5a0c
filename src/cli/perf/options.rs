//! The options of `ringleader perf`: those of nccl-tests where there are such.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use crate::cli::input::{SIZE_RANGE, name_by};
use crate::comm::Config;
use crate::error::{Error, Result};
use crate::perf::{Device, Mode, Nccl, Setup, Step, Timing, parse_bytes, size_range};
use crate::schedule::ALGORITHMS;
use crate::types::{Collective, DataType, ReduceOp};

/// Time a collective over a range of message sizes, check the results, and compare with NCCL
#[derive(Args, Debug)]
pub(in crate::cli) struct Options {
    /// all_reduce, reduce_scatter, all_gather, broadcast or reduce
    #[arg(value_parser = parse_collective)]
    collective: Collective,

    /// First message size [default: 8]
    #[arg(short = 'b', long = "minbytes", value_parser = parse_bytes)]
    minbytes: Option<usize>,

    /// Last message size [default: 1G on GPUs, 16M on CPU ranks]
    #[arg(short = 'e', long = "maxbytes", value_parser = parse_bytes)]
    maxbytes: Option<usize>,

    /// Each size is so many times the one before
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2)]
    stepfactor: usize,

    /// Each size is so many bytes more than the one before
    #[arg(short = 'i', long = "stepbytes", value_parser = parse_bytes, conflicts_with = "stepfactor")]
    stepbytes: Option<usize>,

    /// Ranks: one a GPU by default, several share a GPU if there are fewer; 2 on CPUs
    #[arg(short = 'g', long = "ranks", visible_alias = "ngpus")]
    ranks: Option<usize>,

    /// Who enqueues calls on GPUs; CPU ranks always have a thread each
    #[arg(short = 't', long, value_enum, default_value_t = Threads::One)]
    threads: Threads,

    /// Capture the calls in a CUDA graph and time its replay
    #[arg(short = 'G', long = "graph", visible_alias = "cudagraph", conflicts_with = "threads")]
    graph: bool,

    /// Calls in one timed batch [default: by size]
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iters: Option<u32>,

    /// Timed batches; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,

    /// Calls before the timed ones
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", default_value_t = 5)]
    warmup: u32,

    /// Check results against a float64 reference: 1 or 0
    #[arg(short = 'c', long = "check", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,

    /// Element type: i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2
    #[arg(short = 'd', long = "datatype", visible_alias = "type", default_value = "f32")]
    pub(super) dtype: DataType,

    /// Operator: sum prod min max avg premulsum:FACTOR, the factor finite and so small that sums stay within the type's
    /// range, unless results are not checked [default: sum]
    #[arg(short = 'o', long = "op")]
    op: Option<ReduceOp>,

    /// The root of broadcast and reduce [default: 0]
    #[arg(short = 'r', long = "root")]
    root: Option<usize>,

    /// Whether input and output are one buffer
    #[arg(long, value_enum, default_value_t = Place::Both)]
    place: Place,

    /// Where the ranks are: cpu, cuda or auto
    #[arg(long, default_value = "auto")]
    device: Device,

    /// Force an algorithm [default: by size, or NCCL_ALGO]
    #[arg(long, value_parser = algorithms())]
    algorithm: Option<String>,

    /// Force the number of channels
    #[arg(long)]
    channels: Option<usize>,

    /// Force the thread blocks of each worker on GPUs
    #[arg(long)]
    lanes: Option<u32>,

    /// Force the bytes of a tile on GPUs
    #[arg(long, value_parser = parse_bytes)]
    tile: Option<usize>,

    /// Do not write peers' memory directly (for NCCL, set NCCL_P2P_DISABLE=1, which does it for both)
    #[arg(long)]
    no_p2p: bool,

    /// Register the outputs, so that copy engines may carry out large calls; --compare nccl-window does it for NCCL
    #[arg(long)]
    register: bool,

    /// Also measure another library, in turn with this one
    #[arg(long, value_enum)]
    compare: Option<Compare>,

    /// Measure how much the collective and a matrix product beside it slow each other, on GPUs [default sizes: 16M to 256M]
    #[arg(long, conflicts_with_all = ["graph", "place", "plot"])]
    pub(super) overlap: bool,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,

    /// Draw time and bus bandwidth against size
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,

    /// Other random data
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Threads {
    /// One thread, for all GPUs
    One,
    /// A thread for each GPU
    PerGpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    /// In place
    In,
    /// Out of place
    Out,
    /// Both
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compare {
    /// NCCL: NCCL_LIB, or libnccl.so.2 where the linker looks or in a Python torch
    Nccl,
    /// The same with buffers of its own, registered as symmetric windows (2.27 and later)
    NcclWindow,
}

/// Those that can be forced.
fn algorithms() -> PossibleValuesParser {
    ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().into()
}

/// A collective by name, with or without underscores; its root comes from another option.
fn parse_collective(text: &str) -> Result<Collective> {
    let plain: String = text.chars().filter(|c| !"_-".contains(*c)).collect();
    Ok(match plain.to_ascii_lowercase().as_str() {
        "allreduce" => Collective::AllReduce,
        "reducescatter" => Collective::ReduceScatter,
        "allgather" => Collective::AllGather,
        "broadcast" => Collective::Broadcast { root: 0 },
        "reduce" => Collective::Reduce { root: 0 },
        _ => {
            let known = "all_reduce, reduce_scatter, all_gather, broadcast or reduce";
            return Err(Error::invalid_value("collective", text, known));
        }
    })
}

impl Options {
    /// The collective with its root.
    pub(super) fn collective(&self, ranks: usize) -> Result<Collective> {
        let root = self.root.unwrap_or(0);
        let collective = match self.collective {
            Collective::Broadcast { .. } => Collective::Broadcast { root },
            Collective::Reduce { .. } => Collective::Reduce { root },
            other => return Ok(other),
        };
        match root < ranks {
            true => Ok(collective),
            false => Err(Error::invalid_value("--root", root.to_string(), format!("a rank below {ranks}"))),
        }
    }

    /// The operator.
    pub(super) fn op(&self) -> ReduceOp {
        self.op.unwrap_or(ReduceOp::Sum)
    }

    /// Options that were given and change nothing, each with the reason.
    pub(super) fn without_effect(&self, on_gpus: bool) -> Vec<String> {
        let name = self.collective.name();
        let of_collective = [
            (self.root.is_some() && self.collective.root().is_none(), "--root", "has no root"),
            (self.op.is_some() && !self.collective.reduces(), "--op", "reduces nothing"),
        ];
        let of_gpus = [
            (self.graph, "--graph"),
            (self.threads == Threads::PerGpu, "--threads"),
            (self.lanes.is_some(), "--lanes"),
            (self.tile.is_some(), "--tile"),
            (self.no_p2p, "--no-p2p"),
            (self.register, "--register"),
        ];
        let mut all: Vec<String> = of_collective
            .into_iter()
            .filter(|(given, ..)| *given)
            .map(|(_, option, why)| format!("{option} has no effect: {name} {why}"))
            .collect();
        let gpu_options: Vec<&str> =
            of_gpus.into_iter().filter_map(|(given, option)| given.then_some(option)).collect();
        if !on_gpus && !gpu_options.is_empty() {
            let verb = if gpu_options.len() == 1 { "has" } else { "have" };
            all.push(format!("{} {verb} no effect on CPU ranks", gpu_options.join(", ")));
        }
        all
    }

    /// An error about a setting, under the name of the option that set it.
    pub(super) fn named(&self, error: Error) -> Error {
        [
            (self.algorithm.is_some(), "Config::algorithm", "--algorithm"),
            (self.channels.is_some(), "Config::channels", "--channels"),
            (self.lanes.is_some(), "Config::lanes", "--lanes"),
            (self.tile.is_some(), "Config::tile_bytes", "--tile"),
            (self.ranks.is_some(), "ranks", "--ranks"),
            (self.ranks.is_some(), "contexts", "--ranks"),
            (self.op.is_some(), "op", "--op"),
        ]
        .into_iter()
        .filter(|&(given, ..)| given)
        .fold(SIZE_RANGE.into_iter().fold(error, name_by), |error, (_, setting, option)| {
            error.named(setting, option)
        })
    }

    /// The message sizes.
    pub(super) fn sizes(&self, on_gpus: bool) -> Result<Vec<usize>> {
        let (least, most) = match (self.overlap, on_gpus) {
            (true, _) => (16 << 20, 256 << 20),
            (false, true) => (8, 1 << 30),
            (false, false) => (8, 16 << 20),
        };
        let first = self.minbytes.unwrap_or(self.maxbytes.map_or(least, |last| last.min(least)));
        let step = self.stepbytes.map_or(Step::Factor(self.stepfactor), Step::Bytes);
        size_range(first, self.maxbytes.unwrap_or(most.max(first)), step)
    }

    /// Out of place first, as in nccl-tests.
    pub(super) fn places(&self) -> Vec<bool> {
        match self.place {
            Place::Out => vec![false],
            Place::In => vec![true],
            Place::Both => vec![false, true],
        }
    }

    /// How calls reach GPUs.
    pub(super) fn mode(&self) -> Mode {
        match (self.graph, self.threads) {
            (true, _) => Mode::Graph,
            (false, Threads::One) => Mode::OneThread,
            (false, Threads::PerGpu) => Mode::ThreadPerGpu,
        }
    }

    pub(super) fn timing(&self) -> Timing {
        Timing {
            calls: self.iters.map(|n| n as usize),
            samples: self.samples as usize,
            warmup: self.warmup as usize,
            check: self.check == 1,
            seed: self.seed,
        }
    }

    /// What to measure. Settings come from the environment, and from options above it.
    pub(super) fn setup(&self) -> Result<Setup> {
        self.op().check(self.dtype)?;
        // Both checks the range and finds the largest message, whatever the device turns out to be.
        let sizes = self.sizes(self.device != Device::Cpu)?;
        let mut config = Config::from_env()?;
        config.timeout.get_or_insert(Duration::from_secs(60));
        if let Some(name) = &self.algorithm {
            config = config.algorithm(name);
        }
        if let Some(channels) = self.channels {
            config = config.channels(channels);
        }
        if let Some(lanes) = self.lanes {
            config = config.lanes(lanes);
        }
        if let Some(bytes) = self.tile {
            config = config.tile_bytes(bytes);
        }
        if self.no_p2p {
            config = config.p2p(false);
        }
        Ok(Setup {
            device: self.device,
            ranks: self.ranks,
            config,
            most_bytes: sizes.into_iter().max().unwrap_or(0),
            mode: self.mode(),
            register: self.register,
            nccl: match self.compare {
                None => Nccl::Off,
                Some(Compare::Nccl) => Nccl::Plain,
                Some(Compare::NcclWindow) => Nccl::Window,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &str) -> std::result::Result<Options, clap::Error> {
        Line::try_parse_from(format!("perf {arguments}").split_whitespace()).map(|line| line.options)
    }

    #[test]
    fn the_options_of_nccl_tests_mean_the_same() {
        let options = parse("allreduce -b 1K -e 64K -f 4 -g 8 -n 20 -w 2 -c 0 -d bf16 -o avg -G").unwrap();
        assert_eq!(options.sizes(true), Ok(vec![1 << 10, 4 << 10, 16 << 10, 64 << 10]));
        assert_eq!(options.collective(8), Ok(Collective::AllReduce));
        let setup = options.setup().unwrap();
        assert_eq!((setup.ranks, setup.mode, setup.most_bytes), (Some(8), Mode::Graph, 64 << 10));
        let timing = options.timing();
        assert_eq!((timing.calls, timing.warmup, timing.check), (Some(20), 2, false));
        let options = parse("reduce -b 1K -e 3K -i 1K -r 3 -t per-gpu --place in").unwrap();
        assert_eq!(options.sizes(false), Ok(vec![1 << 10, 2 << 10, 3 << 10]));
        assert_eq!(options.collective(4), Ok(Collective::Reduce { root: 3 }));
        assert_eq!((options.mode(), options.places()), (Mode::ThreadPerGpu, vec![true]));
        let options = parse("all_gather --compare nccl-window").unwrap();
        assert_eq!(options.setup().unwrap().nccl, Nccl::Window);
        assert_eq!(options.sizes(true).unwrap().last(), Some(&(1 << 30)));
    }

    #[test]
    fn options_without_effect_are_named() {
        let options = parse("all_gather -r 9 -o max -G --lanes 4 --algorithm ring").unwrap();
        assert_eq!(options.collective(2), Ok(Collective::AllGather));
        insta::assert_snapshot!(options.without_effect(false).join("\n"), @"
        --root has no effect: all_gather has no root
        --op has no effect: all_gather reduces nothing
        --graph, --lanes have no effect on CPU ranks
        ");
        assert_eq!(options.without_effect(true).len(), 2);
        for all_used in ["reduce -r 1 -o max -t one", "all_reduce -o sum"] {
            assert!(parse(all_used).unwrap().without_effect(false).is_empty(), "{all_used}");
        }
    }

    #[test]
    fn bad_options_are_refused_with_a_message() {
        for (arguments, expected) in [
            ("", "COLLECTIVE"),
            ("all_shuffle", "all_shuffle"),
            ("reduce -b 8X", "8X"),
            ("reduce -d f33", "f33"),
            ("reduce -o mean", "mean"),
            ("reduce --device gpu", "gpu"),
            ("reduce -n 0", "0"),
            ("reduce -c 2", "2"),
            ("reduce --algorithm rong", "ring, tree, direct, one_shot"),
            ("reduce -f 2 -i 8", "cannot be used"),
            ("reduce --compare mpi", "mpi"),
        ] {
            let error = parse(arguments).expect_err(arguments);
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(expected), "{arguments}: {error}");
        }
    }
}
