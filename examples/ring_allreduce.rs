//! A verified all_reduce, on CPU ranks or GPUs: what moved, over which channels, how fast, and whether it is right.
//!
//! ```text
//! cargo run --release --example ring_allreduce
//! cargo run --release --example ring_allreduce -- --ranks 4 --bytes 1K,1M,64M --type bf16 --op max --algorithm direct
//! cargo run --release --example ring_allreduce -- -b 8 -e 1G -f 2
//! ```
//!
//! The calls that do the work are `Communicator::cpu`, `Communicator::cuda` and `all_reduce`; see the documentation of
//! `ringleader::Communicator` for them alone.

use std::process::ExitCode;

use clap::Parser;
use ringleader::perf::{Bench, Case, Device, Mode, Nccl, Progress, Setup, Step, Timing};
use ringleader::perf::{format_bytes, parse_bytes, size_range};
use ringleader::{Collective, Config, DataType, ReduceOp, Result};

/// All-reduces random data over every size asked for, and checks each result against a float64 reference.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// How many ranks [default: 2 on CPUs, one a GPU]
    #[arg(long)]
    ranks: Option<usize>,

    /// Message sizes: 64M, 1G, or a list such as 8,64K,1M [default: 1K,64K,1M,16M; GPUs: up to 1G]
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes, conflicts_with_all = ["first", "last"])]
    bytes: Vec<usize>,

    /// First size of a range
    #[arg(short = 'b', long = "first", value_parser = parse_bytes)]
    first: Option<usize>,

    /// Last size of a range
    #[arg(short = 'e', long = "last", value_parser = parse_bytes)]
    last: Option<usize>,

    /// Each size of a range is so many times the one before
    #[arg(short = 'f', long = "factor", default_value_t = 2)]
    factor: usize,

    /// Element type: i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2
    #[arg(long = "type", default_value = "f32")]
    dtype: DataType,

    /// Operator: sum prod min max avg premulsum:FACTOR
    #[arg(long, default_value = "sum")]
    op: ReduceOp,

    /// Algorithm: ring, direct, one_shot or another that this library knows
    #[arg(long, default_value = "ring")]
    algorithm: String,

    /// Where the ranks are: cpu, cuda or auto
    #[arg(long, default_value = "auto")]
    device: Device,

    /// Calls in one timed batch [default: by size]
    #[arg(long)]
    iterations: Option<usize>,
}

impl Options {
    /// The sizes asked for; `None` if none were.
    fn sizes(&self) -> Result<Option<Vec<usize>>> {
        match (self.first, self.last) {
            (None, None) if self.bytes.is_empty() => Ok(None),
            (None, None) => Ok(Some(self.bytes.clone())),
            (first, last) => {
                let first = first.or(last.map(|l| l.min(8))).unwrap_or(8);
                size_range(first, last.unwrap_or(first.max(32 << 20)), Step::Factor(self.factor)).map(Some)
            }
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

/// Measures every size, and returns how many wrong values there were.
fn run(options: &Options) -> Result<u64> {
    options.op.check(options.dtype)?;
    let asked = options.sizes()?;
    let large = || [1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30].to_vec();
    let setup = Setup {
        device: options.device,
        ranks: options.ranks,
        config: Config::from_env()?.algorithm(&options.algorithm),
        most_bytes: asked.clone().unwrap_or_else(large).into_iter().max().unwrap_or(0),
        mode: Mode::OneThread,
        nccl: Nccl::Off,
    };
    let mut bench = Bench::new(&setup)?;
    let sizes = asked.unwrap_or_else(|| match bench.on_gpus() {
        true => large(),
        false => [1 << 10, 64 << 10, 1 << 20, 16 << 20].to_vec(),
    });

    println!(
        "# {} all_reduce of {} with {}, {} ranks",
        options.algorithm,
        options.dtype,
        options.op,
        bench.ranks()
    );
    println!("# on {}", bench.why());
    for line in bench.machine() {
        println!("# {line}");
    }
    for line in bench.channels() {
        println!("# {line}");
    }
    if let Some(limit) = bench.limit() {
        println!("# copy engines move {limit:.1} GB/s from each GPU to the next, both directions at once");
    }
    let table = bench.table();
    println!("#\n{}", table.header().trim_end());
    let timing = Timing { calls: options.iterations, ..Timing::default() };
    let progress = Progress::new(sizes.len());
    let mut rows = Vec::new();
    for bytes in sizes {
        progress.start(&format_bytes(bytes));
        let (collective, dtype, op) = (Collective::AllReduce, options.dtype, options.op);
        let row = bench.measure(&Case { collective, dtype, op, bytes, in_place: false }, &timing)?;
        progress.step(|| println!("{}", table.line(&row)));
        rows.push(row);
    }
    drop(progress);
    print!("{}", table.footer(&rows));
    Ok(rows.iter().filter_map(|row| row.ours.wrong).sum())
}
