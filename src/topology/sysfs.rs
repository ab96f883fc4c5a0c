//! Asking the kernel for facts: `/sys` and `/proc`.

use std::fs;
use std::path::Path;

use crate::topology::bus_id;
use crate::topology::facts::{HostFacts, NetFacts, NumaFacts, PciFacts, SysfsFacts};

/// The text of a small file, trimmed; `None` if it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_matches(['\n', '\0', ' ']);
    (!text.is_empty()).then(|| text.to_string())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// Names in a folder, sorted; empty if there is no such folder.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The CPU.
pub(crate) fn host(root: &Path) -> HostFacts {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    };
    let cpuinfo = text(&root.join("proc/cpuinfo")).unwrap_or_default();
    // All CPUs of a host are alike: the first paragraph will do.
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let field = |name: &str| {
        let named = |l: &&str| l.split(':').next().is_some_and(|n| n.trim() == name);
        first.lines().find(named).and_then(|l| l.split_once(':')).map(|(_, v)| v.trim().to_string())
    };
    HostFacts {
        arch: Some(arch.to_string()),
        vendor: field("vendor_id"),
        family: field("cpu family").and_then(|v| v.parse().ok()),
        model: field("model").and_then(|v| v.parse().ok()),
        hypervisor: field("flags").map(|f| f.split_whitespace().any(|w| w == "hypervisor")),
    }
}

/// GPUs, NVSwitches, NICs, and the bridges above them.
pub(crate) fn gather(root: &Path) -> SysfsFacts {
    let devices = root.join("sys/bus/pci/devices");
    let mut facts = SysfsFacts::default();
    if let Err(e) = fs::read_dir(&devices) {
        facts.error = Some(format!("{}: {e}", devices.display()));
        return facts;
    }
    let mut bridges: Vec<String> = Vec::new();
    for name in names(&devices) {
        let folder = devices.join(&name);
        let class = text(&folder.join("class")).unwrap_or_default();
        let vendor = text(&folder.join("vendor")).unwrap_or_default();
        let gpu = (class.starts_with("0x03") && vendor == "0x10de")
            || (class.starts_with("0x1200") && vendor == "0x1002");
        let switch = class.starts_with("0x0680") && vendor == "0x10de";
        // Virtual functions are slices of a card that is listed itself.
        let nic =
            (class.starts_with("0x02") || class.starts_with("0x0c06")) && !folder.join("physfn").exists();
        if !(gpu || switch || nic) {
            continue;
        }
        let device = pci(&folder, &name);
        if nic && device.nets.is_empty() {
            continue;
        }
        bridges.extend(device.above.iter().filter(|b| !bridges.contains(b)).cloned().collect::<Vec<_>>());
        facts.pci.push(device);
    }
    bridges.sort();
    facts.pci.extend(bridges.iter().map(|name| pci(&devices.join(name), name)));
    let nodes = root.join("sys/devices/system/node");
    for name in names(&nodes) {
        let Some(id) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        facts.numa.push(NumaFacts { id, cpus: text(&nodes.join(&name).join("cpumap")) });
    }
    facts.numa.sort_by_key(|n| n.id);
    facts
}

fn pci(folder: &Path, name: &str) -> PciFacts {
    let read = |file: &str| text(&folder.join(file));
    let place = fs::canonicalize(folder).ok();
    let parts: Vec<String> = place
        .iter()
        .flat_map(|p| p.components())
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    let ids: Vec<String> = parts.iter().filter_map(|p| bus_id::normalize(p)).collect();
    PciFacts {
        bus_id: bus_id::normalize(name).unwrap_or_else(|| name.to_string()),
        above: ids[..ids.len().saturating_sub(1)].to_vec(),
        root: parts.iter().find(|p| p.starts_with("pci") && p.contains(':')).cloned(),
        // The kernel writes 0x030200 with the programming interface at the end, as NCCL does.
        class: read("class"),
        vendor: read("vendor"),
        device: read("device"),
        subsystem_vendor: read("subsystem_vendor"),
        subsystem_device: read("subsystem_device"),
        max_link_speed: read("max_link_speed"),
        max_link_width: number(&folder.join("max_link_width")),
        numa: number(&folder.join("numa_node")),
        nets: nets(folder),
    }
}

/// RDMA devices, or else network interfaces.
fn nets(folder: &Path) -> Vec<NetFacts> {
    let rdma = folder.join("infiniband");
    let devices = names(&rdma);
    if !devices.is_empty() {
        let speed = |name: &str| {
            // "400 Gb/sec (4X NDR)"
            let rate = text(&rdma.join(name).join("ports/1/rate"))?;
            let gbit: f64 = rate.split_whitespace().next()?.parse().ok()?;
            Some((gbit * 1000.0) as u64)
        };
        return devices.iter().map(|n| NetFacts { name: n.clone(), speed_mbps: speed(n) }).collect();
    }
    let net = folder.join("net");
    let speed = |name: &str| number::<i64>(&net.join(name).join("speed")).and_then(|s| u64::try_from(s).ok());
    names(&net).iter().map(|n| NetFacts { name: n.clone(), speed_mbps: speed(n) }).collect()
}
