//! Raw facts about a machine, as NVML, the kernel and CUDA tell them: recorded as JSON, interpreted later.
//!
//! Nothing is concluded here. What could not be asked is `None`, with the reason in the matching `error` field.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::topology::load::read_text;

/// The version written into recorded facts.
pub const FACTS_VERSION: u32 = 1;

/// Everything that [`Topology::from_facts`](crate::topology::Topology::from_facts) looks at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Version of this format.
    pub version: u32,
    /// The CPU.
    pub host: HostFacts,
    /// What NVML says.
    pub nvml: NvmlFacts,
    /// What sysfs says.
    pub sysfs: SysfsFacts,
    /// What CUDA says, where the caller has asked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaFacts>,
    /// `CUDA_VISIBLE_DEVICES`, used only without `cuda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_visible_devices: Option<String>,
    /// `CUDA_DEVICE_ORDER`, used only without `cuda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_device_order: Option<String>,
}

/// The CPU, from `/proc/cpuinfo`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<String>,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// CPU family.
    pub family: Option<u32>,
    /// CPU model.
    pub model: Option<u32>,
    /// Whether the CPU says that it runs under a hypervisor.
    pub hypervisor: Option<bool>,
}

/// What NVML says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlFacts {
    /// Why NVML could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Its GPUs, in its order.
    pub gpus: Vec<NvmlGpu>,
    /// Each two of its GPUs.
    pub pairs: Vec<NvmlPair>,
}

/// A GPU as NVML sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlGpu {
    /// NVML's index.
    pub index: u32,
    /// Bus id, as NVML spells it.
    pub bus_id: String,
    /// UUID.
    pub uuid: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Compute capability as one number, 90 for 9.0.
    pub sm: Option<u32>,
    /// NUMA node, where NVML supports the question.
    pub numa: Option<u32>,
    /// Highest PCIe generation of the slot and the card.
    pub pcie_gen: Option<u32>,
    /// Most lanes of the slot and the card.
    pub pcie_width: Option<u32>,
    /// Whether the GPU is divided into MIG instances.
    pub mig: Option<bool>,
    /// Its NVLinks; inactive ones are listed, too.
    pub links: Vec<NvmlLink>,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlLink {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// Whether it can carry traffic between GPUs; `None` if NVML does not say.
    pub p2p: Option<bool>,
    /// Bus id of the other end; all F for an NVSwitch that is not visible.
    pub remote_bus_id: Option<String>,
    /// `gpu`, `switch` or `cpu`, where known.
    pub remote_type: Option<String>,
    /// MB/s in one direction that the link signals.
    pub speed_mbs: Option<u64>,
}

/// What NVML says about two GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlPair {
    /// Index of one.
    pub a: u32,
    /// Index of the other.
    pub b: u32,
    /// NVML's number for the common ancestor: 0 same board, 10 one switch, 20 several, 30 host bridge, 40
    /// NUMA node, 50 system.
    pub common_ancestor: Option<u32>,
    /// Whether `a` may read `b`'s memory: `ok`, or why not.
    pub p2p_read: Option<String>,
    /// Whether `a` may write `b`'s memory: `ok`, or why not.
    pub p2p_write: Option<String>,
}

/// What sysfs says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SysfsFacts {
    /// Why sysfs could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// GPUs, NICs and the bridges above them.
    pub pci: Vec<PciFacts>,
    /// NUMA nodes.
    pub numa: Vec<NumaFacts>,
}

/// A PCI device in sysfs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciFacts {
    /// Bus id.
    pub bus_id: String,
    /// Bus ids of the bridges above, from the root down.
    pub above: Vec<String>,
    /// The host bridge, `pci0000:00`.
    pub root: Option<String>,
    /// Class code, `0x030200`.
    pub class: Option<String>,
    /// Vendor.
    pub vendor: Option<String>,
    /// Device.
    pub device: Option<String>,
    /// Vendor of the board.
    pub subsystem_vendor: Option<String>,
    /// The board.
    pub subsystem_device: Option<String>,
    /// Highest speed of its link upwards, `32.0 GT/s PCIe`.
    pub max_link_speed: Option<String>,
    /// Most lanes of that link.
    pub max_link_width: Option<u32>,
    /// NUMA node; −1 for unknown.
    pub numa: Option<i32>,
    /// Network devices on it.
    pub nets: Vec<NetFacts>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetFacts {
    /// Its name, `mlx5_0` or `eth0`.
    pub name: String,
    /// Mb/s.
    pub speed_mbps: Option<u64>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaFacts {
    /// Its number.
    pub id: i32,
    /// Mask of its CPUs, in hexadecimal groups.
    pub cpus: Option<String>,
}

/// What CUDA says. The order of the GPUs is that of the ranks, whatever `CUDA_VISIBLE_DEVICES` made of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaFacts {
    /// The GPUs, by CUDA ordinal or by rank.
    pub gpus: Vec<CudaGpu>,
    /// Whether GPU `i` can access the memory of GPU `j`; empty if not asked.
    pub peer_access: Vec<Vec<bool>>,
}

/// A GPU as CUDA sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaGpu {
    /// Bus id, as CUDA spells it.
    pub bus_id: String,
    /// UUID, `GPU-…`.
    pub uuid: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Compute capability as one number, 90 for 9.0.
    pub sm: Option<u32>,
}

impl Facts {
    /// Writes the facts to a file, to be replayed with [`load`](Self::load).
    pub fn record(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_json())
            .map_err(|e| Error::System { action: format!("write {}", path.display()), reason: e.to_string() })
    }

    /// Reads facts that [`record`](Self::record) wrote.
    pub fn load(path: impl AsRef<Path>) -> Result<Facts> {
        let path = path.as_ref();
        Self::from_json(&read_text(path)?, &path.display().to_string())
    }

    /// The facts as JSON.
    pub fn to_json(&self) -> String {
        // Plain structs of strings and numbers always serialize.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Facts from JSON. `file` names it in errors.
    pub fn from_json(text: &str, file: &str) -> Result<Facts> {
        let fail = |line: Option<usize>, reason: String| Error::Parse { file: file.into(), line, reason };
        let text = text.trim_start_matches('\u{feff}');
        let facts: Facts = serde_json::from_str(text)
            .map_err(|e| fail(Some(e.line()), format!("not recorded facts: {e}")))?;
        match facts.version {
            FACTS_VERSION => Ok(facts),
            0 => Err(fail(None, "not recorded facts: there is no version".into())),
            v => Err(fail(None, format!("facts of version {v}; this program reads version {FACTS_VERSION}"))),
        }
    }
}
