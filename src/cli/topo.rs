//! `ringleader topo`: the machine as text, JSON, picture, XML or recorded facts.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::input::{Machine, json, print, save};
use super::{Outcome, picture};
use crate::error::{Error, Result};
use crate::topology::{Cells, Facts, LinkKind, Topology};

/// Show the GPUs of a machine and the links between them
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    machine: Machine,

    /// Print JSON
    #[arg(long, conflicts_with = "matrix")]
    json: bool,

    /// Print only the matrix that `nvidia-smi topo -m` prints, without rates, to be read back
    #[arg(long)]
    matrix: bool,

    /// Draw the machine
    #[arg(long, value_name = "OUT.svg", conflicts_with = "dot")]
    svg: Option<PathBuf>,

    /// Write the machine as a graph for Graphviz
    #[arg(long, value_name = "OUT.dot")]
    dot: Option<PathBuf>,

    /// Record what this machine says of itself, to be replayed elsewhere
    #[arg(long, value_name = "OUT.json")]
    record: Option<PathBuf>,

    /// Write NCCL topology XML, for NCCL_TOPO_FILE
    #[arg(long, value_name = "OUT.xml")]
    xml: Option<PathBuf>,
}

/// Shows what the options ask for.
pub(super) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(path) = &options.record {
        if !options.machine.is_this_one() {
            let expected = "no FILE with it: it records the machine that it runs on";
            return Err(Error::invalid_value("--record", path.display().to_string(), expected));
        }
        Facts::gather().record(path)?;
    }
    let topology = options.machine.topology()?;
    if let Some(path) = &options.svg {
        save(path, &picture::svg(&topology))?;
    }
    if let Some(path) = &options.dot {
        save(path, &picture::dot(&topology))?;
    }
    if let Some(path) = &options.xml {
        save(path, &topology.to_xml())?;
    }
    let text = if options.json {
        json(&topology)?
    } else if options.matrix {
        topology.matrix(Cells::Types)
    } else {
        describe(&topology)
    };
    print(out, &text)?;
    Ok(Outcome::Good)
}

/// The machine in words, and the matrix with rates.
fn describe(topology: &Topology) -> String {
    let gpus = topology.gpus();
    let mut text = format!("{}: {} GPUs", topology.name(), gpus.len());
    if topology.has_nvswitch() {
        text += ", joined by an NVSwitch fabric";
    }
    text.push('\n');
    for gpu in gpus {
        let name = gpu.name.as_deref().or(gpu.arch.as_deref()).unwrap_or("GPU");
        let sm = gpu.sm.filter(|_| gpu.arch.is_none()).map_or(String::new(), |sm| format!(", sm {sm}"));
        let place = gpu.bus_id.as_deref().map_or(String::new(), |bus| format!(" at {bus}"));
        let numa = gpu.numa.filter(|&n| n >= 0).map_or(String::new(), |n| format!(", NUMA node {n}"));
        let ports: Vec<String> = topology
            .links()
            .iter()
            .filter(|l| (l.a == gpu.node || l.b == gpu.node) && l.kind != LinkKind::Pcie)
            .fold(Vec::<(LinkKind, u32, f64)>::new(), |mut sums, l| {
                match sums.iter_mut().find(|s| s.0 == l.kind) {
                    Some(sum) => (sum.1, sum.2) = (sum.1 + l.count, sum.2 + l.gbs),
                    None => sums.push((l.kind, l.count, l.gbs)),
                }
                sums
            })
            .into_iter()
            .map(|(kind, count, gbs)| format!(", {count} {kind} ({gbs:.0} GB/s)", kind = kind.name()))
            .collect();
        text += &format!("  GPU{} {name}{place}{sm}{numa}{}\n", gpu.index, ports.concat());
    }
    if gpus.is_empty() {
        return text;
    }
    text + "\nGB/s in each direction, when nothing else uses the way:\n\n" + &topology.matrix(Cells::Rates)
}
