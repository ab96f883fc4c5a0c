//! Asking NVML for facts.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::enum_wrappers::nv_link::{Capability, IntDeviceType};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use std::path::Path;

use crate::topology::facts::{CudaFacts, FACTS_VERSION, Facts, NvmlFacts, NvmlGpu, NvmlLink, NvmlPair};
use crate::topology::sysfs;

/// Links are asked for up to this number; no GPU has more.
const MAX_LINKS: u32 = 18;

/// NVML's field for the signalling rate of all links alike, in MB/s.
const FIELD_LINK_SPEED: FieldId = FieldId(90);

impl Facts {
    /// Asks NVML and the kernel about this machine. Never fails: what cannot be asked is noted in the facts.
    pub fn gather() -> Facts {
        Self::gather_below(Path::new("/"))
    }

    /// As [`gather`](Self::gather), with `/sys` and `/proc` looked for below `root`.
    pub fn gather_below(root: &Path) -> Facts {
        Facts {
            version: FACTS_VERSION,
            host: sysfs::host(root),
            nvml: nvml(),
            sysfs: sysfs::gather(root),
            cuda: None,
            cuda_visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            cuda_device_order: std::env::var("CUDA_DEVICE_ORDER").ok(),
        }
    }

    /// Adds what CUDA says. From then on its GPUs, in its order, are the GPUs of the machine.
    pub fn with_cuda(mut self, cuda: CudaFacts) -> Facts {
        self.cuda = Some(cuda);
        self
    }
}

fn nvml() -> NvmlFacts {
    let failed =
        |e: nvml_wrapper::error::NvmlError| NvmlFacts { error: Some(e.to_string()), ..NvmlFacts::default() };
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(e) => return failed(e),
    };
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(e) => return failed(e),
    };
    let mut facts = NvmlFacts { driver: nvml.sys_driver_version().ok(), ..NvmlFacts::default() };
    let mut devices = Vec::new();
    for index in 0..count {
        // A GPU that fell off the bus is left out, not the whole machine.
        let Ok(device) = nvml.device_by_index(index) else { continue };
        if let Some(gpu) = gpu(&device, index) {
            facts.gpus.push(gpu);
            devices.push((index, device));
        }
    }
    for (at, (a, one)) in devices.iter().enumerate() {
        for (b, other) in &devices[at + 1..] {
            let ancestor = nvml.topology_common_ancestor(one, other).ok();
            let status = |index| one.p2p_status(other, index).ok().map(p2p_word);
            facts.pairs.push(NvmlPair {
                a: *a,
                b: *b,
                common_ancestor: ancestor.map(ancestor_number),
                p2p_read: status(P2pCapabilitiesIndex::Read),
                p2p_write: status(P2pCapabilitiesIndex::Write),
            });
        }
    }
    facts
}

fn gpu(device: &Device, index: u32) -> Option<NvmlGpu> {
    let capability = device.cuda_compute_capability().ok();
    let sm = capability.and_then(|c| u32::try_from(c.major * 10 + c.minor).ok());
    Some(NvmlGpu {
        index,
        bus_id: device.pci_info().ok()?.bus_id,
        uuid: device.uuid().ok(),
        name: device.name().ok(),
        sm,
        numa: device.numa_node_id().ok(),
        pcie_gen: device.max_pcie_link_gen().ok(),
        pcie_width: device.max_pcie_link_width().ok(),
        mig: device.mig_mode().ok().map(|m| m.current != 0),
        links: links(device),
    })
}

fn links(device: &Device) -> Vec<NvmlLink> {
    let sample = device.field_values_for(&[FIELD_LINK_SPEED]).ok().and_then(|v| v.into_iter().next());
    let speed_mbs = sample.and_then(Result::ok).and_then(|s| s.value.ok()).and_then(|v| match v {
        SampleValue::U32(x) => Some(u64::from(x)),
        SampleValue::U64(x) => Some(x),
        _ => None,
    });
    let mut links = Vec::new();
    for number in 0..MAX_LINKS {
        let link = device.link_wrapper_for(number);
        // An error means that the GPU has no such link.
        let Ok(active) = link.is_active() else { continue };
        let remote_type = link.remote_device_type(number).ok().and_then(|t| match t {
            IntDeviceType::Gpu => Some("gpu"),
            IntDeviceType::Ibmnpu => Some("cpu"),
            IntDeviceType::Switch => Some("switch"),
            IntDeviceType::Unknown => None,
        });
        links.push(NvmlLink {
            link: number,
            active,
            p2p: link.has_capability(Capability::P2p).ok(),
            remote_bus_id: link.remote_pci_info().ok().map(|p| p.bus_id),
            remote_type: remote_type.map(String::from),
            speed_mbs: speed_mbs.filter(|&s| s > 0),
        });
    }
    links
}

fn ancestor_number(level: TopologyLevel) -> u32 {
    match level {
        TopologyLevel::Internal => 0,
        TopologyLevel::Single => 10,
        TopologyLevel::Multiple => 20,
        TopologyLevel::HostBridge => 30,
        TopologyLevel::Node => 40,
        TopologyLevel::System => 50,
    }
}

fn p2p_word(status: P2pStatus) -> String {
    match status {
        P2pStatus::Ok => "ok",
        P2pStatus::ChipsetNotSupported => "not supported by the chipset",
        P2pStatus::GpuNotSupported => "not supported by the GPU",
        P2pStatus::IohTopologyNotSupported => "not supported by the PCIe topology",
        P2pStatus::DisabledByRegkey => "switched off in the driver's settings",
        P2pStatus::NotSupported => "not supported",
        P2pStatus::Unknown => "unknown",
    }
    .to_string()
}
