//! Printing the matrix of GPUs as `nvidia-smi topo -m` does.

use std::fmt::Write;

use crate::topology::model::{LinkKind, Topology};
use crate::topology::path::{Path, PathType};

/// What the cells of [`Topology::matrix`] show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cells {
    /// The connection: `NV18`, `PIX`, `SYS`. This can be read back by [`Topology::from_smi`].
    Types,
    /// The connection by NCCL's name and its GB/s: `NVL 371`.
    Rates,
}

const LEGEND: &[(&str, &str)] = &[
    ("X", "the GPU itself"),
    ("SYS", "through PCIe and the bus between NUMA nodes"),
    ("NODE", "through PCIe and several host bridges of one NUMA node"),
    ("PHB", "through PCIe and a host bridge, typically the CPU"),
    ("PXB", "through several PCIe switches, no host bridge"),
    ("PIX", "through one PCIe switch"),
    ("C2C", "through chip-to-chip links and a shared CPU"),
    ("NVB", "through NVLink and one other GPU"),
    ("NVL", "over NVLink, direct or through NVSwitches"),
    ("NV#", "over # bonded NVLinks"),
    ("XGMI", "over xGMI; with a number: over as many bonded links"),
    ("DIS", "no connection"),
];

impl Topology {
    /// The GPUs as a matrix, in the layout of `nvidia-smi topo -m` (columns separated by tabs), and a legend
    /// of the words used.
    ///
    /// ```
    /// use ringleader::topology::{Cells, Topology};
    ///
    /// let text = Topology::switch(2, 450.0).matrix(Cells::Rates);
    /// assert!(text.starts_with("\tGPU0\tGPU1"));
    /// assert!(text.contains("GPU0\t X \tNVL 450"));
    /// ```
    pub fn matrix(&self, cells: Cells) -> String {
        let paths = self.paths();
        let pcie = self.pcie_types();
        let n = self.gpus().len();
        let nics: Vec<_> = match cells {
            Cells::Types => self.nic_distances(),
            Cells::Rates => Vec::new(),
        };
        let mut used = vec!["X".to_string()];
        let mut text = String::new();
        for i in 0..n {
            let _ = write!(text, "\tGPU{i}");
        }
        for at in 0..nics.len() {
            let _ = write!(text, "\tNIC{at}");
        }
        let with_numa = self.gpus().iter().any(|g| g.numa.is_some() || g.cpus.is_some());
        text.push_str(if with_numa { "\tCPU Affinity\tNUMA Affinity\n" } else { "\n" });
        for i in 0..n {
            let _ = write!(text, "GPU{i}");
            for j in 0..n {
                let cell = match cells {
                    _ if i == j => " X ".to_string(),
                    Cells::Types => self.type_cell(&paths[i][j], pcie[i][j]),
                    Cells::Rates => rate_cell(&paths[i][j]),
                };
                used.push(cell.split(' ').next().unwrap_or_default().to_string());
                let _ = write!(text, "\t{cell}");
            }
            for (_, distances) in &nics {
                used.push(distances[i].name().to_string());
                let _ = write!(text, "\t{}", distances[i]);
            }
            if with_numa {
                let gpu = &self.gpus()[i];
                let numa = gpu.numa.map_or("N/A".into(), |n| n.to_string());
                let _ = write!(text, "\t{}\t{numa}", gpu.cpus.as_deref().unwrap_or("N/A"));
            }
            text.push('\n');
        }
        text.push_str("\nLegend:\n\n");
        for (word, meaning) in LEGEND {
            let shown = match word.strip_suffix('#') {
                Some(stem) => used.iter().any(|u| {
                    u.strip_prefix(stem)
                        .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
                }),
                None if *word == "XGMI" => used.iter().any(|u| u.starts_with(word)),
                None => used.iter().any(|u| u == word),
            };
            if shown {
                let _ = writeln!(text, "  {word:<4} = {meaning}");
            }
        }
        if !nics.is_empty() {
            text.push_str("\nNIC Legend:\n\n");
            for (at, (name, _)) in nics.iter().enumerate() {
                let _ = writeln!(text, "  NIC{at}: {name}");
            }
        }
        text
    }

    fn type_cell(&self, path: &Path, pcie: PathType) -> String {
        match path.kind {
            PathType::Nvl => {
                let links = path.links.unwrap_or(1);
                let ends = path.nodes.first().zip(path.nodes.get(1));
                let xgmi = ends.is_some_and(|(&a, &b)| self.link_position(a, b, LinkKind::Xgmi).is_some());
                match (xgmi, links) {
                    (true, 1) => "XGMI".into(),
                    (true, links) => format!("XGMI{links}"),
                    (false, links) => format!("NV{links}"),
                }
            }
            // The tool knows no relay; it prints the PCIe way.
            PathType::Nvb if pcie.is_pcie() => pcie.name().into(),
            kind => kind.name().into(),
        }
    }
}

fn rate_cell(path: &Path) -> String {
    match path.kind {
        PathType::Dis => "DIS".into(),
        kind if path.gbs >= 100.0 => format!("{kind} {:.0}", path.gbs),
        kind => format!("{kind} {}", (path.gbs * 10.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::SmiOptions;

    #[test]
    fn the_layout_is_that_of_the_tool() {
        let text = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tSYS\t0-7\t0\n\
                    GPU1\tNV4\t X \tSYS\t0-7\t0\nGPU2\tSYS\tSYS\t X \t8-15\t1\n";
        let t = Topology::from_smi(text, "m", &SmiOptions::default()).unwrap();
        let legend =
            "\nLegend:\n\n  X    = the GPU itself\n  SYS  = through PCIe and the bus between NUMA nodes\n";
        let types = t.matrix(Cells::Types);
        assert_eq!(types, format!("{text}{legend}  NV#  = over # bonded NVLinks\n"));
        let rates = t.matrix(Cells::Rates);
        assert!(rates.contains("GPU0\t X \tNVL 80\tSYS 16\t0-7\t0\n"), "{rates}");
        assert!(rates.contains("NVL  = ") && !rates.contains("NV#"), "{rates}");
    }

    #[test]
    fn a_relay_over_nvlink_is_printed_as_the_way_over_pcie() {
        let t = Topology::pendant(Some(24.0));
        assert!(t.matrix(Cells::Types).contains("GPU0\t X \tNV3\tNV3\tPIX\n"));
        assert!(t.matrix(Cells::Rates).contains("GPU0\t X \tNVL 75\tNVL 75\tNVB 75\n"));
        assert!(Topology::dgx1v().matrix(Cells::Types).contains("NVB"));
    }
}
