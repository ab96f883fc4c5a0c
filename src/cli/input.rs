//! What `topo`, `plan` and `simulate` have in common: where the machine comes from, and where text goes.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::comm::Config;
use crate::error::{Error, Result};
use crate::perf::parse_bytes;
use crate::topology::{LinkRates, SmiOptions, Topology};
use crate::types::Collective;

/// Which machine.
#[derive(Args, Debug)]
pub(super) struct Machine {
    /// NCCL topology XML, the text of `nvidia-smi topo -m`, or recorded facts [default: this machine]
    file: Option<PathBuf>,

    /// Compute capability for `nvidia-smi` text, 90 for 9.0: decides the rate and number of NVLinks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(30..=200))]
    sm: Option<u32>,

    /// Link rates in GB/s in place of the built-in ones: NV=25,PIX=24,SYS=20
    #[arg(long, value_name = "NAME=GB/s,…")]
    link: Option<LinkRates>,
}

impl Machine {
    /// Reads or detects it, and says on stderr what had to be assumed.
    pub(super) fn topology(&self) -> Result<Topology> {
        let options = SmiOptions { sm: self.sm, rates: self.link.unwrap_or_default() };
        let named = Config::from_env()?;
        let topology = match self.file.as_deref().or(named.topology_path()) {
            Some(file) => Topology::load_with(file, &options)?,
            None => Topology::detect()?.with_rates(&options.rates),
        };
        for warning in topology.warnings() {
            eprintln!("note: {warning}");
        }
        Ok(topology)
    }

    /// Whether it is the machine that this runs on.
    pub(super) fn is_this_one(&self) -> bool {
        self.file.is_none()
    }
}

/// Which collective, on which ranks.
#[derive(Args, Debug)]
pub(super) struct What {
    /// all_reduce, reduce_scatter, all_gather, broadcast or reduce
    #[arg(long, short = 'c', value_parser = parse_collective)]
    collective: Collective,

    /// The rank that broadcast sends from, or reduce sends to [default: 0]
    #[arg(long, short = 'r')]
    root: Option<usize>,

    /// The GPU of each rank; a GPU may have several [default: one rank on each GPU]
    #[arg(long, value_name = "0,2,3", value_delimiter = ',')]
    ranks: Vec<usize>,
}

impl What {
    pub(super) fn collective(&self) -> Result<Collective> {
        match (self.collective, self.root) {
            (Collective::Broadcast { .. }, root) => Ok(Collective::Broadcast { root: root.unwrap_or(0) }),
            (Collective::Reduce { .. }, root) => Ok(Collective::Reduce { root: root.unwrap_or(0) }),
            (other, None) => Ok(other),
            (other, Some(root)) => {
                let expected = format!("left out: {} has no root", other.name());
                Err(Error::invalid_value("--root", root.to_string(), expected))
            }
        }
    }

    /// The GPU of each rank.
    pub(super) fn ranks(&self, topology: &Topology) -> Result<Vec<usize>> {
        let gpus = topology.gpus().len();
        if gpus == 0 {
            let reason = "it has no GPUs; give a file with a machine that has".to_string();
            return Err(Error::NoPlan { request: topology.name().to_string(), reason });
        }
        if let Some(gpu) = self.ranks.iter().find(|&&gpu| gpu >= gpus) {
            let expected = format!("GPU numbers from 0 to {}", gpus - 1);
            return Err(Error::invalid_value("--ranks", gpu.to_string(), expected));
        }
        Ok(if self.ranks.is_empty() { (0..gpus).collect() } else { self.ranks.clone() })
    }
}

fn parse_collective(text: &str) -> std::result::Result<Collective, String> {
    Ok(match text.to_ascii_lowercase().replace('-', "_").as_str() {
        "all_reduce" | "allreduce" => Collective::AllReduce,
        "reduce_scatter" | "reducescatter" => Collective::ReduceScatter,
        "all_gather" | "allgather" => Collective::AllGather,
        "broadcast" => Collective::Broadcast { root: 0 },
        "reduce" => Collective::Reduce { root: 0 },
        _ => return Err("one of all_reduce, reduce_scatter, all_gather, broadcast, reduce".into()),
    })
}

/// What errors of [`size_range`](crate::perf::size_range) call its parts, and the options that set them.
pub(super) const SIZE_RANGE: [(&str, &str); 4] = [
    ("first size", "--minbytes"),
    ("last size", "--maxbytes"),
    ("factor", "--stepfactor"),
    ("step", "--stepbytes"),
];

/// Puts an option's name into an error about the setting it sets.
pub(super) fn name_by(error: Error, (setting, option): (&str, &str)) -> Error {
    error.named(setting, option)
}

/// A number of bytes, for clap.
pub(super) fn bytes(text: &str) -> std::result::Result<usize, String> {
    parse_bytes(text).map_err(|why| why.to_string())
}

/// Writes text to the command's output. A reader that has read enough, such as `head`, is no error.
pub(super) fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::System { action: "write the output".into(), reason: why.to_string() })
        }
        _ => Ok(()),
    }
}

/// Writes a file.
pub(super) fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|why| Error::System { action: format!("write {}", path.display()), reason: why.to_string() })
}

/// JSON as text that ends with a line break.
pub(super) fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|why| Error::System { action: "write JSON".into(), reason: why.to_string() })?;
    Ok(text + "\n")
}
