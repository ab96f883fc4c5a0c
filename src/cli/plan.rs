//! `ringleader plan`: what would run for one message, why, and how near it is to the best that is possible.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::input::{Machine, What, bytes, json, print, save};
use super::{Outcome, plan_picture};
use crate::comm::Config;
use crate::error::Result;
use crate::plan::{PlanRequest, Planner};

/// Compare all ways to do a collective on a machine, and show the plan for the best
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    machine: Machine,

    #[command(flatten)]
    what: What,

    /// Bytes of the whole message: 64M, 1G
    #[arg(long, short = 'b', value_parser = bytes)]
    bytes: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print every connection, too
    #[arg(long, conflicts_with = "json")]
    connections: bool,

    /// Draw the plan's rings or trees
    #[arg(long, value_name = "OUT.svg")]
    svg: Option<PathBuf>,
}

/// Plans, and shows what the options ask for.
pub(super) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome> {
    let topology = options.machine.topology()?;
    let ranks = options.what.ranks(&topology)?;
    let request = PlanRequest::new(options.what.collective()?, options.bytes)
        .on(ranks)
        .within(Config::from_env()?.limits());
    let plan = Planner::new(&topology).compare(&request).map_err(|why| why.named("root", "--root"))?;
    if let Some(path) = &options.svg {
        save(path, &plan_picture::svg(&plan, &topology))?;
    }
    let mut text = if options.json { json(&plan)? } else { plan.explain() };
    if options.connections {
        text = text + "\n" + &plan.connections().join("\n") + "\n";
    }
    print(out, &text)?;
    Ok(Outcome::Good)
}
