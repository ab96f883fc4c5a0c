//! The house rules of the source: who may import whom, where `unsafe` may be, and how long a file may get.
//!
//! The floors, from the bottom: 1 `types`, `error`; 2 `topology`, `schedule`; 3 `plan`; 4 `transport`, `engine`; 5 `comm`;
//! 6 `perf`, `cli`, `bin`. A lower floor never imports a higher one, and some rooms stay apart although the floors would
//! allow it: `topology` and `schedule` know nothing of each other, nor `transport` of schedules, nor `engine` of planning.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What each top-level module may import besides itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &["types"]),
    ("types", &["error"]),
    // The seam through which all atomics come, so that loom can replace them.
    ("sync", &[]),
    ("topology", &["types", "error"]),
    ("schedule", &["types", "error"]),
    ("plan", &["types", "error", "topology", "schedule"]),
    ("transport", &["types", "error", "sync", "topology", "engine"]),
    ("engine", &["types", "error", "sync", "schedule", "transport"]),
    ("comm", &["types", "error", "sync", "topology", "schedule", "plan", "transport", "engine"]),
    ("perf", &["types", "error", "topology", "schedule", "plan", "comm"]),
    ("cli", &["types", "error", "topology", "schedule", "plan", "comm", "perf"]),
    ("bin", &["types", "error", "topology", "schedule", "plan", "comm", "cli"]),
];

/// Where `unsafe` may be: what touches raw memory or the CUDA driver.
const MAY_BE_UNSAFE: &[&str] = &[
    "src/engine/",
    "src/transport/",
    "src/sync.rs",
    "src/comm/copiers.rs",
    "src/comm/cuda.rs",
    "src/comm/window.rs",
    "src/comm/on_stream.rs",
    "src/perf/device.rs",
    "src/perf/nccl.rs",
];

/// Most lines of a file.
const MAX_LINES: usize = 600;

/// Replaces comments, and what string and character literals hold, by blanks. Lines keep their numbers.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, part: &[char]| {
        out.extend(part.iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
    };
    while i < chars.len() {
        let rest = &chars[i..];
        let starts = |s: &str| s.chars().enumerate().all(|(k, c)| rest.get(k) == Some(&c));
        let in_word = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
        let hashes = rest.iter().skip(1).take_while(|&&c| c == '#').count();
        let len = if starts("//") {
            rest.iter().position(|&c| c == '\n').unwrap_or(rest.len())
        } else if starts("/*") {
            let mut depth = 0usize;
            let mut k = 0;
            loop {
                match (rest.get(k), rest.get(k + 1)) {
                    (Some('/'), Some('*')) => (depth, k) = (depth + 1, k + 2),
                    (Some('*'), Some('/')) => (depth, k) = (depth - 1, k + 2),
                    (None, _) => break k,
                    _ => k += 1,
                }
                if depth == 0 {
                    break k;
                }
            }
        } else if rest[0] == 'r' && !in_word && rest.get(1 + hashes) == Some(&'"') {
            let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let end: Vec<char> = end.chars().collect();
            let from = hashes + 2;
            let found = rest[from..].windows(end.len()).position(|w| w == end);
            found.map_or(rest.len(), |p| from + p + end.len())
        } else if rest[0] == '"' {
            let mut k = 1;
            while k < rest.len() && rest[k] != '"' {
                k += if rest[k] == '\\' { 2 } else { 1 };
            }
            (k + 1).min(rest.len())
        } else if rest[0] == '\'' && rest.get(1) == Some(&'\\') {
            rest.iter().skip(3).position(|&c| c == '\'').map_or(rest.len(), |p| p + 4)
        } else if rest[0] == '\'' && rest.get(2) == Some(&'\'') {
            3
        } else {
            out.push(rest[0]);
            i += 1;
            continue;
        };
        blank(&mut out, &rest[..len]);
        i += len;
    }
    out
}

/// The first names of the paths in `text`, which follows a root such as `crate::`: one, or those in braces.
fn first_names(text: &str) -> Vec<String> {
    let word = |s: &str| -> String {
        s.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(list) = text.trim_start().strip_prefix('{') else { return vec![word(text)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(word(&list[start..i]));
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The crate's own modules and root names that the code mentions, with the lines that do.
fn mentions(path: &str, code: &str) -> Vec<(usize, String)> {
    let inside = path.strip_prefix("src/").expect("a source file").trim_end_matches(".rs");
    let inside = inside.trim_end_matches("/mod");
    let depth = inside.split('/').count();
    let root = if inside.starts_with("bin/") { "ringleader::" } else { "crate::" };
    // As many `super::` as lead from the file's module to the crate's root.
    let climb = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in [root, climb.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            let part_of_longer = before.is_some_and(|c| c.is_alphanumeric() || c == '_')
                || root == climb && code[..at].ends_with("super::");
            if !part_of_longer {
                let line = code[..at].matches('\n').count() + 1;
                found.extend(first_names(&code[at + root.len()..]).into_iter().map(|name| (line, name)));
            }
        }
    }
    found
}

/// Where each name that `lib.rs` exports again comes from.
fn root_exports(lib: &str) -> HashMap<String, String> {
    let mut from = HashMap::new();
    for (at, _) in lib.match_indices("pub use ") {
        let item = &lib[at + "pub use ".len()..];
        let item = &item[..item.find(';').unwrap_or(item.len())];
        if let Some((module, names)) = item.split_once("::") {
            from.extend(first_names(names).into_iter().map(|name| (name, module.trim().to_owned())));
        }
    }
    from
}

/// What is wrong with a file, each fault with `file:line`.
fn faults(path: &str, text: &str, exports: &HashMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        faults.push(format!("{path}:{}: the file has {lines} lines, more than {MAX_LINES}", MAX_LINES + 1));
    }
    if !path.starts_with("src/") || !path.ends_with(".rs") {
        return faults;
    }
    let code = code_only(text);
    let quote = |line: usize| text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
    if !MAY_BE_UNSAFE.iter().any(|allowed| path.starts_with(allowed)) {
        for (index, line) in code.lines().enumerate() {
            if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
                let line = index + 1;
                faults.push(format!("{path}:{line}: unsafe code is not allowed here: {}", quote(line)));
            }
        }
    }
    let module = path["src/".len()..].split('/').next().unwrap_or_default().trim_end_matches(".rs");
    if module == "lib" {
        return faults;
    }
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
        faults.push(format!("{path}:1: tests/architecture.rs has no floor for the module {module}"));
        return faults;
    };
    for (line, name) in mentions(path, &code) {
        let target = exports.get(&name).unwrap_or(&name).as_str();
        let known = MAY_IMPORT.iter().any(|(name, _)| *name == target);
        if known && target != module && !allowed.contains(&target) {
            faults.push(format!("{path}:{line}: {module} may not import {target}: {}", quote(line)));
        }
    }
    faults
}

/// All files below a folder, by their path from the crate's root.
fn files(root: &Path, folder: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    for entry in entries.map(|entry| entry.expect("a readable folder").path()) {
        let inside = entry.strip_prefix(root).expect("below the root").to_owned();
        match entry.is_dir() {
            true => files(root, inside.to_str().expect("names in UTF-8"), found),
            false => found.push(inside),
        }
    }
}

#[test]
fn every_file_keeps_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = vec![PathBuf::from("build.rs")];
    for folder in ["src", "tests", "examples", "benches", "kernels"] {
        files(root, folder, &mut all);
    }
    let source = |path: &PathBuf| {
        let kinds = ["rs", "h", "cu", "cuh"];
        path.extension().is_some_and(|kind| kinds.iter().any(|k| kind == *k))
    };
    all.retain(source);
    all.sort();
    assert!(all.len() > 20, "found only {all:?}");
    let read = |path: &Path| fs::read_to_string(root.join(path)).expect("source files are UTF-8");
    let exports = root_exports(&code_only(&read(Path::new("src/lib.rs"))));
    assert_eq!(exports.get("Error").map(String::as_str), Some("error"), "{exports:?}");
    let faults: Vec<_> = all
        .iter()
        .flat_map(|path| faults(path.to_str().expect("names in UTF-8"), &read(path), &exports))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[cfg(test)]
mod the_checker {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let exports = root_exports("pub use comm::{Communicator, Config};\npub use error::Error;");
        faults(path, text, &exports)
    }

    #[test]
    fn catches_imports_of_a_higher_floor() {
        let text = "//! Docs.\nuse crate::error::Error;\nuse crate::plan::Plan;\n";
        assert_eq!(
            found("src/schedule/ring.rs", text),
            ["src/schedule/ring.rs:3: schedule may not import plan: use crate::plan::Plan;"]
        );
        for bad in [
            "use crate::{\n    error::{Error, Result},\n    comm::Config,\n};",
            "fn f() -> crate::comm::Config { todo() }",
            "use crate::Communicator;",
            "use super::super::comm::Config;",
            "use crate::schedule::Schedule;",
        ] {
            assert_eq!(found("src/topology/xml.rs", bad).len(), 1, "{bad}");
        }
        assert_eq!(found("src/bin/ringleader.rs", "use ringleader::engine::host;").len(), 1);
    }

    #[test]
    fn lets_the_rest_pass() {
        for good in [
            "use crate::{error::Error, types::{DataType, ReduceOp}};\nuse crate::schedule::Fold;",
            "/// See [`crate::comm::Config`].\n// crate::comm\n/* use crate::comm; */\nfn f() {}",
            "const A: &str = \"use crate::comm\";\nconst B: &str = r#\"crate::comm \"quoted\" unsafe\"#;",
            "fn f<'a>(x: &'a str) -> char { '\"' }\nconst C: &str = \"crate::comm\";",
            "use super::ring::Ring;\nuse super::comm_like;",
        ] {
            assert_eq!(found("src/schedule/tree.rs", good), Vec::<String>::new(), "{good}");
        }
        assert_eq!(found("src/comm/mod.rs", "use crate::{plan, engine::host, Error};"), Vec::<String>::new());
    }

    #[test]
    fn catches_unsafe_code_long_files_and_new_modules() {
        let text = "// unsafe in a comment\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(
            found("src/plan/mod.rs", text),
            ["src/plan/mod.rs:3: unsafe code is not allowed here: unsafe { g() }"]
        );
        assert_eq!(found("src/engine/host/link.rs", text), Vec::<String>::new());
        let long = "fn f() {}\n".repeat(MAX_LINES + 1);
        assert!(found("tests/big.rs", &long)[0].starts_with("tests/big.rs:601: "));
        assert!(found("src/misc.rs", "")[0].contains("no floor for the module misc"));
    }
}
