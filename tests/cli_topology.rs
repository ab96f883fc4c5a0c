//! The `topo`, `plan` and `simulate` commands, as a user runs them.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Four GPUs with an NVLink triangle, the last one behind GPU 2, and a PCIe switch.
const MATRIX: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV3\tNV3\tPIX\nGPU1\tNV3\t X \tNV3\tPIX\n\
                      GPU2\tNV3\tNV3\t X \tNV3\nGPU3\tPIX\tPIX\tNV3\t X \n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("machine.txt"), MATRIX).unwrap();
    folder
}

fn run(folder: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringleader"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NCCL_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments.split_whitespace()).envs(environment.iter().copied());
    command.output().expect("the command runs")
}

#[track_caller]
fn good(folder: &Path, arguments: &str) -> String {
    let output = run(folder, arguments, &[]);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&good(folder, arguments)).expect("nothing but JSON")
}

#[test]
fn topo_shows_the_machine_in_every_form() {
    let folder = folder();
    let here = folder.path();
    let text = good(here, "topo machine.txt --link NV=25,PIX=24");
    assert!(text.contains("4 GPUs") && text.contains("NVL 75") && text.contains("NVB 75"), "{text}");
    let value = json(here, "topo machine.txt --link NV=25 --json");
    assert_eq!(value["gpus"][3]["index"], 3);
    assert!(value["gpus"][3].get("bus_id").is_some() && value["gpus"][3].get("sm").is_some());
    assert_eq!((&value["paths"][0][1]["type"], &value["paths"][0][1]["gbs"]), (&"NVL".into(), &75.0.into()));
    // What it prints can be read back, and what it writes, too.
    std::fs::write(here.join("again.txt"), good(here, "topo machine.txt --matrix")).unwrap();
    let again = json(here, "topo again.txt --json");
    assert_eq!(again["links"], json(here, "topo machine.txt --json")["links"]);
    good(here, "topo machine.txt --xml out.xml --svg out.svg");
    assert_eq!(json(here, "topo out.xml --json")["gpus"].as_array().unwrap().len(), 4);
    let svg = std::fs::read_to_string(here.join("out.svg")).unwrap();
    let picture = roxmltree::Document::parse(&svg).expect("well-formed XML");
    let words: Vec<&str> = picture.descendants().filter_map(|n| n.text()).collect();
    assert!(
        (0..4).all(|gpu| words.contains(&format!("GPU{gpu}").as_str())) && words.contains(&"NV3 60"),
        "{words:?}"
    );
    good(here, "topo machine.txt --dot out.dot");
    let dot = std::fs::read_to_string(here.join("out.dot")).unwrap();
    assert!(dot.starts_with("graph") && dot.contains("NV3 60 GB/s"), "{dot}");
}

#[test]
fn this_machine_is_recorded_and_replayed() {
    let folder = folder();
    let here = folder.path();
    good(here, "topo --record facts.json");
    assert_eq!(json(here, "topo facts.json --json")["gpus"], json(here, "topo --json")["gpus"]);
    assert_eq!(run(here, "topo machine.txt --record facts.json", &[]).status.code(), Some(2));
}

#[test]
fn plan_compares_and_explains() {
    let folder = folder();
    let here = folder.path();
    let machine = "plan machine.txt --link NV=25,PIX=24 --collective all_reduce --bytes 1G";
    let text = good(here, machine);
    for word in
        ["-> forest", "cross PIX between GPU", "cannot exceed 99.00 GB/s", "Rank 0 Trees [0]", "proven"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let value = json(here, &format!("{machine} --json"));
    assert_eq!((&value["collective"], &value["ranks"]), (&"all_reduce".into(), &4.into()));
    assert_eq!((&value["bytes"], &value["verified"]), (&(1u64 << 30).into(), &true.into()));
    assert!(value["fraction_of_bound"].as_f64().unwrap() > 0.95);
    assert_eq!(value["bound_algbw_gbs"], 99.0);
    let part = json(here, "plan machine.txt -c broadcast --root 1 --ranks 0,2,3 -b 1M --json --svg plan.svg");
    assert_eq!((&part["ranks"], &part["root"]), (&3.into(), &1.into()));
    let svg = std::fs::read_to_string(here.join("plan.svg")).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok());
    let forced = run(here, machine, &[("NCCL_ALGO", "ring"), ("NCCL_FOO", "1")]);
    let (out, said) = (String::from_utf8_lossy(&forced.stdout), String::from_utf8_lossy(&forced.stderr));
    assert!(out.contains("-> ring") && !out.contains("forest"), "{out}");
    assert_eq!(said.matches("NCCL_FOO").count(), 1, "{said}");
    let named = run(here, "plan -c all_gather -b 8K", &[("NCCL_TOPO_FILE", "machine.txt")]);
    assert!(named.status.success());
}

#[test]
fn simulate_prints_a_row_for_each_size() {
    let folder = folder();
    let value = json(folder.path(), "simulate machine.txt --collective all_gather -b 8 -e 1G -f 8 --json");
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    for row in rows {
        for key in ["bytes", "time_us", "algbw_gbs", "busbw_gbs"] {
            assert!(row[key].is_number(), "{key}: {row}");
        }
        assert!(row["algorithm"].is_string());
    }
    let time = |row: &Value| row["time_us"].as_f64().unwrap();
    assert!(rows.windows(2).all(|pair| time(&pair[0]) <= time(&pair[1])), "{value}");
    assert!(good(folder.path(), "simulate machine.txt -c reduce -b 8 -e 8").contains("reduce on 4 ranks"));
}

#[test]
fn bad_input_is_refused_with_status_two_and_a_reason() {
    let folder = folder();
    let here = folder.path();
    std::fs::write(here.join("broken.xml"), "<system version=\"1\"><cpu>").unwrap();
    std::fs::write(here.join("other.txt"), "hello\n").unwrap();
    for (arguments, word) in [
        ("topo nowhere.xml", "nowhere.xml"),
        ("topo broken.xml", "broken.xml"),
        ("topo other.txt", "no topology"),
        ("topo machine.txt --link NV=fast", "NV=25"),
        ("topo machine.txt --sm 9000", "9000"),
        ("plan machine.txt --collective all_reduce", "--bytes"),
        ("plan machine.txt --collective all_to_all --bytes 8", "all_reduce"),
        ("plan machine.txt --collective all_reduce --bytes many", "many"),
        ("plan machine.txt --collective all_reduce --bytes 8 --ranks 0,9", "9"),
        ("plan machine.txt --collective all_reduce --bytes 8 --root 1", "no root"),
        ("plan machine.txt --collective reduce --bytes 8 --root 4", "--root is \"4\""),
        ("simulate machine.txt --collective reduce -b 8 -e 4", "--maxbytes is \"4\""),
        ("simulate machine.txt --collective reduce -f 1", "--stepfactor is \"1\""),
    ] {
        let output = run(here, arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(word), "{arguments}: {said}");
    }
    let output = run(here, "plan machine.txt -c reduce -b 8", &[("NCCL_MAX_CTAS", "many")]);
    assert_eq!(output.status.code(), Some(2));
}
