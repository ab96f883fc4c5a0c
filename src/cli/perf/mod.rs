//! `ringleader perf`: times a collective over a range of sizes, beside NCCL where asked for.

mod options;
mod overlap;
mod plot;
mod report;

use std::io::Write;
use std::path::Path;

pub(super) use options::Options;

use super::Outcome;
use crate::error::{Error, Result};
use crate::perf::{Bench, Case, Progress, Row, format_bytes};
use report::Report;

/// Measures what the options ask for, and writes a table or JSON to `out`.
pub(super) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome> {
    measure(options, out).map_err(|why| options.named(why))
}

fn measure(options: &Options, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(path) = &options.plot {
        check_writable(path)?;
    }
    let timing = options.timing();
    let setup = options.setup()?;
    let mut bench = Bench::new(&setup)?;
    let collective = options.collective(bench.ranks())?;
    for note in options.without_effect(bench.on_gpus()) {
        eprintln!("note: {note}");
    }
    let cases = cases(options, collective, &bench)?;
    // Known before anything is measured: a long run should not end in what could have been said at once.
    cases.iter().rev().try_for_each(|case| bench.check(case, &timing))?;
    if options.overlap {
        return overlap::run(options, collective, &mut bench, &setup.config, out);
    }
    let mut report = Report::new(options, collective, &bench);
    let table = bench.table();
    if !options.json {
        write(out, &(report.preamble() + &table.header()))?;
    }
    let progress = Progress::new(cases.len());
    let mut rows: Vec<Row> = Vec::with_capacity(cases.len());
    for case in &cases {
        progress.start(&format!("{} {}", collective.name(), format_bytes(case.bytes)));
        let row = bench.measure(case, &timing)?;
        let line = if options.json { String::new() } else { table.line(&row) + "\n" };
        progress.step(|| write(out, &line))?;
        rows.push(row);
    }
    drop(progress);
    report.rows(&table, &rows);
    if options.json {
        write(out, &report.json())?;
    } else {
        write(out, &table.footer(&rows))?;
    }
    if let Some(path) = &options.plot {
        let title = report.title();
        save(path, &plot::draw(&title, &table, &rows)?)?;
    }
    let wrong =
        rows.iter().flat_map(|r| [Some(r.ours), r.nccl]).flatten().filter_map(|m| m.wrong).sum::<u64>();
    Ok(if wrong == 0 { Outcome::Good } else { Outcome::Bad })
}

/// One case for each size and place. Sizes that mean the same number of elements are measured once.
fn cases(options: &Options, collective: crate::types::Collective, bench: &Bench) -> Result<Vec<Case>> {
    let ranks = bench.ranks();
    let mut cases: Vec<Case> = Vec::new();
    for bytes in options.sizes(bench.on_gpus())? {
        for in_place in options.places() {
            let case = Case { collective, dtype: options.dtype, op: options.op(), bytes, in_place };
            let same =
                |c: &Case| c.in_place == in_place && c.message_bytes(ranks) == case.message_bytes(ranks);
            if !cases.iter().any(same) {
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

fn write(out: &mut dyn Write, text: &str) -> Result<()> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|why| Error::System { action: "writing the results".into(), reason: why.to_string() })
}

/// Whether a file can be written, asked without leaving one behind.
fn check_writable(path: &Path) -> Result<()> {
    let new = !path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|why| not_written(path, &why))?;
    if new {
        // A file that cannot be removed is written to later all the same.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn not_written(path: &Path, why: &std::io::Error) -> Error {
    Error::System { action: format!("writing {}", path.display()), reason: why.to_string() }
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|why| not_written(path, &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn perf(arguments: &str) -> Result<(Outcome, String)> {
        let line =
            Line::try_parse_from(format!("perf {arguments}").split_whitespace()).expect("good options");
        let mut out = Vec::new();
        let outcome = run(&line.options, &mut out)?;
        Ok((outcome, String::from_utf8(out).expect("text")))
    }

    #[test]
    fn cpu_ranks_are_measured_and_right() {
        let (outcome, text) = perf("all_gather --device cpu -g 3 -b 8 -e 8K -f 32 -n 3 -d bf16").unwrap();
        assert_eq!(outcome, Outcome::Good);
        // 8 and 256 bytes, and 8 KiB, are 6, 252 and 8190 bytes for three blocks of two-byte elements.
        for size in ["  6  ", "  252  ", "  8190  "] {
            assert_eq!(text.matches(size).count(), 2, "in place and out of place: {text}");
        }
        for expected in ["all_gather", "bf16", "Channel 00 : 0[cpu] -> 1[cpu]", "no wrong values"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn json_holds_what_the_table_shows() {
        let (_, text) =
            perf("broadcast --device cpu -g 2 -b 1K -e 1K -n 2 --root 1 --json --place out").unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).expect("nothing but JSON");
        assert_eq!(json["collective"], "broadcast");
        assert_eq!((&json["root"], &json["ranks"]), (&1.into(), &2.into()));
        let row = &json["rows"][0];
        assert_eq!((&row["bytes"], &row["wrong"]), (&1024.into(), &0.into()));
        assert!(row["seconds"].as_f64().unwrap() > 0.0 && row["nccl"].is_null(), "{row}");
    }

    #[test]
    fn the_plot_is_an_svg_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let arguments =
            format!("reduce --device cpu -g 2 -b 8 -e 4K -f 8 -n 2 -c 0 --plot {}", file.display());
        assert!(perf(&arguments).unwrap().1.contains("results not checked"));
        let text = std::fs::read_to_string(file).unwrap();
        let svg = roxmltree::Document::parse(&text).expect("well-formed XML");
        assert_eq!(svg.root_element().tag_name().name(), "svg");
    }

    #[test]
    fn a_plot_that_cannot_be_written_is_refused_before_anything_is_measured() {
        let arguments = "perf reduce --device cpu -b 8 -e 8 -n 1 --plot /nowhere/plot.svg";
        let line = Line::try_parse_from(arguments.split_whitespace()).unwrap();
        let mut out = Vec::new();
        let refused = run(&line.options, &mut out).unwrap_err().to_string();
        assert!(refused.contains("/nowhere/plot.svg") && out.is_empty(), "{refused}");
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new.svg"), folder.path().join("old.svg"));
        std::fs::write(&old, "a picture").unwrap();
        check_writable(&new).unwrap();
        check_writable(&old).unwrap();
        assert!(!new.exists() && std::fs::read_to_string(old).unwrap() == "a picture");
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        for (arguments, expected) in [
            ("all_reduce --device cpu -b 1M -e 8", "--maxbytes is \"8\""),
            ("all_reduce --device cpu -f 1", "--stepfactor is \"1\""),
            ("broadcast --device cpu -g 2 -b 8 -e 8 --root 2", "--root is \"2\""),
            ("all_reduce --device cpu -d i32 -o premulsum:0.5", "--op is \"premulsum"),
            ("all_reduce --device cpu -d f16 -o premulsum:1e5", "--op is \"premulsum:100000\""),
            ("all_reduce --device cpu -o premulsum:nan", "--op is \"premulsum:NaN\""),
            ("all_reduce --device cpu --channels 99", "--channels is \"99\", expected 1 to 64"),
            ("all_reduce --device cpu --lanes 0", "--lanes is"),
            ("all_reduce --device cpu --tile 1", "--tile is"),
            ("all_reduce --device cpu -e 256T", "512.0 TiB of memory for the buffers of 2 ranks"),
            ("all_reduce --device cpu --compare nccl", "NCCL"),
            ("all_reduce --device cpu -g 1000", "--ranks is \"1000\""),
            ("all_reduce --device cpu --overlap", "overlap"),
        ] {
            let message = perf(arguments).expect_err(arguments).to_string();
            assert!(message.contains(expected), "{arguments}: {message}");
        }
    }
}
