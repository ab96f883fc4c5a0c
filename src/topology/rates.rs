//! What a link carries when nobody says: the tables, and the overrides a user may give.
//!
//! The NVLink, PCIe and inter-socket figures are those of NCCL's own model, so that predictions can be
//! compared. They are rates that copies reach, below the signalling rate: an NVLink of Hopper signals 26.6
//! GB/s, and 20.6 of them arrive as payload.

use crate::error::{Error, Result};
use crate::topology::model::{Cpu, LinkKind, NodeKind, Topology};

/// GB/s of one NVLink in one direction, by compute capability (`80` for 8.0). Unknown counts as 80.
pub(crate) fn nvlink_gbs(sm: Option<u32>) -> f64 {
    match sm.unwrap_or(80) {
        100.. => 40.1,
        90.. => 20.6,
        86 => 12.0,
        70.. => 20.0,
        _ => 18.0,
    }
}

/// NVLinks that a GPU of this compute capability can have. Unknown counts as the most there are.
pub(crate) fn max_nvlinks(sm: Option<u32>) -> u32 {
    match sm {
        Some(0..60) => 0,
        Some(60..70) => 4,
        Some(70..80) => 6,
        Some(80..90) => 12,
        _ => 18,
    }
}

/// GB/s of one xGMI link in one direction, by AMD's architecture name, and whether the name was recognised.
pub(crate) fn xgmi_gbs(arch: Option<&str>) -> (f64, bool) {
    match arch {
        Some(a) if a.starts_with("gfx94") || a.starts_with("gfx95") => (48.0, true),
        Some(a) if a.starts_with("gfx90a") => (36.0, true),
        Some(a) if a.starts_with("gfx90") => (24.0, true),
        _ => (48.0, false),
    }
}

/// GB/s of a PCIe link in one direction from its speed as sysfs writes it (`16.0 GT/s PCIe`) and its width in
/// lanes.
///
/// An unknown speed counts as 8 GT/s, a width of 0 (as virtual machines report) as 16 lanes.
pub(crate) fn pcie_gbs(speed: Option<&str>, width: Option<u32>) -> f64 {
    let lane = match speed.and_then(gigatransfers) {
        Some(x) if x >= 64.0 => 480.0,
        Some(x) if x >= 32.0 => 240.0,
        Some(x) if x >= 16.0 => 120.0,
        Some(x) if x >= 8.0 => 60.0,
        Some(x) if x >= 5.0 => 30.0,
        Some(x) if x >= 2.0 => 15.0,
        _ => 60.0,
    };
    let lanes = width.filter(|&w| (1..=32).contains(&w)).unwrap_or(16);
    f64::from(lanes) * lane / 80.0
}

/// The number before `GT/s`.
pub(crate) fn gigatransfers(speed: &str) -> Option<f64> {
    let number = speed.split_whitespace().next()?;
    number.trim_end_matches("GT/s").parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0)
}

/// GB/s between two sockets (or NUMA nodes) of this kind in one direction; `None` if the kind is not known.
pub(crate) fn smp_gbs(cpu: &Cpu) -> Option<f64> {
    let model = cpu.model.unwrap_or(0);
    match (cpu.arch.as_deref(), cpu.vendor.as_deref()) {
        (Some("ppc64" | "ppc64le"), _) => Some(32.0),
        (Some("arm64" | "aarch64"), _) => Some(6.0),
        (_, Some("GenuineIntel")) => Some(match cpu.family {
            Some(6) if model >= 0xcf => 40.0,
            Some(6) if model >= 0x8f => 22.0,
            Some(6) if model >= 0x55 => 10.0,
            _ => 6.0,
        }),
        (_, Some("AuthenticAMD")) => Some(16.0),
        (_, Some(v)) if v == "CentaurHauls" || v.trim() == "Shanghai" => {
            Some(if cpu.family == Some(7) && model >= 0x5b { 9.0 } else { 6.0 })
        }
        _ => None,
    }
}

/// Between sockets nobody described.
pub(crate) const UNKNOWN_SMP_GBS: f64 = 16.0;

/// A PCIe link nobody described: what PCIe 4.0 x16 carries.
pub(crate) const UNKNOWN_PCIE_GBS: f64 = 24.0;

/// Rates given by the user, in GB/s and for one direction, in place of the built-in ones.
///
/// ```
/// use ringleader::topology::LinkRates;
///
/// let rates: LinkRates = "NV=25,PIX=24,SYS=20".parse()?;
/// assert_eq!((rates.nv, rates.pix, rates.phb), (Some(25.0), Some(24.0), None));
/// # Ok::<(), ringleader::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkRates {
    /// One NVLink (or xGMI link); a bond of # links carries # times as much.
    pub nv: Option<f64>,
    /// The port of a GPU behind a PCIe switch.
    pub pix: Option<f64>,
    /// A link between two PCIe switches.
    pub pxb: Option<f64>,
    /// A link from a GPU or PCIe switch to the host bridge.
    pub phb: Option<f64>,
    /// The same where GPUs sit on several host bridges of one NUMA node.
    pub node: Option<f64>,
    /// The link between two NUMA nodes.
    pub sys: Option<f64>,
    /// All chip-to-chip links of one GPU together.
    pub c2c: Option<f64>,
}

impl LinkRates {
    /// Whether nothing is overridden.
    pub fn is_empty(&self) -> bool {
        *self == LinkRates::default()
    }
}

impl std::str::FromStr for LinkRates {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid_value(
                "link",
                text,
                "NAME=GB/s pairs separated by commas, NAME one of NV, PIX, PXB, PHB, NODE, SYS, C2C, \
                 and a number above 0 and at most 100000: NV=25,PIX=24,SYS=20",
            )
        };
        let mut rates = LinkRates::default();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').ok_or_else(bad)?;
            let value: f64 = value.trim().parse().map_err(|_| bad())?;
            if !(value > 0.0 && value <= 1e5) {
                return Err(bad());
            }
            let slot = match name.trim().to_ascii_uppercase().as_str() {
                "NV" | "NVL" | "XGMI" => &mut rates.nv,
                "PIX" => &mut rates.pix,
                "PXB" => &mut rates.pxb,
                "PHB" => &mut rates.phb,
                "NODE" => &mut rates.node,
                "SYS" | "SOC" => &mut rates.sys,
                "C2C" => &mut rates.c2c,
                _ => return Err(bad()),
            };
            if slot.replace(value).is_some() {
                return Err(bad());
            }
        }
        Ok(rates)
    }
}

impl Topology {
    /// The same machine with some rates replaced.
    ///
    /// `PHB` applies to every link that ends at a CPU, `PXB` to links between PCIe switches, `PIX` to all other
    /// PCIe links. `NODE` has no link of its own here and is taken for `PHB` where that is not given.
    pub fn with_rates(mut self, rates: &LinkRates) -> Topology {
        for id in 0..self.links().len() {
            let link = &self.links()[id];
            let is = |kind: fn(&NodeKind) -> bool| {
                (kind(&self.nodes()[link.a].kind), kind(&self.nodes()[link.b].kind))
            };
            let cpu = is(|k| matches!(k, NodeKind::Cpu(_)));
            let switch = is(|k| matches!(k, NodeKind::PciSwitch));
            let rate = match link.kind {
                LinkKind::NvLink | LinkKind::Xgmi => rates.nv.map(|r| r * f64::from(link.count)),
                LinkKind::C2c => rates.c2c,
                LinkKind::Smp => rates.sys,
                LinkKind::Pcie if cpu.0 || cpu.1 => rates.phb.or(rates.node),
                LinkKind::Pcie if switch.0 && switch.1 => rates.pxb,
                LinkKind::Pcie => rates.pix,
            };
            if let Some(rate) = rate {
                self.set_rate(id, rate);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcie_rates_follow_speed_and_width() {
        assert_eq!(pcie_gbs(Some("8.0 GT/s PCIe"), Some(16)), 12.0);
        assert_eq!(pcie_gbs(Some("16 GT/s"), Some(16)), 24.0);
        assert_eq!(pcie_gbs(Some("32.0 GT/s PCIe"), Some(16)), 48.0);
        assert_eq!(pcie_gbs(Some("32.0 GT/s PCIe"), Some(8)), 24.0);
        assert_eq!(pcie_gbs(Some("2.5 GT/s PCIe"), Some(1)), 0.1875);
        assert_eq!(pcie_gbs(Some("Unknown"), Some(0)), 12.0);
        assert_eq!(pcie_gbs(None, None), 12.0);
        assert_eq!(pcie_gbs(Some("64.0 GT/s PCIe"), Some(255)), 96.0);
    }

    #[test]
    fn socket_rates_follow_the_model() {
        let cpu = |vendor: &str, family, model| Cpu {
            arch: Some("x86_64".into()),
            vendor: Some(vendor.into()),
            family: Some(family),
            model: Some(model),
            ..Cpu::default()
        };
        assert_eq!(smp_gbs(&cpu("GenuineIntel", 6, 79)), Some(6.0));
        assert_eq!(smp_gbs(&cpu("GenuineIntel", 6, 85)), Some(10.0));
        assert_eq!(smp_gbs(&cpu("GenuineIntel", 6, 143)), Some(22.0));
        assert_eq!(smp_gbs(&cpu("GenuineIntel", 6, 207)), Some(40.0));
        assert_eq!(smp_gbs(&cpu("AuthenticAMD", 143, 49)), Some(16.0));
        assert_eq!(smp_gbs(&cpu("  Shanghai  ", 7, 91)), Some(9.0));
        assert_eq!(smp_gbs(&Cpu::default()), None);
    }

    #[test]
    fn overrides_are_parsed_strictly() {
        for bad in ["", "NV", "NV=", "NV=0", "NV=-1", "NV=nan", "NV=inf", "FOO=1", "NV=1,NV=2", "NV=1,"] {
            let error = bad.parse::<LinkRates>().unwrap_err().to_string();
            assert!(error.contains("NV=25,PIX=24,SYS=20"), "{bad:?}: {error}");
        }
        let rates: LinkRates = "nv=20.6, sys=10".parse().unwrap();
        assert_eq!((rates.nv, rates.sys), (Some(20.6), Some(10.0)));
    }
}
