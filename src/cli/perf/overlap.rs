//! `ringleader perf --overlap`.

use std::io::Write;

use super::options::Options;
use crate::cli::Outcome;
use crate::comm::Config;
use crate::error::Result;
use crate::perf::Bench;
use crate::types::Collective;

/// Measures every size beside a matrix product.
#[cfg(feature = "cuda")]
pub(super) fn run(
    options: &Options,
    collective: Collective,
    bench: &mut Bench,
    config: &Config,
    out: &mut dyn Write,
) -> Result<Outcome> {
    use super::{report::Report, write};
    use crate::perf::{Case, Overlap, Progress, format_bytes};

    let sizes = options.sizes(bench.on_gpus())?;
    if !options.json && bench.on_gpus() {
        write(out, &(Report::new(options, collective, bench).preamble() + &Overlap::header()))?;
    }
    let progress = Progress::new(sizes.len());
    let mut found = Vec::new();
    for bytes in sizes {
        progress.start(&format!("{} {}", collective.name(), format_bytes(bytes)));
        let case = Case { collective, dtype: options.dtype, op: options.op(), bytes, in_place: false };
        let rows = bench.overlap(&case, &options.timing(), config)?;
        let lines: String = rows.iter().map(|row| row.line() + "\n").collect();
        progress.step(|| if options.json { Ok(()) } else { write(out, &lines) })?;
        found.extend(rows);
    }
    drop(progress);
    if options.json {
        write(out, &(serde_json::to_string_pretty(&found).expect("rows are plain data") + "\n"))?;
    }
    Ok(Outcome::Good)
}

/// Says that there is nothing to measure.
#[cfg(not(feature = "cuda"))]
pub(super) fn run(
    _: &Options,
    _: Collective,
    _: &mut Bench,
    _: &Config,
    _: &mut dyn Write,
) -> Result<Outcome> {
    let reason = "this binary was built without the feature `cuda`".into();
    Err(crate::Error::Unavailable { what: "an overlap measurement".into(), reason })
}
