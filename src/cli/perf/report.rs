//! What a run found, for people above the table and as JSON.

use serde::Serialize;

use super::options::Options;
use crate::perf::{Bench, Measured, Row, Table};
use crate::types::Collective;

/// A run of `ringleader perf`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    collective: &'static str,
    root: Option<usize>,
    datatype: &'static str,
    op: &'static str,
    ranks: usize,
    device: String,
    mode: String,
    machine: Vec<String>,
    channels: Vec<String>,
    nccl: Option<String>,
    /// What copy engines move, each way, in GB/s.
    copy_engine_limit: Option<f64>,
    rows: Vec<JsonRow>,
}

/// Bandwidths are in GB/s (10^9 bytes).
#[derive(Debug, Serialize)]
struct JsonRow {
    bytes: usize,
    count: usize,
    in_place: bool,
    seconds: f64,
    algorithm_bandwidth: f64,
    bus_bandwidth: f64,
    wrong: Option<u64>,
    /// What it takes the host to enqueue a call; none on CPU ranks and for graphs.
    host_us: Option<f64>,
    fraction_of_limit: Option<f64>,
    nccl: Option<JsonNccl>,
}

#[derive(Debug, Serialize)]
struct JsonNccl {
    #[serde(flatten)]
    measured: Measured,
    bus_bandwidth: f64,
    /// NCCL's time over ours.
    ratio: f64,
}

impl Report {
    pub(super) fn new(options: &Options, collective: Collective, bench: &Bench) -> Self {
        let mode = if bench.on_gpus() { options.mode().to_string() } else { "one thread a rank".to_owned() };
        Report {
            version: env!("CARGO_PKG_VERSION"),
            collective: collective.name(),
            root: collective.root(),
            datatype: options.dtype.name(),
            op: if collective.reduces() { options.op().name() } else { "none" },
            ranks: bench.ranks(),
            device: bench.why().to_owned(),
            mode,
            machine: bench.machine(),
            channels: bench.channels(),
            nccl: bench.nccl_version(),
            copy_engine_limit: bench.limit(),
            rows: Vec::new(),
        }
    }

    /// Takes the results.
    pub(super) fn rows(&mut self, table: &Table, rows: &[Row]) {
        let row = |row: &Row| {
            let (case, seconds) = (row.case, row.ours.seconds);
            let bus_bandwidth = case.bus_bandwidth(table.ranks, seconds);
            JsonRow {
                bytes: case.message_bytes(table.ranks),
                count: case.count(table.ranks),
                in_place: case.in_place,
                seconds,
                algorithm_bandwidth: case.algorithm_bandwidth(table.ranks, seconds),
                bus_bandwidth,
                wrong: row.ours.wrong,
                host_us: row.ours.host_us,
                fraction_of_limit: table.limit.map(|limit| bus_bandwidth / limit),
                nccl: row.nccl.map(|measured| JsonNccl {
                    measured,
                    bus_bandwidth: case.bus_bandwidth(table.ranks, measured.seconds),
                    ratio: measured.seconds / seconds,
                }),
            }
        };
        self.rows = rows.iter().map(row).collect();
    }

    /// `all_reduce f32 sum, 2 ranks, graph replay`.
    pub(super) fn title(&self) -> String {
        let op = if self.op == "none" { String::new() } else { format!(" {}", self.op) };
        format!("{} {}{op}, {} ranks, {}", self.collective, self.datatype, self.ranks, self.mode)
    }

    /// The lines above the table.
    pub(super) fn preamble(&self) -> String {
        let mut lines =
            vec![format!("ringleader {}: {}", self.version, self.title()), format!("on {}", self.device)];
        lines.extend(self.machine.iter().cloned());
        lines.extend(self.channels.iter().cloned());
        lines.extend(self.nccl.iter().map(|version| format!("NCCL {version}")));
        lines.extend(self.copy_engine_limit.map(|limit| {
            format!("copy engines move {limit:.1} GB/s from each GPU to the next, both directions at once")
        }));
        lines.iter().map(|line| format!("# {line}\n")).collect::<String>() + "#\n"
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data") + "\n"
    }
}
