//! Reading the matrix that `nvidia-smi topo -m` prints.

use crate::error::{Error, Result};
use crate::topology::model::{Gpu, LinkKind, Net, Nic, NodeKind, Topology};
use crate::topology::path::PathType;
use crate::topology::pcie_groups::{self, Placement};
use crate::topology::rates::{LinkRates, max_nvlinks, nvlink_gbs};

/// More GPUs than any host has; a matrix beyond it is refused.
const MAX_GPUS: usize = 128;

/// What the text does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SmiOptions {
    /// Compute capability of the GPUs (`80` for 8.0): decides the rate and the number of NVLinks.
    pub sm: Option<u32>,
    /// Rates in place of the built-in ones.
    pub rates: LinkRates,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Itself,
    NvLink(u32),
    Xgmi(u32),
    Far(PathType),
}

/// A row that was read: the line it is on, its cells, and the text after them.
struct Row {
    line: usize,
    cells: Vec<Cell>,
    place: Placement,
}

impl Topology {
    /// Reads the text of `nvidia-smi topo -m`. `file` names it in errors.
    ///
    /// Tabs or spaces, terminal underlines, NIC rows, missing or empty affinity columns, the old word SOC and
    /// a missing legend are all taken. The text does not give rates; unless `options` says otherwise an
    /// NVLink carries 20 GB/s (20.6 for compute capability 9.0, 40.1 for 10.0), every PCIe link 24 and the
    /// bus between NUMA nodes 16.
    ///
    /// NVLinks between all pairs of a group are taken for an NVSwitch fabric when a GPU would otherwise have
    /// more links than its generation has (6, 12 or 18; 18 if `sm` is not given), else for direct links.
    pub fn from_smi(text: &str, file: &str, options: &SmiOptions) -> Result<Topology> {
        let matrix = Matrix::read(text, file)?;
        let mut t = Topology::new(file);
        matrix.build(&mut t, options);
        Ok(t)
    }
}

/// Whether some line looks like the head of the matrix.
pub(crate) fn looks_like_matrix(text: &str) -> bool {
    strip_escapes(text).lines().any(|l| is_header(&l.split_whitespace().collect::<Vec<_>>()))
}

fn gpu_number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("GPU")?;
    (!digits.is_empty() && digits.len() <= 4 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

/// A header starts with a GPU's name; a row does too, but goes on with a cell.
fn is_header(words: &[&str]) -> bool {
    let first_is_gpu = words.first().is_some_and(|w| gpu_number(w).is_some());
    first_is_gpu && words.get(1).is_none_or(|w| parse_cell(w).is_none())
}

fn parse_cell(word: &str) -> Option<Cell> {
    let upper = word.to_ascii_uppercase();
    let number = |digits: &str| match digits {
        "" => None,
        d if d.len() <= 3 && d.bytes().all(|b| b.is_ascii_digit()) => d.parse().ok().filter(|&n| n > 0),
        _ => None,
    };
    Some(match upper.as_str() {
        "X" => Cell::Itself,
        "XGMI" => Cell::Xgmi(1),
        "PIX" => Cell::Far(PathType::Pix),
        "PXB" => Cell::Far(PathType::Pxb),
        "PHB" => Cell::Far(PathType::Phb),
        "NODE" => Cell::Far(PathType::Node),
        "SYS" | "SOC" => Cell::Far(PathType::Sys),
        "DIS" | "NVB" | "N/A" => Cell::Far(PathType::Dis),
        _ => match upper.strip_prefix("XGMI") {
            Some(digits) => Cell::Xgmi(number(digits)?),
            None => Cell::NvLink(number(upper.strip_prefix("NV")?)?),
        },
    })
}

/// Removes terminal control sequences (such as underlining) and carriage returns.
fn strip_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next_if_eq(&'[').is_some() {
                    // Parameters, up to and with the final letter; never beyond the line.
                    while let Some(c) = chars.next_if(|&c| c != '\n') {
                        if ('@'..='~').contains(&c) {
                            break;
                        }
                    }
                }
            }
            '\r' | '\u{feff}' => {}
            c => plain.push(c),
        }
    }
    plain
}

struct Matrix {
    names: Vec<String>,
    /// One for each name; `None` for a NIC that has no row.
    rows: Vec<Option<Row>>,
    nic_names: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl Matrix {
    fn read(text: &str, file: &str) -> Result<Matrix> {
        let fail =
            |line: Option<usize>, reason: String| Err(Error::Parse { file: file.into(), line, reason });
        let text = strip_escapes(text);
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let Some((head, header)) = lines.find(|(_, l)| is_header(&l.split_whitespace().collect::<Vec<_>>()))
        else {
            return fail(None, "no line that names GPU0, GPU1, … as the head of a matrix".into());
        };
        let names: Vec<String> = header
            .split_whitespace()
            .take_while(|w| !matches!(*w, "CPU" | "NUMA" | "GPU"))
            .map(String::from)
            .collect();
        if let Some(twice) = names.iter().enumerate().find(|(at, n)| names[..*at].contains(n)) {
            return fail(Some(head), format!("the column {} appears twice", twice.1));
        }
        let gpus = names.iter().filter(|n| gpu_number(n).is_some()).count();
        if gpus > MAX_GPUS || names.len() > 4 * MAX_GPUS {
            return fail(
                Some(head),
                format!("{gpus} GPUs in {} columns are more than a host has", names.len()),
            );
        }
        let mut matrix = Matrix {
            rows: names.iter().map(|_| None).collect(),
            names,
            nic_names: Vec::new(),
            warnings: Vec::new(),
        };
        for (line, text) in lines {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words[..] {
                [nic, name] if nic.starts_with("NIC") && nic.ends_with(':') => {
                    matrix.nic_names.push((nic.trim_end_matches(':').into(), name.into()));
                }
                [first, ..] => match matrix.names.iter().position(|n| n == first) {
                    Some(at) => matrix.read_row(at, text, line, file)?,
                    None if gpu_number(first).is_some() && words.len() > 1 => {
                        return fail(Some(line), format!("a row for {first}, which has no column"));
                    }
                    None => {}
                },
                [] => {}
            }
        }
        for (name, row) in matrix.names.iter().zip(&matrix.rows) {
            if row.is_none() && gpu_number(name).is_some() {
                return fail(Some(head), format!("{name} has a column but no row: the matrix is cut off"));
            }
        }
        Ok(matrix)
    }

    fn read_row(&mut self, at: usize, text: &str, line: usize, file: &str) -> Result<()> {
        let fail = |reason: String| Err(Error::Parse { file: file.into(), line: Some(line), reason });
        let name = &self.names[at];
        if let Some(row) = &self.rows[at] {
            return fail(format!("a second row for {name}; the first is in line {}", row.line));
        }
        // Where the affinity columns begin is found by counting words: cells are never empty.
        let mut cells = Vec::with_capacity(self.names.len());
        let mut rest = text.trim_start();
        rest = &rest[name.len()..];
        for (column, other) in self.names.iter().enumerate() {
            rest = rest.trim_start();
            let word = rest.split_whitespace().next().unwrap_or("");
            rest = &rest[word.len()..];
            let cell = match parse_cell(word) {
                Some(cell) => cell,
                None if word.is_empty() => {
                    let (have, want) = (cells.len(), self.names.len());
                    return fail(format!(
                        "the row of {name} has {have} cells of {want}: the matrix is cut off"
                    ));
                }
                None => {
                    return fail(format!(
                        "{word:?} between {name} and {other} is not X, NV#, PIX, PXB, PHB, NODE or SYS"
                    ));
                }
            };
            if (cell == Cell::Itself) != (column == at) {
                return fail(format!(
                    "{word:?} between {name} and {other}: X belongs on the diagonal, and only there"
                ));
            }
            cells.push(cell);
        }
        let place = placement(rest);
        self.rows[at] = Some(Row { line, cells, place });
        Ok(())
    }

    /// The cell between two columns. Where both rows say something and differ, the farther one counts.
    fn between(&mut self, i: usize, j: usize) -> Option<Cell> {
        let one = self.rows[i].as_ref().map(|r| r.cells[j]);
        let other = self.rows[j].as_ref().map(|r| r.cells[i]);
        let (Some(a), Some(b)) = (one, other) else { return one.or(other) };
        if a == b {
            return one;
        }
        // Farther is greater; fewer links are farther.
        let distance = |c: Cell| match c {
            Cell::Itself => (0, 0),
            Cell::NvLink(n) | Cell::Xgmi(n) => (1, u32::MAX - n),
            Cell::Far(kind) => (2, kind as u32),
        };
        let (a, b) = if distance(a) >= distance(b) { (a, b) } else { (b, a) };
        let (x, y) = (&self.names[i], &self.names[j]);
        self.warnings.push(format!(
            "The two cells between {x} and {y} differ ({} and {}); {} is taken for both directions.",
            word(a),
            word(b),
            word(a)
        ));
        Some(a)
    }

    fn build(mut self, t: &mut Topology, options: &SmiOptions) {
        let columns: Vec<usize> =
            (0..self.names.len()).filter(|&c| gpu_number(&self.names[c]).is_some()).collect();
        let n = columns.len();
        for (i, &c) in columns.iter().enumerate() {
            let dev = gpu_number(&self.names[c]);
            if dev != Some(i as u32) {
                let name = &self.names[c];
                self.warnings.push(format!("{name} is column {i} of the matrix and is called GPU{i} here."));
            }
            let place = self.rows[c].as_ref().map(|r| r.place.clone()).unwrap_or_default();
            let (numa, cpus) = (place.numa, place.cpus);
            t.add_gpu(Gpu { dev, sm: options.sm, numa, cpus, ..Gpu::default() }, None);
        }
        let mut cells = vec![vec![Cell::Itself; n]; n];
        for i in 0..n {
            for j in i + 1..n {
                if let Some(cell) = self.between(columns[i], columns[j]) {
                    (cells[i][j], cells[j][i]) = (cell, cell);
                }
            }
        }
        for sentence in std::mem::take(&mut self.warnings) {
            t.warn(sentence);
        }
        nvlinks(t, &cells, options);
        let far = |c: &Cell| match *c {
            Cell::Far(kind) if kind.is_pcie() => Some(kind),
            _ => None,
        };
        let distances: Vec<Vec<_>> = cells.iter().map(|row| row.iter().map(far).collect()).collect();
        let place = |&c: &usize| self.rows[c].as_ref().map(|r| r.place.clone()).unwrap_or_default();
        let places: Vec<Placement> = columns.iter().map(place).collect();
        let ports = pcie_groups::build(t, &distances, &places, &options.rates);
        self.add_nics(t, &columns, &ports);
    }

    /// NICs are hung where the nearest GPU's port leads, to be shown; they carry nothing.
    fn add_nics(&mut self, t: &mut Topology, columns: &[usize], ports: &[Option<usize>]) {
        for nic in (0..self.names.len()).filter(|c| !columns.contains(c)) {
            let distance = |c: Option<Cell>| match c {
                Some(Cell::Far(kind)) if kind.is_pcie() => kind,
                _ => PathType::Dis,
            };
            let near: Vec<PathType> = columns.iter().map(|&c| distance(self.between(c, nic))).collect();
            let label = &self.names[nic];
            let legend = self.nic_names.iter().find(|(l, _)| l == label).map(|(_, name)| name);
            let name = legend.unwrap_or(label).clone();
            let net = Net { name: name.clone(), ..Net::default() };
            let node = t.add_node(NodeKind::Nic(Nic { nets: vec![net] }), name, None);
            t.state_nic(node, near.clone());
            let closest = (0..near.len()).filter(|&i| near[i] < PathType::Sys).min_by_key(|&i| near[i]);
            if let Some(port) = closest.and_then(|i| ports[i]) {
                t.add_link(node, port, LinkKind::Pcie, 1, crate::topology::rates::UNKNOWN_PCIE_GBS);
            }
        }
        for sentence in std::mem::take(&mut self.warnings) {
            t.warn(sentence);
        }
    }
}

fn word(cell: Cell) -> String {
    match cell {
        Cell::Itself => "X".into(),
        Cell::NvLink(n) => format!("NV{n}"),
        Cell::Xgmi(n) => format!("XGMI{n}"),
        Cell::Far(kind) => kind.name().into(),
    }
}

/// CPU and NUMA affinity from what follows the cells: tab-separated (then columns may be empty) or not.
fn placement(rest: &str) -> Placement {
    let known = |w: &str| {
        let w = w.trim();
        (!w.is_empty() && w != "N/A").then(|| w.to_string())
    };
    let (cpus, numa) = if rest.contains('\t') {
        let mut columns = rest.split('\t').skip(1);
        (columns.next().and_then(known), columns.next().and_then(known))
    } else {
        let mut words = rest.split_whitespace();
        (words.next().and_then(known), words.next().and_then(known))
    };
    Placement { numa: numa.and_then(|n| n.parse().ok()).filter(|&n| n >= 0), cpus, port_gbs: None }
}

/// Adds NVLink (and xGMI) links: a fabric for a group in which all pairs have them and too many, else direct
/// links.
fn nvlinks(t: &mut Topology, cells: &[Vec<Cell>], options: &SmiOptions) {
    let n = cells.len();
    let links = |i: usize, j: usize| match cells[i][j] {
        Cell::NvLink(count) => count,
        _ => 0,
    };
    let rate = options.rates.nv.unwrap_or_else(|| nvlink_gbs(options.sm));
    let most = max_nvlinks(options.sm);
    let mut seen = vec![false; n];
    for start in 0..n {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut group = vec![start];
        let mut at = 0;
        while let Some(&i) = group.get(at) {
            let next: Vec<usize> = (0..n).filter(|&j| !seen[j] && links(i, j) > 0).collect();
            next.iter().for_each(|&j| seen[j] = true);
            group.extend(next);
            at += 1;
        }
        let total = |i: usize| (0..n).map(|j| links(i, j)).sum::<u32>();
        let all_pairs = group.iter().all(|&i| group.iter().all(|&j| i == j || links(i, j) > 0));
        let too_many = group.iter().copied().find(|&i| total(i) > most);
        if let (Some(i), true) = (too_many, all_pairs) {
            let name = match t.has_nvswitch() {
                true => format!("NVSwitch of GPU{i}"),
                false => "NVSwitch".to_string(),
            };
            let fabric = t.add_node(NodeKind::NvSwitch, name, None);
            for &i in &group {
                // A GPU has at least as many links to the fabric as its best pair shows.
                let count = (0..n).map(|j| links(i, j)).max().unwrap_or(0);
                let gpu = t.gpus()[i].node;
                t.add_link(gpu, fabric, LinkKind::NvLink, count, f64::from(count) * rate);
            }
            continue;
        }
        if let Some(i) = too_many {
            t.warn(format!(
                "GPU{i} has {} NVLinks by the matrix, more than the {most} that its generation has, and not to all \
                 GPUs alike; they are taken for direct links.",
                total(i)
            ));
        }
        for &i in &group {
            for &j in group.iter().filter(|&&j| j > i && links(i, j) > 0) {
                let (a, b, count) = (t.gpus()[i].node, t.gpus()[j].node, links(i, j));
                t.add_link(a, b, LinkKind::NvLink, count, f64::from(count) * rate);
            }
        }
    }
    let (xgmi, _) = crate::topology::rates::xgmi_gbs(None);
    for (i, row) in cells.iter().enumerate() {
        for (j, cell) in row.iter().enumerate().skip(i + 1) {
            if let Cell::Xgmi(count) = *cell {
                let (a, b) = (t.gpus()[i].node, t.gpus()[j].node);
                let gbs = f64::from(count) * options.rates.nv.unwrap_or(xgmi);
                t.add_link(a, b, LinkKind::Xgmi, count, gbs);
            }
        }
    }
}

#[cfg(test)]
#[path = "smi_tests.rs"]
mod tests;
