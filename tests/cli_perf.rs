//! The `perf` command on CPU ranks, as a user runs it: what it says on stderr and its exit status.
#![cfg(feature = "cli")]

use std::process::{Command, Output};

fn perf(arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringleader"));
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("NCCL_") || name == "RINGLEADER_TIMEOUT")
    {
        command.env_remove(name);
    }
    command.arg("perf").args(arguments.split_whitespace()).envs(environment.iter().copied());
    command.output().expect("the command runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_an_option_cannot_change_is_said_and_the_rest_is_done() {
    let output = perf("all_gather --device cpu -b 8 -e 8 -n 1 -r 1 -o max -G --lanes 2", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "note: --root has no effect: all_gather has no root\n\
         note: --op has no effect: all_gather reduces nothing\n\
         note: --graph, --lanes have no effect on CPU ranks\n"
    );
    let output = perf("reduce --device cpu -b 8 -e 8 -n 1 -r 1 -o max", &[]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn bad_values_are_refused_by_the_name_they_were_given_by() {
    let here = "all_reduce --device cpu -b 8 -e 8 -n 1";
    for (more, variable, expected) in [
        ("-e 256T", None, "of memory for the buffers of 2 ranks for all_reduce of 262144G is not available"),
        ("--channels 99", None, "error: --channels is \"99\", expected 1 to 64"),
        ("--algorithm rong", None, "[possible values: ring, tree, direct, one_shot]"),
        ("-g 0", None, "error: --ranks is \"0\", expected 1 to 128"),
        ("", Some(("RINGLEADER_CHANNELS", "99")), "error: RINGLEADER_CHANNELS is \"99\", expected 1 to 64"),
        ("", Some(("NCCL_ALGO", "rong")), "error: NCCL_ALGO is \"rong\""),
        (
            "",
            Some(("RINGLEADER_TIMEOUT", "0")),
            "error: RINGLEADER_TIMEOUT is \"0\", expected a number of seconds above 0",
        ),
    ] {
        // A size given twice is an error of its own.
        let here = if more.contains("-e") { "all_reduce --device cpu -n 1" } else { here };
        let output = perf(&format!("{here} {more}"), variable.as_slice());
        assert_eq!(output.status.code(), Some(2), "{more} {variable:?}");
        assert!(stderr(&output).contains(expected), "{more} {variable:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{more} {variable:?}");
    }
}

#[test]
fn many_ranks_take_seconds_not_minutes() {
    let started = std::time::Instant::now();
    let output = perf("all_reduce --device cpu -g 128 -b 1K -e 1K --place out --json", &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!((&report["ranks"], &report["rows"][0]["wrong"]), (&128.into(), &0.into()));
    // It took a minute and a half when the number of calls did not depend on how long one takes.
    assert!(started.elapsed().as_secs() < 45, "{:?}", started.elapsed());
}
