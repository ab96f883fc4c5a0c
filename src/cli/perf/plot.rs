//! Draws time and bus bandwidth against message size, as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::perf::{Measured, Row, Table, format_bytes};

const SIZE: (u32, u32) = (860, 960);
const OURS: RGBColor = RGBColor(20, 90, 180);
const NCCL: RGBColor = RGBColor(210, 110, 20);
const LIMIT: RGBColor = RGBColor(120, 120, 120);

/// One line of a panel: what it shows, and (bytes, value) of each size.
struct Series {
    name: &'static str,
    color: RGBColor,
    /// Filled markers are out of place, hollow ones in place.
    filled: bool,
    points: Vec<(f64, f64)>,
}

/// The plot as the text of an SVG file.
pub(super) fn draw(title: &str, table: &Table, rows: &[Row]) -> Result<String> {
    let mut svg = String::new();
    let failed = |why: String| Error::System { action: "drawing the plot".into(), reason: why };
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| failed(e.to_string()))?;
        let root = root.titled(title, ("sans-serif", 20)).map_err(|e| failed(e.to_string()))?;
        let (upper, lower) = root.split_vertically(50.percent_height());
        let ranks = table.ranks;
        let micros = |row: &Row, m: Measured| (row.case.message_bytes(ranks) as f64, m.seconds * 1e6);
        let bandwidth = |row: &Row, m: Measured| {
            (row.case.message_bytes(ranks) as f64, row.case.bus_bandwidth(ranks, m.seconds))
        };
        time_panel(&upper, &series(rows, &micros)).map_err(|e| failed(e.to_string()))?;
        bandwidth_panel(&lower, &series(rows, &bandwidth), table.limit).map_err(|e| failed(e.to_string()))?;
        root.present().map_err(|e| failed(e.to_string()))?;
    }
    Ok(svg)
}

/// A line for each library and place that has results.
fn series(rows: &[Row], point: &dyn Fn(&Row, Measured) -> (f64, f64)) -> Vec<Series> {
    let lines = [
        ("ringleader", OURS, true, false),
        ("ringleader, in place", OURS, false, false),
        ("NCCL", NCCL, true, true),
        ("NCCL, in place", NCCL, false, true),
    ];
    let mut all = Vec::new();
    for (name, color, filled, nccl) in lines {
        let points: Vec<_> = rows
            .iter()
            .filter(|row| row.case.in_place != filled)
            .filter_map(|row| Some(point(row, if nccl { row.nccl? } else { row.ours })))
            .filter(|&(bytes, value)| bytes > 0.0 && value > 0.0)
            .collect();
        if !points.is_empty() {
            all.push(Series { name, color, filled, points });
        }
    }
    all
}

/// The range of some values with a margin, so that a single value has one, too.
fn around(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    if low > high { 1.0..10.0 } else { low / 1.3..high * 1.3 }
}

fn sizes(all: &[Series]) -> Range<f64> {
    around(all.iter().flat_map(|s| s.points.iter().map(|p| p.0)))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// The label of a place on the axis of sizes.
fn size_label(bytes: &f64) -> String {
    // Ticks of a logarithmic axis are powers of ten; people know 1 KiB, 1 MiB and so on.
    let exponent = bytes.log2().round().max(0.0) as u32;
    format_bytes(1usize << exponent.min(60))
}

fn time_panel(area: &Area<'_>, all: &[Series]) -> Drawn {
    let values = around(all.iter().flat_map(|s| s.points.iter().map(|p| p.1)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes(all).log_scale().base(2.0), values.log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("message size (bytes)")
        .y_desc("time of a call (µs)")
        .x_label_formatter(&size_label)
        .draw()?;
    for s in all {
        let line = LineSeries::new(s.points.iter().copied(), s.color.stroke_width(2));
        chart.draw_series(line)?.label(s.name).legend(move |at| marker(at, s.color, s.filled));
        chart.draw_series(s.points.iter().map(|&p| marker(p, s.color, s.filled)))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

fn bandwidth_panel(area: &Area<'_>, all: &[Series], limit: Option<f64>) -> Drawn {
    let most = all.iter().flat_map(|s| s.points.iter().map(|p| p.1)).chain(limit).fold(0.0, f64::max);
    let x = sizes(all);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x.clone().log_scale().base(2.0), 0.0..most.max(1e-6) * 1.1)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("message size (bytes)")
        .y_desc("bus bandwidth (GB/s)")
        .x_label_formatter(&size_label)
        .draw()?;
    if let Some(limit) = limit {
        let line = DashedLineSeries::new([(x.start, limit), (x.end, limit)], 6, 4, LIMIT.stroke_width(1));
        chart
            .draw_series(line)?
            .label("copy engines")
            .legend(|(x, y)| PathElement::new(vec![(x - 8, y), (x + 8, y)], LIMIT));
    }
    for s in all {
        let line = LineSeries::new(s.points.iter().copied(), s.color.stroke_width(2));
        chart.draw_series(line)?.label(s.name).legend(move |at| marker(at, s.color, s.filled));
        chart.draw_series(s.points.iter().map(|&p| marker(p, s.color, s.filled)))?;
    }
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3));
    labels.draw()?;
    Ok(())
}

fn marker<C>(at: C, color: RGBColor, filled: bool) -> Circle<C, u32> {
    Circle::new(at, 3, if filled { color.filled() } else { color.stroke_width(1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Case;
    use crate::types::{Collective, DataType, ReduceOp};

    #[test]
    fn both_libraries_and_the_limit_are_drawn() {
        let measured = |seconds| Measured { seconds, wrong: Some(0), host_us: None };
        let row = |bytes, in_place| Row {
            case: Case {
                collective: Collective::AllReduce,
                dtype: DataType::F32,
                op: ReduceOp::Sum,
                bytes,
                in_place,
            },
            ours: measured(1e-6 + bytes as f64 / 380e9),
            nccl: Some(measured(4e-6 + bytes as f64 / 330e9)),
        };
        let rows: Vec<_> = (3..31).flat_map(|p| [row(1 << p, false), row(1 << p, true)]).collect();
        let table = Table { ranks: 2, nccl: true, limit: Some(392.0) };
        let svg = draw("all_reduce <f32>", &table, &rows).unwrap();
        let document = roxmltree::Document::parse(&svg).expect("well-formed, with the title escaped");
        let texts: String = document.descendants().filter_map(|n| n.text()).collect();
        for expected in ["ringleader", "NCCL, in place", "copy engines", "GB/s", "µs", "all_reduce <f32>"] {
            assert!(texts.contains(expected), "{expected}");
        }
        assert!(document.descendants().filter(|n| n.has_tag_name("circle")).count() > 2 * 4 * 28);
    }

    #[test]
    fn one_point_or_none_is_no_trouble() {
        let table = Table { ranks: 1, nccl: false, limit: None };
        assert!(draw("nothing", &table, &[]).is_ok());
    }
}
