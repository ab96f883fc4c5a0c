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
use clap::builder::PossibleValuesParser;
use ringleader::perf::{Bench, Case, Device, Mode, Nccl, Progress, Setup, Step, Timing};
use ringleader::perf::{format_bytes, parse_bytes, size_range};
use ringleader::schedule::ALGORITHMS;
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

    /// Operator: sum prod min max avg premulsum:FACTOR, the factor finite and so small that sums stay within the type's
    /// range
    #[arg(long, default_value = "sum")]
    op: ReduceOp,

    /// Algorithm
    #[arg(long, default_value = "ring", value_parser = algorithms())]
    algorithm: String,

    /// Where the ranks are: cpu, cuda or auto
    #[arg(long, default_value = "auto")]
    device: Device,

    /// Calls in one timed batch [default: by time on CPU ranks, by size on GPUs]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: Option<u32>,
}

/// What errors call a setting, and the option that sets it.
const NAMES: [(&str, &str); 6] = [
    ("ranks", "--ranks"),
    ("contexts", "--ranks"),
    ("op", "--op"),
    ("first size", "--first"),
    ("last size", "--last"),
    ("factor", "--factor"),
];

/// Those that this library knows.
fn algorithms() -> PossibleValuesParser {
    ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().into()
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
    match run(&options)
        .map_err(|why| NAMES.iter().fold(why, |why, (setting, option)| why.named(setting, option)))
    {
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
        register: false,
        nccl: Nccl::Off,
    };
    let mut bench = Bench::new(&setup)?;
    let sizes = asked.unwrap_or_else(|| match bench.on_gpus() {
        true => large(),
        false => [1 << 10, 64 << 10, 1 << 20, 16 << 20].to_vec(),
    });
    let (collective, dtype, op) = (Collective::AllReduce, options.dtype, options.op);
    let case = |bytes| Case { collective, dtype, op, bytes, in_place: false };
    let timing = Timing { calls: options.iterations.map(|n| n as usize), ..Timing::default() };
    // Whatever cannot be measured is said before anything is.
    sizes.iter().try_for_each(|&bytes| bench.check(&case(bytes), &timing))?;

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
    let progress = Progress::new(sizes.len());
    let mut rows = Vec::new();
    for bytes in sizes {
        progress.start(&format_bytes(bytes));
        let row = bench.measure(&case(bytes), &timing)?;
        progress.step(|| println!("{}", table.line(&row)));
        rows.push(row);
    }
    drop(progress);
    print!("{}", table.footer(&rows));
    Ok(rows.iter().filter_map(|row| row.ours.wrong).sum())
}
