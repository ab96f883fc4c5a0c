//! `ringleader simulate`: predicted times over a range of sizes.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use super::Outcome;
use super::input::{Machine, SIZE_RANGE, What, bytes, json, name_by, print};
use crate::comm::Config;
use crate::error::Result;
use crate::perf::{Step, size_range};
use crate::plan::{PlanRequest, Planner};

/// Predict a collective's time on a machine over a range of sizes
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    machine: Machine,

    #[command(flatten)]
    what: What,

    /// First message size
    #[arg(short = 'b', long = "minbytes", value_parser = bytes, default_value = "8")]
    minbytes: usize,

    /// Last message size
    #[arg(short = 'e', long = "maxbytes", value_parser = bytes, default_value = "1G")]
    maxbytes: usize,

    /// Each size is so many times the one before
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2)]
    stepfactor: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One size.
#[derive(Serialize)]
struct Row {
    bytes: usize,
    algorithm: &'static str,
    name: String,
    encoding: &'static str,
    blocks: u32,
    time_us: f64,
    algbw_gbs: f64,
    busbw_gbs: f64,
    fraction_of_bound: f64,
}

#[derive(Serialize)]
struct Table {
    collective: &'static str,
    root: Option<usize>,
    ranks: usize,
    bound_algbw_gbs: Option<f64>,
    certificate: String,
    rows: Vec<Row>,
}

/// Plans every size, and prints a table or JSON.
pub(super) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome> {
    let topology = options.machine.topology()?;
    let ranks = options.what.ranks(&topology)?;
    let collective = options.what.collective()?;
    let limits = Config::from_env()?.limits();
    let planner = Planner::new(&topology);
    let mut table = Table {
        collective: collective.name(),
        root: collective.root(),
        ranks: ranks.len(),
        bound_algbw_gbs: None,
        certificate: String::new(),
        rows: Vec::new(),
    };
    let sizes = size_range(options.minbytes, options.maxbytes, Step::Factor(options.stepfactor));
    for bytes in sizes.map_err(|why| SIZE_RANGE.into_iter().fold(why, name_by))? {
        let plan = planner
            .plan(&PlanRequest::new(collective, bytes).on(ranks.clone()).within(limits.clone()))
            .map_err(|why| why.named("root", "--root"))?;
        table.bound_algbw_gbs = Some(plan.bound_algbw_gbs()).filter(|gbs| gbs.is_finite());
        table.certificate = plan.certificate();
        table.rows.push(Row {
            bytes,
            algorithm: plan.algorithm,
            name: plan.label.clone(),
            encoding: plan.encoding.name(),
            blocks: plan.blocks,
            time_us: plan.predicted_us,
            algbw_gbs: plan.algbw_gbs(),
            busbw_gbs: plan.busbw_gbs(),
            fraction_of_bound: plan.fraction_of_bound(),
        });
    }
    let text = if options.json { json(&table)? } else { as_text(&table) };
    print(out, &text)?;
    Ok(Outcome::Good)
}

fn as_text(table: &Table) -> String {
    let mut text = format!(
        "{} on {} ranks, predicted\n\n{:>13} {:<24} {:<10} {:>7} {:>12} {:>11} {:>11} {:>9}\n",
        table.collective,
        table.ranks,
        "bytes",
        "plan",
        "encoding",
        "blocks",
        "time us",
        "algbw GB/s",
        "busbw GB/s",
        "of bound"
    );
    for r in &table.rows {
        text += &format!(
            "{:>13} {:<24} {:<10} {:>7} {:>12.1} {:>11.2} {:>11.2} {:>8.1}%\n",
            r.bytes,
            r.name,
            r.encoding,
            r.blocks,
            r.time_us,
            r.algbw_gbs,
            r.busbw_gbs,
            100.0 * r.fraction_of_bound
        );
    }
    text + "\n" + &table.certificate + "\n"
}
