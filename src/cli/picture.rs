//! Pictures of a machine: NVSwitch on top, GPUs below it with their NVLinks as arcs, then PCIe switches and CPUs.

use std::collections::BTreeMap;

use super::svg::{COLOURS, Svg};
use crate::topology::{Link, LinkKind, NodeId, NodeKind, Topology};

const BOX: f64 = 84.0;
const STEP: f64 = 118.0;
const ROW: f64 = 92.0;

/// More arcs than this are told apart by colour alone: labels would cover each other.
const MOST_LABELS: usize = 20;

/// Where each node is drawn; NICs are not, but counted in the box of what they hang from.
struct Layout {
    at: Vec<Option<(f64, f64)>>,
    width: f64,
    height: f64,
}

/// The machine as SVG.
pub(super) fn svg(topology: &Topology) -> String {
    let layout = Layout::new(topology);
    let legend = Legend::new(topology);
    let mut svg = Svg::new(layout.width, layout.height + 34.0 + 18.0 * legend.entries.len() as f64);
    svg.text_from(20.0, 26.0, 16, "bold", "#111", short_name(topology));
    let arcs = topology.links().iter().filter(|l| is_arc(topology, l)).count();
    let mut labels: Vec<(f64, f64, String, String)> = Vec::new();
    for link in topology.links() {
        let (Some(a), Some(b)) = (layout.at[link.a], layout.at[link.b]) else { continue };
        let colour = legend.colour(link);
        let width = (1.0 + (link.gbs / 25.0).sqrt()).min(5.0);
        let text = short(link);
        if is_arc(topology, link) {
            let rise = 34.0 + 0.22 * (a.0 - b.0).abs();
            let top = a.1 - 22.0;
            let (left, right) = if a.0 < b.0 { (a.0, b.0) } else { (b.0, a.0) };
            // Arcs leave a box side by side, those to near GPUs outermost.
            let lean = ((right - left) / layout.width * 26.0).min(26.0);
            let (x1, x2) = (left + 30.0 - lean, right - 30.0 + lean);
            svg.path(
                &format!(
                    "M{x1:.1} {top:.1} C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {top:.1}",
                    top - rise,
                    top - rise
                ),
                colour,
                width,
                false,
            );
            if arcs <= MOST_LABELS {
                labels.push(((x1 + x2) / 2.0, top - 0.75 * rise + 4.0, colour.into(), text));
            }
            continue;
        }
        if link.kind == LinkKind::Smp {
            // Between CPUs, which stand side by side.
            let (left, right) = if a.0 < b.0 { (a, b) } else { (b, a) };
            let dip = if right.0 - left.0 > 1.5 * layout.cpu_gap(topology) { 30.0 } else { 0.0 };
            let mid = (left.0 + right.0) / 2.0;
            svg.path(
                &format!(
                    "M{:.1} {:.1} Q{mid:.1} {:.1} {:.1} {:.1}",
                    left.0,
                    left.1,
                    left.1 + 2.0 * dip,
                    right.0,
                    right.1
                ),
                colour,
                width,
                false,
            );
            labels.push((mid, left.1 + dip - 4.0, colour.into(), text));
            continue;
        }
        let switch = |n: NodeId| topology.nodes()[n].kind == NodeKind::NvSwitch;
        let (a, b) = match (switch(link.a), switch(link.b)) {
            // The switch is as wide as the row of GPUs, so links go straight up.
            (true, false) => ((b.0, a.1), b),
            (false, true) => (a, (a.0, b.1)),
            _ => (a, b),
        };
        svg.path(&format!("M{:.1} {:.1} L{:.1} {:.1}", a.0, a.1, b.0, b.1), colour, width, false);
        labels.push(((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0 + 4.0, colour.into(), text));
    }
    for (id, node) in topology.nodes().iter().enumerate() {
        let Some((x, y)) = layout.at[id] else { continue };
        let nics = below(topology, id).filter(|&n| topology.nodes()[n].is_nic()).count();
        let mut lines = vec![name(&node.name)];
        let (width, fill) = match &node.kind {
            NodeKind::Gpu(index) => {
                lines.extend(
                    topology.gpus()[*index]
                        .bus_id
                        .as_deref()
                        .map(|bus| bus.trim_start_matches("0000:").to_string()),
                );
                (BOX, "#d9ead3")
            }
            NodeKind::NvSwitch => (layout.width - 60.0, "#fff2cc"),
            NodeKind::PciSwitch => (BOX + 24.0, "#dce6f2"),
            NodeKind::Cpu(_) => (BOX + 24.0, "#e6dff0"),
            NodeKind::Nic(_) => continue,
        };
        if nics > 0 {
            lines.push(if nics == 1 { "1 NIC".into() } else { format!("{nics} NICs") });
        }
        svg.node(x, y, width, if lines.len() > 1 { 40.0 } else { 32.0 }, fill, &lines);
    }
    for (x, y, colour, text) in labels {
        svg.label(x, y, &colour, &text);
    }
    let mut y = layout.height + 12.0;
    for (text, colour) in &legend.entries {
        svg.path(&format!("M24 {y:.1} L58 {y:.1}"), colour, 3.0, false);
        svg.text_from(68.0, y + 4.0, 12, "normal", "#111", text);
        y += 18.0;
    }
    svg.text_from(24.0, y + 6.0, 11, "normal", "#555", "GB/s in each direction");
    svg.finish()
}

/// The machine's name, or that of its file without the folder.
pub(super) fn short_name(topology: &Topology) -> &str {
    let name = topology.name();
    name.rsplit(['/', '\\']).next().filter(|last| !last.is_empty()).unwrap_or(name)
}

/// `PCI 0000:08:00.0` without what is the same everywhere.
fn name(name: &str) -> String {
    name.replace("0000:", "")
}

/// Between two GPUs without a switch.
fn is_arc(topology: &Topology, link: &Link) -> bool {
    topology.nodes()[link.a].is_gpu() && topology.nodes()[link.b].is_gpu()
}

fn rate(gbs: f64) -> String {
    if gbs >= 100.0 { format!("{gbs:.0}") } else { format!("{}", (gbs * 10.0).round() / 10.0) }
}

/// `NV4 80`, or the rate alone where there is nothing to bond.
fn short(link: &Link) -> String {
    match link.kind {
        LinkKind::NvLink => format!("NV{} {}", link.count, rate(link.gbs)),
        LinkKind::Xgmi => format!("XGMI {}", rate(link.gbs)),
        LinkKind::C2c => format!("C2C {}", rate(link.gbs)),
        LinkKind::Pcie | LinkKind::Smp => rate(link.gbs),
    }
}

/// Kinds and rates of links, each with a colour.
struct Legend {
    entries: Vec<(String, &'static str)>,
}

impl Legend {
    fn new(topology: &Topology) -> Legend {
        let nics = |n: NodeId| topology.nodes()[n].is_nic();
        let drawn = topology.links().iter().filter(|l| !nics(l.a) && !nics(l.b));
        let mut kinds: BTreeMap<(LinkKind, i64), (String, usize)> = BTreeMap::new();
        for link in drawn {
            let key = (link.kind, -(link.gbs * 10.0) as i64);
            kinds.entry(key).or_insert_with(|| (Legend::text(link), 0)).1 += 1;
        }
        let entries = kinds.into_values().enumerate();
        Legend {
            entries: entries
                .map(|(i, (text, count))| (format!("{text}  ×{count}"), COLOURS[i.min(COLOURS.len() - 1)]))
                .collect(),
        }
    }

    fn text(link: &Link) -> String {
        let bond = if link.count > 1 { format!("{} × ", link.count) } else { String::new() };
        let kind = if link.kind == LinkKind::Smp { "between CPUs" } else { link.kind.name() };
        format!("{bond}{kind}, {} GB/s", rate(link.gbs))
    }

    fn colour(&self, link: &Link) -> &'static str {
        let text = Legend::text(link) + "  ";
        self.entries
            .iter()
            .find(|(entry, _)| entry.starts_with(&text))
            .map_or("#444444", |(_, colour)| colour)
    }
}

/// The nodes that hang below a PCIe switch or a CPU.
fn below(topology: &Topology, node: NodeId) -> impl Iterator<Item = NodeId> {
    // Of a PCIe link the first end is the one away from the CPU.
    topology.links().iter().filter(move |l| l.kind == LinkKind::Pcie && l.b == node).map(|l| l.a)
}

impl Layout {
    fn new(topology: &Topology) -> Layout {
        let nodes = topology.nodes();
        let mut layout = Layout { at: vec![None; nodes.len()], width: 0.0, height: 0.0 };
        let longest = topology
            .links()
            .iter()
            .filter(|l| is_arc(topology, l))
            .map(|l| {
                let place = |n: NodeId| topology.gpus().iter().position(|g| g.node == n).unwrap_or(0) as f64;
                (place(l.a) - place(l.b)).abs()
            })
            .fold(0.0, f64::max);
        let arcs = if longest > 0.0 { 34.0 + 0.22 * longest * STEP } else { 0.0 };
        let switch_row = if topology.has_nvswitch() { ROW } else { 0.0 };
        let gpu_y = 64.0 + f64::max(arcs, switch_row);
        // GPUs stand in the order in which the tree has them, so that its lines do not cross.
        let mut x = 20.0 + STEP / 2.0;
        for gpu in layout.gpu_order(topology) {
            layout.at[gpu] = Some((x, gpu_y));
            x += STEP;
        }
        layout.width = f64::max(x - STEP / 2.0 + 20.0, 420.0);
        let mut bottom = gpu_y;
        // Each switch and CPU one row below the lowest of what hangs from it.
        for _ in 0..nodes.len() {
            for id in (0..nodes.len()).filter(|&id| !nodes[id].is_gpu() && !nodes[id].is_nic()) {
                let children: Vec<(f64, f64)> =
                    below(topology, id).filter_map(|child| layout.at[child]).collect();
                if children.is_empty() {
                    continue;
                }
                let x = children.iter().map(|c| c.0).sum::<f64>() / children.len() as f64;
                let y = children.iter().map(|c| c.1).fold(0.0, f64::max) + ROW;
                layout.at[id] = Some((x, y));
                bottom = f64::max(bottom, y);
            }
        }
        for (id, node) in nodes.iter().enumerate() {
            match node.kind {
                NodeKind::NvSwitch => layout.at[id] = Some((layout.width / 2.0, gpu_y - ROW)),
                // CPUs stand in one row.
                NodeKind::Cpu(_) => {
                    if let Some(at) = &mut layout.at[id] {
                        at.1 = bottom;
                    }
                }
                _ => {}
            }
        }
        layout.spread(topology);
        layout.height = bottom + 56.0;
        layout
    }

    fn gpu_order(&self, topology: &Topology) -> Vec<NodeId> {
        fn visit(topology: &Topology, node: NodeId, depth: usize, order: &mut Vec<NodeId>) {
            if topology.nodes()[node].is_gpu() && !order.contains(&node) {
                order.push(node);
            }
            let mut children: Vec<NodeId> = below(topology, node).collect();
            children.sort_unstable();
            children
                .into_iter()
                .filter(|_| depth < 16)
                .for_each(|child| visit(topology, child, depth + 1, order));
        }
        let mut order = Vec::new();
        let cpus = (0..topology.nodes().len()).filter(|&n| topology.nodes()[n].is_cpu());
        cpus.for_each(|cpu| visit(topology, cpu, 0, &mut order));
        for gpu in
            topology.gpus().iter().filter(|g| !order.contains(&g.node)).map(|g| g.node).collect::<Vec<_>>()
        {
            order.push(gpu);
        }
        // With direct NVLinks neighbours by number are neighbours in the mesh.
        if topology.links().iter().any(|l| is_arc(topology, l)) && order.len() <= 16 {
            order.sort_by_key(|&node| topology.gpus().iter().position(|g| g.node == node));
        }
        order
    }

    /// Moves boxes of a row apart that would cover each other.
    fn spread(&mut self, topology: &Topology) {
        let mut rows: BTreeMap<i64, Vec<NodeId>> = BTreeMap::new();
        for (id, at) in self.at.iter().enumerate() {
            let wide = topology.nodes()[id].kind == NodeKind::NvSwitch || topology.nodes()[id].is_gpu();
            if let Some((_, y)) = at.filter(|_| !wide) {
                rows.entry(y as i64).or_default().push(id);
            }
        }
        for row in rows.values_mut() {
            row.sort_by(|&a, &b| {
                self.at[a].map(|p| p.0).unwrap_or(0.0).total_cmp(&self.at[b].map(|p| p.0).unwrap_or(0.0))
            });
            let mut least = 20.0 + STEP / 2.0;
            for &id in row.iter() {
                if let Some(at) = &mut self.at[id] {
                    at.0 = at.0.max(least);
                    least = at.0 + BOX + 34.0;
                    self.width = self.width.max(at.0 + STEP / 2.0 + 20.0);
                }
            }
        }
    }

    /// The distance between neighbouring CPUs.
    fn cpu_gap(&self, topology: &Topology) -> f64 {
        let mut xs: Vec<f64> = self
            .at
            .iter()
            .enumerate()
            .filter(|(id, _)| topology.nodes()[*id].is_cpu())
            .filter_map(|(_, at)| at.map(|p| p.0))
            .collect();
        xs.sort_by(f64::total_cmp);
        xs.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max).max(1.0)
    }
}

/// The machine as a graph for Graphviz.
pub(super) fn dot(topology: &Topology) -> String {
    let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut text = format!(
        "graph \"{}\" {{\n  node [shape=box, style=\"rounded,filled\", fontname=Helvetica];\n",
        quote(topology.name())
    );
    for (id, node) in topology.nodes().iter().enumerate() {
        let fill = match node.kind {
            NodeKind::Gpu(_) => "#d9ead3",
            NodeKind::NvSwitch => "#fff2cc",
            NodeKind::PciSwitch => "#dce6f2",
            NodeKind::Cpu(_) => "#e6dff0",
            NodeKind::Nic(_) => "#f4f4f4",
        };
        text += &format!("  n{id} [label=\"{}\", fillcolor=\"{fill}\"];\n", quote(&node.name));
    }
    for link in topology.links() {
        text += &format!("  n{} -- n{} [label=\"{} GB/s\"];\n", link.a, link.b, quote(&short(link)));
    }
    text + "}\n"
}
