//! The table of results, in the columns of nccl-tests.

use std::fmt::Write as _;

use serde::Serialize;

use super::case::Case;
use super::median;

/// What one library needed for a call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The median time of a call, in seconds.
    pub seconds: f64,
    /// Elements of all ranks' results that are wrong; `None` if they were not checked.
    pub wrong: Option<u64>,
    /// The median time in which the host enqueues a rank's call on a GPU's stream, in microseconds; `None` where it
    /// enqueues none: on CPU ranks, and where a graph is replayed.
    pub host_us: Option<f64>,
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// What was called.
    pub case: Case,
    /// What this library needed.
    pub ours: Measured,
    /// What NCCL needed, if it was measured.
    pub nccl: Option<Measured>,
}

/// What the columns of a table are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// How many ranks took part.
    pub ranks: usize,
    /// Whether there are columns for NCCL.
    pub nccl: bool,
    /// What copy engines move in each direction, in GB/s, where it was measured.
    pub limit: Option<f64>,
}

impl Table {
    /// The two lines above the rows.
    pub fn header(&self) -> String {
        let mut names = format!(
            "# {:>12}  {:>12}  {:>7}  {:>9}  {:>4}  {:>5}",
            "size", "count", "type", "redop", "root", "place"
        );
        let mut units =
            format!("# {:>12}  {:>12}  {:>7}  {:>9}  {:>4}  {:>5}", "(B)", "(elements)", "", "", "", "");
        let mut column = |name: &str, unit: &str, width: usize| {
            let _ = (write!(names, "  {name:>width$}"), write!(units, "  {unit:>width$}"));
        };
        column("time", "(us)", 9);
        column("algbw", "(GB/s)", 7);
        column("busbw", "(GB/s)", 7);
        column("#wrong", "", 6);
        if self.limit.is_some() {
            column("limit", "(%)", 6);
        }
        if self.nccl {
            column("nccl", "(us)", 9);
            column("busbw", "(GB/s)", 7);
            column("#wrong", "", 6);
            column("ratio", "nccl/us", 7);
        }
        format!("{names}\n{}\n", units.trim_end())
    }

    /// One row.
    pub fn line(&self, row: &Row) -> String {
        let (case, n) = (&row.case, self.ranks);
        let op = if case.collective.reduces() { case.op.name() } else { "none" };
        let root = case.collective.root().map_or("-1".to_owned(), |r| r.to_string());
        let place = if case.in_place { "in" } else { "out" };
        let mut line = format!(
            "  {:>12}  {:>12}  {:>7}  {op:>9}  {root:>4}  {place:>5}",
            case.message_bytes(n),
            case.count(n),
            case.dtype.name(),
        );
        let ours = row.ours.seconds;
        let _ = write!(
            line,
            "  {:>9}  {:>7}  {:>7}  {:>6}",
            significant(ours * 1e6),
            significant(case.algorithm_bandwidth(n, ours)),
            significant(case.bus_bandwidth(n, ours)),
            wrong(row.ours),
        );
        if let Some(limit) = self.limit {
            let _ = write!(line, "  {:>6.1}", 100.0 * case.bus_bandwidth(n, ours) / limit);
        }
        match row.nccl {
            Some(nccl) => {
                let _ = write!(
                    line,
                    "  {:>9}  {:>7}  {:>6}  {:>7.2}",
                    significant(nccl.seconds * 1e6),
                    significant(case.bus_bandwidth(n, nccl.seconds)),
                    wrong(nccl),
                    nccl.seconds / ours,
                );
            }
            None if self.nccl => {
                let _ = write!(line, "  {:>9}  {:>7}  {:>6}  {:>7}", "-", "-", "-", "-");
            }
            None => {}
        }
        line
    }

    /// The lines below the rows: wrong elements, the average bus bandwidth, and what a call costs the host.
    pub fn footer(&self, rows: &[Row]) -> String {
        let wrong: u64 =
            rows.iter().flat_map(|r| [Some(r.ours), r.nccl]).flatten().filter_map(|m| m.wrong).sum();
        let checked = rows.iter().any(|r| r.ours.wrong.is_some());
        let buses: Vec<f64> = rows.iter().map(|r| r.case.bus_bandwidth(self.ranks, r.ours.seconds)).collect();
        let mean = buses.iter().sum::<f64>() / buses.len().max(1) as f64;
        let verdict = match (checked, wrong) {
            (false, _) => "results not checked".to_owned(),
            (true, 0) => "no wrong values".to_owned(),
            (true, n) => format!("{n} WRONG VALUES"),
        };
        let ours: Vec<f64> = rows.iter().filter_map(|r| r.ours.host_us).collect();
        let nccl: Vec<f64> = rows.iter().filter_map(|r| r.nccl?.host_us).collect();
        let mut host = String::new();
        if !ours.is_empty() {
            let most = ours.iter().copied().fold(0.0, f64::max);
            let beside = if nccl.is_empty() {
                String::new()
            } else {
                format!("; NCCL's {}", significant(median(nccl)))
            };
            let middle = significant(median(ours));
            host = format!(
                "# the host enqueues a call in {middle} us (median; {} at most){beside}\n",
                significant(most)
            );
        }
        format!("# {verdict}; average bus bandwidth {} GB/s\n{host}", significant(mean))
    }
}

/// Four significant digits, but at most four decimals: `0.0012`, `12.34`, `123456`.
fn significant(x: f64) -> String {
    if !x.is_finite() || x == 0.0 {
        return format!("{x:.2}");
    }
    let decimals = (3 - x.abs().log10().floor() as i32).clamp(0, 4) as usize;
    format!("{x:.decimals$}")
}

fn wrong(measured: Measured) -> String {
    measured.wrong.map_or("N/A".to_owned(), |n| n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Collective, DataType, ReduceOp};

    fn rows() -> Vec<Row> {
        let case = Case {
            collective: Collective::AllReduce,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            bytes: 1 << 30,
            in_place: false,
        };
        let small = Case { bytes: 8, in_place: true, collective: Collective::Broadcast { root: 1 }, ..case };
        let measured = |seconds, wrong| Measured { seconds, wrong, host_us: None };
        vec![
            Row { case, ours: measured(2.9e-3, Some(0)), nccl: Some(measured(3.258e-3, Some(0))) },
            Row { case: small, ours: measured(1.371e-6, None), nccl: None },
        ]
    }

    fn text(table: Table) -> String {
        let rows = rows();
        let lines: Vec<_> = rows.iter().map(|r| table.line(r)).collect();
        format!("{}{}\n{}", table.header(), lines.join("\n"), table.footer(&rows))
    }

    #[test]
    fn plain_table() {
        insta::assert_snapshot!(text(Table { ranks: 2, nccl: false, limit: None }));
    }

    #[test]
    fn table_with_nccl_and_limit() {
        insta::assert_snapshot!(text(Table { ranks: 2, nccl: true, limit: Some(392.0) }));
    }

    #[test]
    fn wrong_values_are_loud() {
        let mut rows = rows();
        rows[0].nccl = Some(Measured { seconds: 1.0, wrong: Some(3), host_us: None });
        let footer = Table { ranks: 2, nccl: true, limit: None }.footer(&rows);
        assert!(footer.contains("3 WRONG VALUES"), "{footer}");
    }

    #[test]
    fn the_cost_of_a_call_for_the_host_is_below_the_table() {
        let mut rows = rows();
        let table = Table { ranks: 2, nccl: true, limit: None };
        assert!(!table.footer(&rows).contains("host"), "nothing was enqueued");
        (rows[0].ours.host_us, rows[1].ours.host_us) = (Some(2.5), Some(3.5));
        insta::assert_snapshot!(table.footer(&rows));
        rows[0].nccl = Some(Measured { host_us: Some(4.25), ..rows[0].ours });
        assert!(table.footer(&rows).contains("NCCL's 4.250"), "{}", table.footer(&rows));
    }

    #[test]
    fn numbers_keep_four_digits() {
        let shown: Vec<_> = [0.0, 0.00123456, 1.23456, 12.3456, 123456.7].map(significant).into();
        assert_eq!(shown, ["0.00", "0.0012", "1.235", "12.35", "123457"]);
    }
}
