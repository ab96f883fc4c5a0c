//! A picture of a plan: its candidates as bars, and each ring or tree of the chosen one.

use super::picture;
use super::svg::{COLOURS, Svg};
use crate::plan::{Plan, Shape};
use crate::topology::{PathType, Topology};

const PANEL: f64 = 230.0;
const COLUMNS: usize = 4;

/// More channels than this are not drawn one by one.
const MOST_PANELS: usize = 24;

/// The plan as SVG.
pub(super) fn svg(plan: &Plan, topology: &Topology) -> String {
    let panels = plan.shapes().len().min(MOST_PANELS);
    let columns = panels.clamp(3, COLUMNS);
    let bars = 22.0 * plan.outlooks.len() as f64;
    let top = 96.0 + bars;
    let rows = panels.div_ceil(columns);
    let width = columns as f64 * PANEL + 40.0;
    let mut svg = Svg::new(width, top + rows as f64 * (PANEL + 20.0) + 60.0);
    let title =
        format!("{} of {} bytes on {}", plan.collective.name(), plan.bytes, picture::short_name(topology));
    svg.text_from(20.0, 26.0, 16, "bold", "#111", &title);
    let bound = format!("bound {:.1} GB/s", plan.bound_algbw_gbs());
    svg.text_from(20.0, 46.0, 12, "normal", "#555", &bound);
    let room = width - 400.0;
    let mut order: Vec<usize> = (0..plan.outlooks.len()).collect();
    order.sort_by(|&a, &b| plan.outlooks[a].predicted_us.total_cmp(&plan.outlooks[b].predicted_us));
    for (row, &at) in order.iter().enumerate() {
        let o = &plan.outlooks[at];
        let y = 68.0 + 22.0 * row as f64;
        let chosen = at == plan.chosen;
        let (weight, colour) = if chosen { ("bold", COLOURS[2]) } else { ("normal", "#9aa5b1") };
        svg.text_from(20.0, y + 4.0, 12, weight, "#111", &format!("{} {}", o.name, o.encoding));
        let long = (o.fraction_of_bound.min(1.0) * room).max(1.0);
        svg.path(&format!("M200 {y:.1} L{:.1} {y:.1}", 200.0 + long), colour, 12.0, false);
        let figure =
            format!("{:.1} us, {:.2} GB/s, {:.0}%", o.predicted_us, o.algbw_gbs, 100.0 * o.fraction_of_bound);
        svg.text_from(208.0 + room.min(long), y + 4.0, 11, weight, "#111", &figure);
    }
    let total: u32 = plan.weights().iter().sum();
    let kinds = kinds(plan);
    for channel in 0..panels {
        let (column, row) = (channel % columns, channel / columns);
        let (x, y) = (
            20.0 + column as f64 * PANEL + PANEL / 2.0,
            top + row as f64 * (PANEL + 20.0) + PANEL / 2.0 + 10.0,
        );
        let share = 100.0 * f64::from(plan.weights()[channel]) / f64::from(total.max(1));
        svg.text(x, y - PANEL / 2.0, 12, "bold", "#111", &format!("channel {channel}: {share:.1}% of bytes"));
        draw(&mut svg, plan, channel, (x, y + 6.0), &kinds);
    }
    let mut x = 24.0;
    let y = top + rows as f64 * (PANEL + 20.0) + 24.0;
    for (i, kind) in kinds.iter().enumerate() {
        svg.path(&format!("M{x:.1} {y:.1} L{:.1} {y:.1}", x + 30.0), COLOURS[i.min(6)], 3.0, false);
        svg.text_from(x + 38.0, y + 4.0, 12, "normal", "#111", &kind.to_string());
        x += 100.0;
    }
    if panels < plan.shapes().len() {
        svg.text_from(
            x,
            y + 4.0,
            12,
            "normal",
            "#555",
            &format!("and {} more channels", plan.shapes().len() - panels),
        );
    }
    svg.finish()
}

/// The types of the ways that are used, nearest first.
fn kinds(plan: &Plan) -> Vec<PathType> {
    let mut kinds: Vec<PathType> = plan.ways().to_vec();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// The type of the way between two ranks in a channel, in whichever direction it has a link.
fn way(plan: &Plan, channel: usize, from: usize, to: usize) -> PathType {
    let joins = |l: &crate::schedule::Link| {
        l.channel as usize == channel && [(from, to), (to, from)].contains(&(l.from, l.to))
    };
    let at = plan.schedule.links.iter().position(joins);
    at.map_or(PathType::Dis, |at| plan.ways()[at])
}

/// One channel, its ranks on a circle, or in the levels of a tree.
fn draw(svg: &mut Svg, plan: &Plan, channel: usize, middle: (f64, f64), kinds: &[PathType]) {
    let shape = &plan.shapes()[channel];
    let ranks = plan.ranks();
    let place: Vec<(f64, f64)> = match shape {
        Shape::Tree(parents) => levels(parents, middle),
        Shape::Ring(_) | Shape::Mesh => (0..ranks)
            .map(|at| {
                let position = match shape {
                    Shape::Ring(order) => order.iter().position(|&r| r == at).unwrap_or(at),
                    _ => at,
                };
                let angle = std::f64::consts::TAU * position as f64 / ranks as f64;
                (middle.0 + 0.36 * PANEL * angle.sin(), middle.1 - 0.36 * PANEL * angle.cos())
            })
            .collect(),
    };
    let mut edges: Vec<(usize, usize)> = match shape {
        Shape::Tree(parents) => {
            parents.iter().enumerate().filter_map(|(child, p)| Some(((*p)?, child))).collect()
        }
        Shape::Ring(order) => (0..ranks).map(|i| (order[i], order[(i + 1) % ranks])).collect(),
        Shape::Mesh => (0..ranks).flat_map(|a| (0..a).map(move |b| (a, b))).collect(),
    };
    let upward = plan.collective.reduces();
    if matches!(shape, Shape::Tree(_)) && upward && plan.collective != crate::types::Collective::AllReduce {
        edges.iter_mut().for_each(|edge| *edge = (edge.1, edge.0));
    }
    let radius = 12.0;
    for (from, to) in edges {
        let kind = way(plan, channel, from, to);
        let colour = COLOURS[kinds.iter().position(|&k| k == kind).unwrap_or(6).min(6)];
        let ((x1, y1), (x2, y2)) = (place[from], place[to]);
        let long = ((x2 - x1).powi(2) + (y2 - y1).powi(2)).sqrt().max(1.0);
        let (dx, dy) = ((x2 - x1) / long * radius, (y2 - y1) / long * radius);
        let line = format!("M{:.1} {:.1} L{:.1} {:.1}", x1 + dx, y1 + dy, x2 - dx, y2 - dy);
        svg.path(&line, colour, 1.8, !matches!(shape, Shape::Mesh));
    }
    for (rank, &(x, y)) in place.iter().enumerate() {
        svg.node(x, y, 2.0 * radius, 2.0 * radius, "#d9ead3", &[rank.to_string()]);
    }
}

/// A place for each rank of a tree: the root on top, children side by side below their parents.
fn levels(parents: &[Option<usize>], middle: (f64, f64)) -> Vec<(f64, f64)> {
    let depth = |rank: usize| std::iter::successors(parents[rank], |&at| parents[at]).count();
    let deepest = (0..parents.len()).map(depth).max().unwrap_or(0).max(1);
    let mut order: Vec<usize> = Vec::new();
    let mut stack: Vec<usize> = (0..parents.len()).filter(|&r| parents[r].is_none()).collect();
    while let Some(rank) = stack.pop() {
        order.push(rank);
        stack.extend((0..parents.len()).rev().filter(|&r| parents[r] == Some(rank)));
    }
    // Leaves side by side in the order of a walk, and each other rank above the middle of its children.
    let leaves: Vec<usize> = order.iter().copied().filter(|&r| !parents.contains(&Some(r))).collect();
    let room = PANEL - 40.0;
    let mut x = vec![0.0; parents.len()];
    for (i, &leaf) in leaves.iter().enumerate() {
        x[leaf] = middle.0 - room / 2.0 + room * (i as f64 + 0.5) / leaves.len() as f64;
    }
    for &rank in order.iter().rev().filter(|r| !leaves.contains(r)) {
        let children: Vec<f64> =
            (0..parents.len()).filter(|&r| parents[r] == Some(rank)).map(|r| x[r]).collect();
        x[rank] = children.iter().sum::<f64>() / children.len().max(1) as f64;
    }
    let step = (PANEL - 70.0) / deepest as f64;
    (0..parents.len())
        .map(|rank| (x[rank], middle.1 - PANEL / 2.0 + 36.0 + depth(rank) as f64 * step))
        .collect()
}
