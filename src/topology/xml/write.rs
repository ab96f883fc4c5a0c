//! Writing NCCL's topology XML.

use std::collections::HashSet;
use std::fmt::Write;

use crate::topology::model::{Cpu, Link, LinkKind, NodeId, NodeKind, Pci, Topology};
use crate::topology::tree::{CLASS_NVSWITCH, CLASS_POWER_BRIDGE};

/// What drivers in a virtual machine report as the remote end of a link to an NVSwitch.
const UNKNOWN_REMOTE: &str = "fffffff:ffff:ff";

impl Topology {
    /// The machine as NCCL topology XML, the format that `NCCL_TOPO_FILE` names. NCCL and
    /// [`from_xml`](Self::from_xml) read it.
    ///
    /// The format has no rates, only speeds and widths of PCIe links and numbers of NVLinks: overridden rates
    /// are not kept. It wants a PCIe place for every GPU; where none is known, the GPU is put right below a
    /// CPU.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer {
            t: self,
            text: String::new(),
            written: vec![false; self.nodes().len()],
            ids: self.written_ids(),
        };
        writer.text.push_str("<system version=\"1\">\n");
        let cpus: Vec<NodeId> = (0..self.nodes().len()).filter(|&n| self.nodes()[n].is_cpu()).collect();
        for &cpu in &cpus {
            writer.cpu(Some(cpu), cpus.len() < 2);
        }
        // What has no CPU above it, such as GPUs known from NVLinks alone.
        if (0..self.nodes().len()).any(|n| writer.is_root(n)) {
            writer.cpu(None, true);
        }
        writer.text.push_str("</system>\n");
        writer.text
    }

    /// Each node's bus id, or an invented one in a domain that no real device has.
    fn written_ids(&self) -> Vec<String> {
        let known = |n: &crate::topology::Node| n.pci.as_ref().and_then(|p| p.bus_id.clone());
        let taken: HashSet<String> = self.nodes().iter().filter_map(known).collect();
        let free =
            (0u32..).map(|i| format!("{:04x}:{:02x}:{:02x}.0", 0xfffe + (i >> 13), (i >> 5) % 256, i % 32));
        let mut free = free.filter(|id| !taken.contains(id));
        self.nodes().iter().map(|n| known(n).or_else(|| free.next()).unwrap_or_default()).collect()
    }

    /// The PCIe link from a node towards its CPU.
    fn uplink(&self, node: NodeId) -> Option<&Link> {
        self.links().iter().find(|l| l.a == node && l.kind == LinkKind::Pcie)
    }
}

struct Writer<'a> {
    t: &'a Topology,
    text: String,
    written: Vec<bool>,
    /// The bus id that each node is written with.
    ids: Vec<String>,
}

impl Writer<'_> {
    /// Whether the node is a device that nothing is above, and that was not written yet.
    fn is_root(&self, node: NodeId) -> bool {
        let kind = &self.t.nodes()[node].kind;
        let device = !matches!(kind, NodeKind::Cpu(_) | NodeKind::NvSwitch);
        device && !self.written[node] && self.t.uplink(node).is_none()
    }

    fn open(&mut self, depth: usize, name: &str, attributes: &[(&str, String)]) {
        let _ = write!(self.text, "{:width$}<{name}", "", width = depth * 2);
        for (name, value) in attributes {
            let _ = write!(self.text, " {name}=\"{}\"", escape(value));
        }
    }

    fn leaf(&mut self, depth: usize, name: &str, attributes: &[(&str, String)]) {
        self.open(depth, name, attributes);
        self.text.push_str("/>\n");
    }

    /// A CPU and all below it; `None` for an invented one. `adopt`: also what has no CPU.
    fn cpu(&mut self, node: Option<NodeId>, adopt: bool) {
        let unknown = Cpu { numa: -1, ..Cpu::default() };
        let cpu = match node.map(|n| &self.t.nodes()[n].kind) {
            Some(NodeKind::Cpu(cpu)) => cpu,
            _ => &unknown,
        };
        let mut attributes = Vec::new();
        if let Some(host) = &cpu.host {
            attributes.push(("host_hash", host.clone()));
        }
        attributes.push(("numaid", cpu.numa.to_string()));
        for (name, value) in [("affinity", &cpu.affinity), ("arch", &cpu.arch), ("vendor", &cpu.vendor)] {
            attributes.extend(value.as_ref().map(|v| (name, v.clone())));
        }
        for (name, value) in [("familyid", cpu.family), ("modelid", cpu.model)] {
            attributes.extend(value.map(|v| (name, v.to_string())));
        }
        self.open(1, "cpu", &attributes);
        self.text.push_str(">\n");
        for child in 0..self.t.nodes().len() {
            let below = self.t.uplink(child).is_some_and(|l| Some(l.b) == node);
            if below || (adopt && self.is_root(child)) {
                self.device(child, 2);
            }
        }
        self.text.push_str("  </cpu>\n");
    }

    fn device(&mut self, node: NodeId, depth: usize) {
        if std::mem::replace(&mut self.written[node], true) {
            return;
        }
        let t = self.t;
        let virtual_nic = t.nodes()[node].is_nic() && t.nodes()[node].pci.is_none();
        if virtual_nic {
            self.part(node, depth);
            return;
        }
        self.open(depth, "pci", &self.pci_attributes(node));
        self.text.push_str(">\n");
        self.part(node, depth + 1);
        for child in 0..t.nodes().len() {
            if t.uplink(child).is_some_and(|l| l.b == node) {
                self.device(child, depth + 1);
            }
        }
        let _ = writeln!(self.text, "{:width$}</pci>", "", width = depth * 2);
    }

    fn pci_attributes(&self, node: NodeId) -> Vec<(&'static str, String)> {
        let named = &self.t.nodes()[node];
        let known = named.pci.clone().unwrap_or_default();
        let class = match named.kind {
            NodeKind::Gpu(_) => "0x030200",
            NodeKind::Nic(_) => "0x020000",
            _ => "0x060400",
        };
        let (mut speed, mut width) = (known.link_speed.clone(), known.link_width);
        if named.pci.is_none() {
            let gbs = self.t.uplink(node).map_or(24.0, |l| l.gbs);
            let (s, w) = link_for(gbs);
            (speed, width) = (Some(s.to_string()), Some(w));
        }
        let Pci { vendor, device, subsystem_vendor, subsystem_device, .. } = known;
        let mut attributes =
            vec![("busid", self.bus_id(node)), ("class", known.class.unwrap_or(class.into()))];
        for (name, value) in [
            ("vendor", vendor),
            ("device", device),
            ("subsystem_vendor", subsystem_vendor),
            ("subsystem_device", subsystem_device),
            ("link_speed", speed),
            ("link_width", width.map(|w| w.to_string())),
        ] {
            attributes.extend(value.map(|v| (name, v)));
        }
        attributes
    }

    fn bus_id(&self, node: NodeId) -> String {
        self.ids[node].clone()
    }

    fn part(&mut self, node: NodeId, depth: usize) {
        match &self.t.nodes()[node].kind {
            NodeKind::Gpu(index) => self.gpu(*index, depth),
            NodeKind::Nic(nic) if !nic.nets.is_empty() => {
                self.open(depth, "nic", &[]);
                self.text.push_str(">\n");
                for net in &nic.nets {
                    let mut attributes: Vec<(&str, String)> =
                        net.attributes.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
                    if attributes.is_empty() {
                        attributes.push(("name", net.name.clone()));
                        attributes.extend(net.speed_mbps.map(|s| ("speed", s.to_string())));
                    }
                    self.leaf(depth + 1, "net", &attributes);
                }
                let _ = writeln!(self.text, "{:width$}</nic>", "", width = depth * 2);
            }
            _ => {}
        }
    }

    fn gpu(&mut self, index: usize, depth: usize) {
        let t = self.t;
        let gpu = &t.gpus()[index];
        let mut attributes = vec![("dev", gpu.dev.unwrap_or(index as u32).to_string())];
        attributes.extend(gpu.sm.map(|sm| ("sm", sm.to_string())));
        attributes.extend(gpu.arch.clone().map(|arch| ("gcn", arch)));
        attributes.push(("rank", index.to_string()));
        attributes.push(("gdr", "1".into()));
        self.open(depth, "gpu", &attributes);
        self.text.push_str(">\n");
        for link in t.links().iter().filter(|l| l.a == gpu.node || l.b == gpu.node) {
            let far = if link.a == gpu.node { link.b } else { link.a };
            let class = match &t.nodes()[far].kind {
                NodeKind::Gpu(_) => {
                    let known = t.nodes()[far].pci.as_ref().and_then(|p| p.class.clone());
                    known.unwrap_or_else(|| "0x030200".into())
                }
                NodeKind::NvSwitch => CLASS_NVSWITCH.into(),
                _ => CLASS_POWER_BRIDGE.into(),
            };
            let targets = match link.targets.is_empty() {
                false => link.targets.clone(),
                true if t.nodes()[far].is_gpu() => vec![(self.bus_id(far), link.count)],
                true => vec![(UNKNOWN_REMOTE.to_string(), link.count)],
            };
            let name = match link.kind {
                LinkKind::NvLink => "nvlink",
                LinkKind::Xgmi => "xgmi",
                LinkKind::C2c => {
                    let mbs = (link.gbs * 1000.0 / f64::from(link.count.max(1))).round();
                    self.leaf(
                        depth + 1,
                        "c2c",
                        &[("bw", mbs.to_string()), ("count", link.count.to_string())],
                    );
                    continue;
                }
                LinkKind::Pcie | LinkKind::Smp => continue,
            };
            for (target, count) in targets {
                let attributes =
                    [("target", target), ("count", count.to_string()), ("tclass", class.clone())];
                self.leaf(depth + 1, name, &attributes);
            }
        }
        let _ = writeln!(self.text, "{:width$}</gpu>", "", width = depth * 2);
    }
}

/// The slowest PCIe generation whose 16 lanes carry this much.
fn link_for(gbs: f64) -> (&'static str, u32) {
    match gbs {
        g if g <= 3.0 => ("2.5 GT/s PCIe", 16),
        g if g <= 6.0 => ("5.0 GT/s PCIe", 16),
        g if g <= 12.0 => ("8.0 GT/s PCIe", 16),
        g if g <= 24.0 => ("16.0 GT/s PCIe", 16),
        g if g <= 48.0 => ("32.0 GT/s PCIe", 16),
        _ => ("64.0 GT/s PCIe", 16),
    }
}

fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            '\t' => out.push_str("&#9;"),
            // XML has no way to write these.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
