//! From the facts of a machine to its topology.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::topology::bus_id;
use crate::topology::facts::{Facts, NvmlGpu, NvmlPair, PciFacts};
use crate::topology::model::{Cpu, Gpu, Net, Nic, Pci, Topology};
use crate::topology::path::PathType;
use crate::topology::pcie_groups::{self, Placement};
use crate::topology::rates::{self, LinkRates};
use crate::topology::tree::{
    self, CLASS_NVSWITCH, CLASS_POWER_BRIDGE, CpuTree, Device, GpuPart, LinkPart, Part, Tree,
};
use crate::topology::visible;

/// A GPU that will be in the topology, and what is known of it.
pub(crate) struct Found<'a> {
    pub(crate) bus_id: String,
    pub(crate) uuid: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) sm: Option<u32>,
    pub(crate) nvml: Option<&'a NvmlGpu>,
    sysfs: Option<&'a PciFacts>,
}

impl Topology {
    /// The running machine: gathers facts and interprets them.
    pub fn detect() -> Result<Topology> {
        Self::from_facts(&Facts::gather())
    }

    /// Interprets facts. The GPUs are those that CUDA lists, in its order, where the facts have been given
    /// that; else those that NVML lists, as `CUDA_VISIBLE_DEVICES` selects them; else those in sysfs. A
    /// machine without GPUs is a topology without GPUs.
    ///
    /// Fails if CUDA's list is not usable: the same GPU twice, or a bus id that is none.
    pub fn from_facts(facts: &Facts) -> Result<Topology> {
        Self::from_facts_named(facts, "this machine")
    }

    pub(crate) fn from_facts_named(facts: &Facts, name: &str) -> Result<Topology> {
        let mut t = Topology::new(name);
        if let Some(reason) = &facts.nvml.error {
            t.warn(format!("NVML cannot be used ({reason}): NVLinks are not known, only PCIe is."));
        }
        if let Some(reason) = &facts.sysfs.error {
            t.warn(format!("The kernel's view of PCIe cannot be read ({reason})."));
        }
        let gpus = find_gpus(facts, &mut t, name)?;
        if gpus.iter().any(|g| g.sysfs.is_some()) || gpus.is_empty() {
            with_tree(facts, &gpus, name, &mut t)?;
        } else {
            without_tree(facts, &gpus, name, &mut t)?;
        }
        state_distances(facts, &gpus, &mut t);
        peer_access(facts, &gpus, &mut t);
        notes(facts, &gpus, &mut t);
        Ok(t)
    }
}

fn find_gpus<'a>(facts: &'a Facts, t: &mut Topology, name: &str) -> Result<Vec<Found<'a>>> {
    let fail = |reason: String| Err(Error::Parse { file: name.into(), line: None, reason });
    let spelled = |text: &str| bus_id::normalize(text).unwrap_or_else(|| text.to_ascii_lowercase());
    let in_sysfs = |id: &str| facts.sysfs.pci.iter().find(|p| spelled(&p.bus_id) == id);
    let from_nvml = |g: &'a NvmlGpu| {
        let bus_id = spelled(&g.bus_id);
        let sysfs = in_sysfs(&bus_id);
        Found { sysfs, bus_id, uuid: g.uuid.clone(), name: g.name.clone(), sm: g.sm, nvml: Some(g) }
    };
    let mut gpus: Vec<Found> = Vec::new();
    if let Some(cuda) = &facts.cuda {
        for (i, g) in cuda.gpus.iter().enumerate() {
            let Some(id) = bus_id::normalize(&g.bus_id) else {
                return fail(format!("GPU {i} of CUDA has bus id {:?}, which is none", g.bus_id));
            };
            if let Some(first) = gpus.iter().position(|f| f.bus_id == id) {
                return fail(format!("GPUs {first} and {i} of CUDA have the same bus id {id}"));
            }
            let by_bus = |n: &&NvmlGpu| spelled(&n.bus_id) == id;
            let by_uuid = |n: &&NvmlGpu| n.uuid.is_some() && n.uuid == g.uuid;
            let nvml = facts.nvml.gpus.iter().find(by_bus).or_else(|| facts.nvml.gpus.iter().find(by_uuid));
            if nvml.is_none() && facts.nvml.error.is_none() {
                t.warn(format!("NVML does not list GPU{i} ({id}): its NVLinks are not known."));
            }
            gpus.push(Found {
                uuid: g.uuid.clone().or_else(|| nvml.and_then(|n| n.uuid.clone())),
                name: g.name.clone().or_else(|| nvml.and_then(|n| n.name.clone())),
                sm: g.sm.or_else(|| nvml.and_then(|n| n.sm)),
                sysfs: in_sysfs(&id),
                bus_id: id,
                nvml,
            });
        }
        return Ok(gpus);
    }
    if facts.nvml.gpus.is_empty() {
        let is_gpu = |p: &&PciFacts| {
            let is =
                |field: &Option<String>, start: &str| field.as_deref().is_some_and(|f| f.starts_with(start));
            is(&p.class, "0x03") && is(&p.vendor, "0x10de")
                || is(&p.class, "0x1200") && is(&p.vendor, "0x1002")
        };
        gpus.extend(facts.sysfs.pci.iter().filter(is_gpu).map(|p| Found {
            bus_id: spelled(&p.bus_id),
            uuid: None,
            name: None,
            sm: None,
            nvml: None,
            sysfs: Some(p),
        }));
        gpus.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
    } else {
        gpus.extend(facts.nvml.gpus.iter().map(from_nvml));
    }
    Ok(visible::select(gpus, facts, t))
}

/// The part of the tree that a GPU is, without its place.
fn gpu_part(facts: &Facts, gpus: &[Found], index: usize) -> GpuPart {
    let found = &gpus[index];
    let gpu = Gpu {
        bus_id: Some(found.bus_id.clone()),
        uuid: found.uuid.clone(),
        name: found.name.clone(),
        sm: found.sm,
        dev: found.nvml.map(|n| n.index),
        ..Gpu::default()
    };
    let mut links: BTreeMap<(String, Option<String>), LinkPart> = BTreeMap::new();
    let usable = |l: &&crate::topology::facts::NvmlLink| l.active && l.p2p != Some(false);
    for link in found.nvml.iter().flat_map(|n| &n.links).filter(usable) {
        let raw = link.remote_bus_id.as_deref().unwrap_or("");
        let target = bus_id::normalize(raw).unwrap_or_else(|| raw.to_ascii_lowercase());
        let unknown = bus_id::is_unknown_remote(raw);
        let in_sysfs = || facts.sysfs.pci.iter().find(|p| p.bus_id == target).and_then(|p| p.class.clone());
        let is_gpu = |bus: &str| bus_id::normalize(bus).is_some_and(|b| b == target);
        let listed = facts.nvml.gpus.iter().any(|n| is_gpu(&n.bus_id));
        if listed && !gpus.iter().any(|g| g.bus_id == target) {
            // A GPU of the machine that is not in use: it does not relay, so the link leads nowhere.
            continue;
        }
        let class = match link.remote_type.as_deref() {
            Some("switch") => Some(CLASS_NVSWITCH.to_string()),
            Some("cpu") => Some(CLASS_POWER_BRIDGE.to_string()),
            _ if unknown => Some(CLASS_NVSWITCH.to_string()),
            Some("gpu") => Some("0x030200".to_string()),
            _ => in_sysfs(),
        };
        let nominal = link.speed_mbs.map(|s| s as f64 / 1000.0);
        let entry = links.entry((target.clone(), class.clone())).or_insert(LinkPart {
            target,
            count: 0,
            class,
            xgmi: false,
            nominal_gbs: Some(0.0),
        });
        entry.count += 1;
        entry.nominal_gbs = entry.nominal_gbs.zip(nominal).map(|(sum, one)| sum + one);
    }
    // The order of the list is the order of the ranks.
    GpuPart { gpu, rank: u32::try_from(index).ok(), links: links.into_values().collect(), c2c: None }
}

/// The slower of two link speeds as sysfs writes them; an unknown one does not count.
fn slower(a: Option<&String>, b: Option<&String>) -> Option<String> {
    let speed = |s: &&String| rates::gigatransfers(s);
    let known = [a, b].into_iter().flatten().filter(|s| speed(s).is_some());
    known.min_by(|x, y| f64::total_cmp(&speed(x).unwrap_or(0.0), &speed(y).unwrap_or(0.0))).cloned()
}

/// A device's PCI facts, its link as slow as the slower of its two ends.
fn pci_of(device: &PciFacts, above: Option<&PciFacts>) -> Pci {
    let lanes = |p: &PciFacts| p.max_link_width.filter(|w| (1..=32).contains(w));
    let width = match (lanes(device), above.and_then(lanes)) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    Pci {
        bus_id: Some(bus_id::normalize(&device.bus_id).unwrap_or_else(|| device.bus_id.clone())),
        class: device.class.clone(),
        vendor: device.vendor.clone(),
        device: device.device.clone(),
        subsystem_vendor: device.subsystem_vendor.clone(),
        subsystem_device: device.subsystem_device.clone(),
        link_speed: slower(device.max_link_speed.as_ref(), above.and_then(|p| p.max_link_speed.as_ref())),
        link_width: width,
    }
}

/// NVML's word about a GPU's PCIe link, where sysfs has none.
fn fill_from_nvml(pci: &mut Pci, gpu: &NvmlGpu) {
    let speed = match gpu.pcie_gen {
        Some(1) => Some("2.5"),
        Some(2) => Some("5.0"),
        Some(3) => Some("8.0"),
        Some(4) => Some("16.0"),
        Some(5) => Some("32.0"),
        Some(6) => Some("64.0"),
        _ => None,
    };
    pci.link_speed = pci.link_speed.take().or_else(|| speed.map(|s| format!("{s} GT/s PCIe")));
    pci.link_width = pci.link_width.or(gpu.pcie_width.filter(|w| (1..=32).contains(w)));
}

/// The machine with the PCIe tree that the kernel shows.
fn with_tree(facts: &Facts, gpus: &[Found], name: &str, t: &mut Topology) -> Result<()> {
    let by_id: BTreeMap<&str, &PciFacts> = facts.sysfs.pci.iter().map(|p| (p.bus_id.as_str(), p)).collect();
    let only_node = match facts.sysfs.numa[..] {
        [ref only] => Some(only.id),
        _ => None,
    };
    let mut cpus: BTreeMap<i32, CpuTree> = BTreeMap::new();
    let cpu_of = |numa: i32| {
        let mask = facts.sysfs.numa.iter().find(|n| n.id == numa).and_then(|n| n.cpus.clone());
        let host = facts.host.clone();
        let (arch, vendor, family, model) = (host.arch, host.vendor, host.family, host.model);
        let cpu = Cpu { numa, arch, vendor, family, model, affinity: mask, host: None };
        CpuTree { cpu, devices: Vec::new() }
    };
    let mut nowhere = Vec::new();
    for (i, found) in gpus.iter().enumerate() {
        let numa = found.sysfs.and_then(|p| p.numa).filter(|&n| n >= 0);
        let numa = numa.or_else(|| found.nvml.and_then(|n| n.numa).and_then(|n| i32::try_from(n).ok()));
        if numa.is_none() {
            nowhere.push(format!("GPU{i}"));
        }
        let cpu = cpus.entry(numa.or(only_node).unwrap_or(-1));
        let cpu = cpu.or_insert_with_key(|&n| cpu_of(n));
        let part = Part::Gpu(Box::new(gpu_part(facts, gpus, i)));
        let mut device = match found.sysfs {
            Some(p) => {
                let above = p.above.last().and_then(|id| by_id.get(id.as_str()).copied());
                Device::new(pci_of(p, above), None, part)
            }
            None => {
                t.warn(format!(
                    "The kernel shows no PCI device for GPU{i} ({}); its place on PCIe is assumed.",
                    found.bus_id
                ));
                let pci = Pci { bus_id: Some(found.bus_id.clone()), ..Pci::default() };
                Device::new(pci, None, part)
            }
        };
        if let Some(nvml) = found.nvml {
            fill_from_nvml(&mut device.pci, nvml);
        }
        if device.pci.link_speed.is_none() {
            t.warn(format!("The speed of GPU{i}'s PCIe link is not known; 8 GT/s are assumed."));
        }
        hang(device, found.sysfs.map_or(&[][..], |p| &p.above), &by_id, &mut cpu.devices);
    }
    for nic in facts.sysfs.pci.iter().filter(|p| !p.nets.is_empty()) {
        let numa = nic.numa.filter(|&n| n >= 0).or(only_node).unwrap_or(-1);
        // With GPUs there, NICs on CPUs that have none only clutter the picture.
        let Some(cpu) = cpus.get_mut(&numa) else { continue };
        let above = nic.above.last().and_then(|id| by_id.get(id.as_str()).copied());
        let device = Device::new(
            pci_of(nic, above),
            None,
            Part::Nic(Nic { nets: nic.nets.iter().map(net).collect() }),
        );
        hang(device, &nic.above, &by_id, &mut cpu.devices);
    }
    if gpus.is_empty() {
        facts.sysfs.numa.iter().for_each(|n| drop(cpus.insert(n.id, cpu_of(n.id))));
    }
    if !nowhere.is_empty() {
        let who = if nowhere.len() == gpus.len() { "the GPUs".to_string() } else { nowhere.join(", ") };
        t.warn(match only_node {
            Some(node) => format!(
                "The NUMA node of {who} is not known; there is only one, so they are taken to be on node {node}."
            ),
            None => format!("The NUMA node of {who} is not known; they are taken to share one unknown node."),
        });
    }
    tree::assemble(Tree { cpus: cpus.into_values().collect(), switch_links: Vec::new() }, name, t)
}

fn net(facts: &crate::topology::facts::NetFacts) -> Net {
    let mut attributes = vec![("name".to_string(), facts.name.clone())];
    attributes.extend(facts.speed_mbps.map(|s| ("speed".to_string(), s.to_string())));
    Net { name: facts.name.clone(), speed_mbps: facts.speed_mbps, attributes }
}

/// Hangs a device below the switches above it. A PCIe switch is two bridges in the kernel's tree, its
/// downstream and its upstream port, and the last bridge is the root port: so every second bridge, counted
/// from the device, is a switch.
fn hang(device: Device, above: &[String], by_id: &BTreeMap<&str, &PciFacts>, into: &mut Vec<Device>) {
    let from_device: Vec<&String> = above.iter().rev().collect();
    let mut switches: Vec<(&String, Option<&PciFacts>)> = Vec::new();
    for (at, id) in from_device.iter().enumerate().skip(1).step_by(2) {
        let port_above = from_device.get(at + 1).and_then(|id| by_id.get(id.as_str()).copied());
        switches.push((id, port_above));
    }
    let mut level = into;
    for (id, port_above) in switches.into_iter().rev() {
        let at = match level.iter().position(|d| d.pci.bus_id.as_ref() == Some(id)) {
            Some(at) => at,
            None => {
                let pci = match by_id.get(id.as_str()) {
                    Some(p) => pci_of(p, port_above),
                    None => {
                        Pci { bus_id: Some(id.clone()), class: Some("0x060400".into()), ..Pci::default() }
                    }
                };
                level.push(Device::new(pci, None, Part::Bridge));
                level.len() - 1
            }
        };
        level = &mut level[at].below;
    }
    level.push(device);
}

/// The machine without sysfs: PCIe as the pairwise distances that NVML tells.
fn without_tree(facts: &Facts, gpus: &[Found], name: &str, t: &mut Topology) -> Result<()> {
    let mut cpu = CpuTree { cpu: Cpu { numa: -1, ..Cpu::default() }, devices: Vec::new() };
    for i in 0..gpus.len() {
        let part = Part::Gpu(Box::new(gpu_part(facts, gpus, i)));
        let mut pci = Pci { bus_id: Some(gpus[i].bus_id.clone()), ..Pci::default() };
        if let Some(nvml) = gpus[i].nvml {
            fill_from_nvml(&mut pci, nvml);
        }
        cpu.devices.push(Device::new(pci, None, part));
    }
    let n = gpus.len();
    let distance = |i: usize, j: usize| told_distance(facts, gpus, i, j);
    let all_told = (0..n).all(|i| (0..i).all(|j| distance(i, j).is_some()));
    if n < 2 || !all_told {
        if n > 1 {
            t.warn("How the GPUs are joined by PCIe is not known; they are taken to share one host bridge.");
        }
        return tree::assemble(Tree { cpus: vec![cpu], switch_links: Vec::new() }, name, t);
    }
    // The tree gives GPUs and NVLinks; its PCIe, all on one CPU, is replaced by one built from the distances.
    let mut flat = Topology::new(name);
    tree::assemble(Tree { cpus: vec![cpu], switch_links: Vec::new() }, name, &mut flat)?;
    t.adopt_without_pcie(&flat);
    let cells: Vec<Vec<_>> =
        (0..n).map(|i| (0..n).map(|j| if i == j { None } else { distance(i, j) }).collect()).collect();
    let places: Vec<Placement> = (0..n)
        .map(|i| {
            let pci = t.nodes()[t.gpus()[i].node].pci.clone().unwrap_or_default();
            let known = pci.link_speed.is_some();
            let port_gbs = known.then(|| rates::pcie_gbs(pci.link_speed.as_deref(), pci.link_width));
            Placement { port_gbs, ..Placement::default() }
        })
        .collect();
    pcie_groups::build(t, &cells, &places, &LinkRates::default());
    t.warn("PCIe switches and host bridges are made up from the distances between GPUs that NVML tells.");
    Ok(())
}

fn pair_facts<'a>(facts: &'a Facts, gpus: &[Found], i: usize, j: usize) -> Option<&'a NvmlPair> {
    let (a, b) = (gpus[i].nvml?.index, gpus[j].nvml?.index);
    facts.nvml.pairs.iter().find(|p| (p.a == a && p.b == b) || (p.a == b && p.b == a))
}

fn told_distance(facts: &Facts, gpus: &[Found], i: usize, j: usize) -> Option<PathType> {
    Some(match pair_facts(facts, gpus, i, j)?.common_ancestor? {
        0..20 => PathType::Pix,
        20..30 => PathType::Pxb,
        30..40 => PathType::Phb,
        40..50 => PathType::Node,
        _ => PathType::Sys,
    })
}

/// What NVML, or else the names of the host bridges, say beyond the tree.
fn state_distances(facts: &Facts, gpus: &[Found], t: &mut Topology) {
    for i in 0..gpus.len() {
        for j in i + 1..gpus.len() {
            let roots =
                gpus[i].sysfs.zip(gpus[j].sysfs).filter(|(a, b)| a.root.is_some() && b.root.is_some());
            let node = roots.is_some_and(|(a, b)| a.root != b.root && a.numa == b.numa && a.numa >= Some(0));
            if let Some(said) = told_distance(facts, gpus, i, j).or(node.then_some(PathType::Node)) {
                t.state(i, j, said);
            }
        }
    }
}

fn peer_access(facts: &Facts, gpus: &[Found], t: &mut Topology) {
    let n = gpus.len();
    let ok = |word: &Option<String>| word.as_deref().map(|w| w == "ok");
    let cuda = facts.cuda.as_ref().map(|c| &c.peer_access).filter(|m| !m.is_empty());
    let matrix = match cuda {
        Some(m) if m.len() == n && m.iter().all(|row| row.len() == n) => Some(m.clone()),
        Some(_) => {
            t.warn("CUDA's table of peer access does not fit its list of GPUs and is not used.");
            None
        }
        None => {
            let pair = |i: usize, j: usize| {
                let p = pair_facts(facts, gpus, i, j)?;
                Some(ok(&p.p2p_read)? && ok(&p.p2p_write)?)
            };
            let row = |i: usize| (0..n).map(|j| if i == j { Some(false) } else { pair(i, j) }).collect();
            (0..n).map(row).collect()
        }
    };
    let Some(matrix) = matrix else { return };
    let paths = t.paths();
    for i in 0..n {
        for j in i + 1..n {
            if paths[i][j].kind == PathType::Nvl && !(matrix[i][j] && matrix[j][i]) {
                let why = pair_facts(facts, gpus, i, j).and_then(|p| {
                    [&p.p2p_write, &p.p2p_read].into_iter().flatten().find(|w| *w != "ok").cloned()
                });
                let why = why.map(|w| format!(" ({w})")).unwrap_or_default();
                t.warn(format!(
                    "GPU{i} and GPU{j} are joined by NVLink but may not access each other's memory{why}."
                ));
            }
        }
    }
    t.set_peer_access(matrix);
}

/// What a user should know although the topology is right.
fn notes(facts: &Facts, gpus: &[Found], t: &mut Topology) {
    for (i, found) in gpus.iter().enumerate() {
        let Some(nvml) = found.nvml else { continue };
        let down = nvml.links.iter().filter(|l| !l.active).count();
        if down > 0 && down < nvml.links.len() {
            t.warn(format!("{down} of the {} NVLinks of GPU{i} are not active.", nvml.links.len()));
        }
        if nvml.mig == Some(true) {
            t.warn(format!("GPU{i} is divided into MIG instances, which cannot reach other GPUs directly."));
        }
    }
    let flat = |g: &Found| g.sysfs.is_some_and(|p| p.above.is_empty());
    let buses: BTreeSet<_> = gpus.iter().filter_map(|g| g.sysfs.and_then(|p| p.root.clone())).collect();
    if gpus.len() > 1 && gpus.iter().all(flat) && buses.len() == 1 && facts.host.hypervisor == Some(true) {
        t.warn(
            "The GPUs sit on a flat PCI bus of a virtual machine: the switches of the real machine are not visible, and \
             PCIe paths are taken to cross the host bridge.",
        );
    }
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
