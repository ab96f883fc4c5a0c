//! The `ringleader` command: one file a subcommand.

mod input;
mod perf;
mod picture;
mod plan;
mod plan_picture;
mod simulate;
mod svg;
mod topo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;

/// Collective communication for the GPUs, or the CPU ranks, of one host.
#[derive(Debug, Parser)]
#[command(name = "ringleader", version, arg_required_else_help = true)]
struct Command {
    #[command(subcommand)]
    subcommand: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Topo(topo::Options),
    Plan(plan::Options),
    Simulate(simulate::Options),
    Perf(perf::Options),
}

/// What a subcommand that ran says about what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Good,
    /// Something is wrong, and was said: wrong results, for example.
    Bad,
}

/// Runs the command with the arguments of this process.
///
/// The exit status is 0, or 1 if something was found to be wrong, or 2 with a message if the command could not be
/// carried out.
pub fn main() -> ExitCode {
    exit(run(Command::parse().subcommand))
}

fn run(subcommand: Sub) -> Result<Outcome> {
    let out = &mut std::io::stdout();
    match subcommand {
        Sub::Topo(options) => topo::run(&options, out),
        Sub::Plan(options) => plan::run(&options, out),
        Sub::Simulate(options) => simulate::run(&options, out),
        Sub::Perf(options) => perf::run(&options, out),
    }
}

fn exit(outcome: Result<Outcome>) -> ExitCode {
    match outcome {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}
