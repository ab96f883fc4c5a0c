//! The machine as a tree of CPUs and the PCIe devices below them, and how a [`Topology`] is made of it.
//!
//! Both an XML file and the facts of a running machine are first brought into this form.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::topology::bus_id;
use crate::topology::model::{Cpu, Gpu, LinkKind, Nic, NodeId, NodeKind, Pci, Topology};
use crate::topology::rates;

/// GPUs beyond this number are refused: no host has as many, and paths are computed for all pairs.
pub(crate) const MAX_GPUS: usize = 128;

/// Class code of an NVSwitch.
pub(crate) const CLASS_NVSWITCH: &str = "0x068000";
/// Class code of the NVLink bridge of a POWER CPU.
pub(crate) const CLASS_POWER_BRIDGE: &str = "0x068001";

/// A whole machine.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) cpus: Vec<CpuTree>,
    /// Direct links between two switches, by bus id.
    pub(crate) switch_links: Vec<(String, String)>,
}

/// A CPU and what hangs on it.
#[derive(Debug, Default)]
pub(crate) struct CpuTree {
    pub(crate) cpu: Cpu,
    pub(crate) devices: Vec<Device>,
}

/// A PCIe device and what is below it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) pci: Pci,
    pub(crate) line: Option<usize>,
    pub(crate) part: Part,
    pub(crate) below: Vec<Device>,
    /// Set when devices of a sub-switch were moved up to this one; that happens only once.
    flattened: bool,
}

impl Device {
    pub(crate) fn new(pci: Pci, line: Option<usize>, part: Part) -> Device {
        Device { pci, line, part, below: Vec::new(), flattened: false }
    }
}

/// What a device is.
#[derive(Debug, Default)]
pub(crate) enum Part {
    /// A bridge or switch.
    #[default]
    Bridge,
    Gpu(Box<GpuPart>),
    Nic(Nic),
}

/// A GPU as its source describes it.
#[derive(Debug, Default)]
pub(crate) struct GpuPart {
    /// Bus id, UUID, name, compute capability; `index` and `node` are set later.
    pub(crate) gpu: Gpu,
    pub(crate) rank: Option<u32>,
    pub(crate) links: Vec<LinkPart>,
    /// GB/s of the chip-to-chip links to its CPU, all together, and their number.
    pub(crate) c2c: Option<(f64, u32)>,
}

/// A GPU's NVLinks (or xGMI links) to one remote.
#[derive(Clone, Debug)]
pub(crate) struct LinkPart {
    pub(crate) target: String,
    pub(crate) count: u32,
    pub(crate) class: Option<String>,
    pub(crate) xgmi: bool,
    /// GB/s that the hardware signals, all links together.
    pub(crate) nominal_gbs: Option<f64>,
}

/// What is gathered while the tree is walked.
struct Assembly<'a> {
    t: &'a mut Topology,
    /// In tree order.
    gpus: Vec<Placed>,
    switches: HashMap<String, NodeId>,
}

struct Placed {
    part: GpuPart,
    pci: Pci,
    line: Option<usize>,
    parent: NodeId,
    cpu: NodeId,
    gbs: f64,
}

/// Fills `t` with the machine. `file` is named in errors.
pub(crate) fn assemble(mut tree: Tree, file: &str, t: &mut Topology) -> Result<()> {
    tree.cpus.iter_mut().for_each(|c| c.devices.iter_mut().for_each(flatten));
    let mut assembly = Assembly { t, gpus: Vec::new(), switches: HashMap::new() };
    let mut cpus = Vec::new();
    for (at, cpu) in tree.cpus.into_iter().enumerate() {
        let name = match cpu.cpu.numa {
            numa if numa >= 0 => format!("CPU{numa}"),
            _ if at == 0 => "CPU".to_string(),
            _ => format!("CPU (unnamed {at})"),
        };
        let node = assembly.t.add_node(NodeKind::Cpu(cpu.cpu.clone()), name, None);
        cpus.push((node, cpu.cpu));
        for device in cpu.devices {
            assembly.place(device, node, node, None);
        }
    }
    let Assembly { gpus, switches, .. } = assembly;
    if gpus.len() > MAX_GPUS {
        let reason = format!("{} GPUs are more than a host has (at most {MAX_GPUS})", gpus.len());
        return Err(Error::Parse { file: file.into(), line: None, reason });
    }
    let mut seen = BTreeSet::new();
    for gpu in &gpus {
        let Some(id) = &gpu.part.gpu.bus_id else { continue };
        if !seen.insert(id.as_str()) {
            let reason = format!("a second GPU with bus id {id}");
            return Err(Error::Parse { file: file.into(), line: gpu.line, reason });
        }
    }
    for (a, b) in tree.switch_links {
        match (switches.get(&a), switches.get(&b)) {
            (Some(&a), Some(&b)) => t.add_link(a, b, LinkKind::Pcie, 1, rates::UNKNOWN_PCIE_GBS),
            _ => t.warn(format!(
                "The link between PCIe switches {a} and {b} is left out: one of them is not there."
            )),
        }
    }
    join_cpus(t, &cpus);
    place_gpus(t, gpus);
    Ok(())
}

/// Generation of a Broadcom switch that shows itself as two levels: `None` for all other devices.
fn two_level_switch(pci: &Pci, lower: bool) -> Option<u32> {
    let is = |field: &Option<String>, want: &str| field.as_deref() == Some(want);
    if !is(&pci.vendor, "0x1000") {
        return None;
    }
    let board = pci.subsystem_device.as_deref().unwrap_or("");
    if is(&pci.device, "0xc010") && is(&pci.subsystem_vendor, "0x1000") && board.starts_with("0xa") {
        return Some(4);
    }
    let level = if lower { "0x1" } else { "0x0" };
    (is(&pci.device, "0xc030") && is(&pci.subsystem_vendor, "0x1000") && board.starts_with(level))
        .then_some(5)
}

/// Some switches appear as a switch with switches of the same kind below, though data crosses one chip: their
/// devices are moved up, so that two GPUs there are PIX and not PXB apart.
fn flatten(device: &mut Device) {
    let generation = match device.part {
        Part::Bridge if !device.flattened => two_level_switch(&device.pci, false),
        _ => None,
    };
    if generation.is_some() {
        let same = |d: &Device| {
            matches!(d.part, Part::Bridge) && !d.flattened && two_level_switch(&d.pci, true) == generation
        };
        let mut below = Vec::new();
        for sub in std::mem::take(&mut device.below) {
            if same(&sub) {
                below.extend(sub.below);
            } else {
                below.push(sub);
            }
        }
        device.below = below;
        device.flattened = true;
    }
    device.below.iter_mut().for_each(flatten);
}

impl Assembly<'_> {
    /// Adds a device and all below it. `upper` is the speed and width of the link above, for devices that do
    /// not tell.
    fn place(
        &mut self,
        device: Device,
        parent: NodeId,
        cpu: NodeId,
        upper: Option<(Option<String>, Option<u32>)>,
    ) {
        let Device { mut pci, line, part, below, .. } = device;
        if let Some((speed, width)) = upper {
            pci.link_speed = pci.link_speed.or(speed);
            pci.link_width = pci.link_width.or(width);
        }
        let gbs = rates::pcie_gbs(pci.link_speed.as_deref(), pci.link_width);
        let label = pci.bus_id.clone().unwrap_or_else(|| "without bus id".into());
        match part {
            Part::Gpu(part) => {
                self.gpus.push(Placed { part: *part, pci, line, parent, cpu, gbs });
            }
            Part::Nic(nic) => {
                let name = nic.nets.first().map_or_else(|| format!("NIC {label}"), |n| n.name.clone());
                // A NIC without a PCI device is virtual and goes as fast as its network.
                let gbs = match pci.bus_id {
                    Some(_) => gbs,
                    None => {
                        nic.nets.iter().filter_map(|n| n.speed_mbps).max().unwrap_or(10_000) as f64 / 8000.0
                    }
                };
                let pci = pci.bus_id.is_some().then_some(pci);
                let node = self.t.add_node(NodeKind::Nic(nic), name, pci);
                self.t.add_link(node, parent, LinkKind::Pcie, 1, gbs);
            }
            Part::Bridge if below.is_empty() => {}
            Part::Bridge => {
                let link = (pci.link_speed.clone(), pci.link_width);
                let id = pci.bus_id.clone();
                let node = self.t.add_node(NodeKind::PciSwitch, format!("PCI {label}"), Some(pci));
                self.t.add_link(node, parent, LinkKind::Pcie, 1, gbs);
                if let Some(id) = id {
                    self.switches.insert(id, node);
                }
                for device in below {
                    self.place(device, node, cpu, Some(link.clone()));
                }
            }
        }
    }
}

/// Every CPU of a host has a link to every other.
fn join_cpus(t: &mut Topology, cpus: &[(NodeId, Cpu)]) {
    let hosts: BTreeSet<&str> = cpus.iter().filter_map(|(_, c)| c.host.as_deref()).collect();
    if hosts.len() > 1 {
        t.warn(format!("The CPUs belong to {} hosts; nothing joins the hosts here.", hosts.len()));
    }
    let mut assumed = false;
    for (at, (a, x)) in cpus.iter().enumerate() {
        for (b, y) in &cpus[at + 1..] {
            if x.host.is_some() && y.host.is_some() && x.host != y.host {
                continue;
            }
            let gbs = rates::smp_gbs(x).or_else(|| rates::smp_gbs(y));
            assumed |= gbs.is_none();
            t.add_link(*a, *b, LinkKind::Smp, 1, gbs.unwrap_or(rates::UNKNOWN_SMP_GBS));
        }
    }
    if assumed {
        let gbs = rates::UNKNOWN_SMP_GBS;
        t.warn(format!("The CPU's vendor is not known; {gbs} GB/s are assumed between NUMA nodes."));
    }
}

/// GPUs in rank order, then their links.
fn place_gpus(t: &mut Topology, mut gpus: Vec<Placed>) {
    let told = |field: fn(&Placed) -> Option<u32>| {
        let values: Option<BTreeSet<u32>> = gpus.iter().map(field).collect();
        values.is_some_and(|v| v.len() == gpus.len())
    };
    if told(|g| g.part.rank) {
        gpus.sort_by_key(|g| g.part.rank);
    } else {
        if gpus.iter().any(|g| g.part.rank.is_some()) {
            t.warn("Some GPUs have no rank, or the same one; they are numbered by device number or bus id instead.");
        }
        if told(|g| g.part.gpu.dev) {
            gpus.sort_by_key(|g| g.part.gpu.dev);
        } else {
            gpus.sort_by(|a, b| a.part.gpu.bus_id.cmp(&b.part.gpu.bus_id));
        }
    }
    let mut by_id: HashMap<String, usize> = HashMap::new();
    for (index, g) in gpus.iter().enumerate() {
        let (numa, cpus) = match &t.nodes()[g.cpu].kind {
            NodeKind::Cpu(cpu) => {
                (Some(cpu.numa).filter(|&n| n >= 0), cpu.affinity.as_deref().and_then(cpu_list))
            }
            _ => (None, None),
        };
        let node = t.add_gpu(Gpu { numa, cpus, ..g.part.gpu.clone() }, Some(g.pci.clone()));
        t.add_link(node, g.parent, LinkKind::Pcie, 1, g.gbs);
        if let Some((gbs, count)) = g.part.c2c {
            t.add_link(node, g.cpu, LinkKind::C2c, count, gbs);
        }
        if let Some(id) = &g.part.gpu.bus_id {
            by_id.insert(id.clone(), index);
        }
    }
    join_gpus(t, &gpus, &by_id);
}

/// A mask of CPUs (`0000ffff,ffff0000`, the last group the lowest) as a list of ranges (`16-47`). `None` if
/// it is no mask, or is empty.
fn cpu_list(mask: &str) -> Option<String> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (group, text) in mask.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(text, 16).ok()?;
        for cpu in (0..32).filter(|i| bits >> i & 1 == 1).map(|i| group * 32 + i) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
    }
    let range = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    (!ranges.is_empty()).then(|| ranges.iter().map(range).collect::<Vec<_>>().join(","))
}

/// Where a GPU's links lead.
enum Target {
    Gpu(usize),
    Fabric,
    Cpu,
    Nowhere,
}

fn join_gpus(t: &mut Topology, gpus: &[Placed], by_id: &HashMap<String, usize>) {
    // A remote that several GPUs name, and that is no GPU, can only be a switch.
    let mut named: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (i, g) in gpus.iter().enumerate() {
        for link in &g.part.links {
            named.entry(&link.target).or_default().insert(i);
        }
    }
    let target = |from: usize, link: &LinkPart| {
        if let Some(&to) = by_id.get(&link.target) {
            return if to == from { Target::Nowhere } else { Target::Gpu(to) };
        }
        match link.class.as_deref() {
            Some(CLASS_NVSWITCH) => Target::Fabric,
            Some(CLASS_POWER_BRIDGE) => Target::Cpu,
            Some(class) if class.starts_with("0x03") || class.starts_with("0x12") => Target::Nowhere,
            _ if bus_id::is_unknown_remote(&link.target) => Target::Fabric,
            _ if named.get(link.target.as_str()).is_some_and(|s| s.len() > 1) => Target::Fabric,
            _ => Target::Nowhere,
        }
    };
    let mut fabric = None;
    // What each GPU says about each other GPU: links, GB/s signalled, xGMI.
    let mut said: BTreeMap<(usize, usize), (u32, Option<f64>, bool)> = BTreeMap::new();
    for (i, g) in gpus.iter().enumerate() {
        let (node, per_link) = (t.gpus()[i].node, rates::nvlink_gbs(g.part.gpu.sm));
        for link in &g.part.links {
            if link.count == 0 {
                continue;
            }
            match target(i, link) {
                Target::Gpu(to) => {
                    let entry = said.entry((i, to)).or_insert((0, link.nominal_gbs.map(|_| 0.0), link.xgmi));
                    entry.0 = entry.0.saturating_add(link.count);
                    entry.1 = entry.1.zip(link.nominal_gbs).map(|(a, b)| a + b);
                }
                Target::Fabric => {
                    let fabric =
                        *fabric.get_or_insert_with(|| t.add_node(NodeKind::NvSwitch, "NVSwitch", None));
                    t.add_link(node, fabric, LinkKind::NvLink, link.count, f64::from(link.count) * per_link);
                    let Some(at) = t.link_position(node, fabric, LinkKind::NvLink) else { continue };
                    let wire = t.link_mut(at);
                    wire.targets.push((link.target.clone(), link.count));
                    if let Some(nominal) = link.nominal_gbs {
                        *wire.nominal_gbs.get_or_insert(0.0) += nominal;
                    }
                }
                Target::Cpu => {
                    t.add_link(node, g.cpu, LinkKind::NvLink, link.count, f64::from(link.count) * per_link);
                }
                Target::Nowhere if by_id.get(&link.target) == Some(&i) => {
                    t.warn(format!("GPU{i} names itself as the target of a link; that link is left out."));
                }
                Target::Nowhere => {
                    t.warn(format!(
                        "GPU{i} has {} links to {}, which is no GPU or switch of this machine; they are left out.",
                        link.count, link.target
                    ));
                }
            }
        }
    }
    for (&(i, j), &(count, nominal, xgmi)) in &said {
        let back = said.get(&(j, i)).map(|s| s.0);
        let count = match back {
            Some(_) if j < i => continue,
            Some(back) if back != count => {
                let fewer = count.min(back);
                t.warn(format!(
                    "GPU{i} lists {count} links to GPU{j}, which lists {back} in return; {fewer} are assumed."
                ));
                fewer
            }
            Some(_) => count,
            None => {
                t.warn(format!(
                    "GPU{i} lists {count} links to GPU{j}, which lists none in return; they are assumed to work \
                     both ways."
                ));
                count
            }
        };
        let (one, other) = (&gpus[i].part.gpu, &gpus[j].part.gpu);
        let (kind, per_link) = if xgmi {
            let (gbs, known) = rates::xgmi_gbs(one.arch.as_deref());
            if !known {
                t.warn(format!(
                    "The architecture of GPU{i} is not known; {gbs} GB/s are assumed for an xGMI link."
                ));
            }
            (LinkKind::Xgmi, gbs)
        } else {
            (LinkKind::NvLink, rates::nvlink_gbs(one.sm).min(rates::nvlink_gbs(other.sm)))
        };
        let (a, b) = (t.gpus()[i].node, t.gpus()[j].node);
        t.add_link(a, b, kind, count, f64::from(count) * per_link);
        if let (Some(at), Some(_)) = (t.link_position(a, b, kind), nominal) {
            t.link_mut(at).nominal_gbs = nominal;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cpu_list;

    #[test]
    fn masks_become_lists() {
        assert_eq!(cpu_list("000000ff,ffff0000,00ffffff").as_deref(), Some("0-23,48-71"));
        assert_eq!(cpu_list("5").as_deref(), Some("0,2"));
        for bad in ["", "none", "00000000", "1ffffffff", "1,,1"] {
            assert_eq!(cpu_list(bad), None, "{bad:?}");
        }
    }
}
