//! Compiles `kernels/unit_*.cu` with nvcc, where it is found, to one fatbin each, and writes `$OUT_DIR/kernels.rs`
//! with the table of them. Without nvcc the table is empty: the crate builds, and a CUDA communicator is refused at
//! run time with an error that says what to install.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process, thread};

/// Machine code is embedded for these compute capabilities unless `RINGLEADER_CUDA_ARCH` names others. Machine code
/// runs on every GPU of the same major version (8.6 and 8.9 run 8.0's).
const DEFAULT_ARCHITECTURES: [&str; 4] = ["80", "90", "100", "120"];

/// Options common to the build and to `scripts/check-sass.sh`.
const FLAGS_FILE: &str = "kernels/nvcc.flags";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    for name in ["CUDA_HOME", "CUDA_PATH", "RINGLEADER_CUDA_ARCH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let mut modules = Vec::new();
    // docs.rs and `--no-default-features` need no kernels.
    if env::var_os("CARGO_FEATURE_CUDA").is_some() && env::var_os("DOCS_RS").is_none() {
        match find_nvcc(&root) {
            Some(nvcc) => modules = compile(&nvcc, &root, &out),
            None => {
                // Only here: watching PATH at all times would recompile the kernels for every shell and editor.
                println!("cargo:rerun-if-env-changed=PATH");
                println!(
                    "cargo:warning=nvcc not found (CUDA_HOME, CUDA_PATH, PATH, .nvcc): building without CUDA kernels; \
                     scripts/install-nvcc.sh fetches it without root"
                );
            }
        }
    }
    write_table(&out.join("kernels.rs"), &modules);
}

/// nvcc in `CUDA_HOME`, `CUDA_PATH`, `PATH`, or where `scripts/install-nvcc.sh` puts it.
fn find_nvcc(root: &Path) -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
    let homes = homes.filter(|home| !home.is_empty()).map(|home| PathBuf::from(home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    homes
        .chain(env::split_paths(&path))
        .chain([root.join(".nvcc/nvidia/cu13/bin")])
        .map(|folder| folder.join(format!("nvcc{}", env::consts::EXE_SUFFIX)))
        .find(|nvcc| nvcc.is_file())
}

/// Compiles every unit and returns (name, fatbin).
fn compile(nvcc: &Path, root: &Path, out: &Path) -> Vec<(String, PathBuf)> {
    let units = units(&root.join("kernels"));
    if units.is_empty() {
        return Vec::new();
    }
    let code = code_options(nvcc);
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1usize);
    let next = AtomicUsize::new(0);
    let errors = Mutex::new(Vec::new());
    let fatbin = |name: &str| out.join(format!("{name}.fatbin"));
    thread::scope(|scope| {
        for _ in 0..jobs.min(units.len()) {
            scope.spawn(|| {
                while let Some((name, source)) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut command = Command::new(nvcc);
                    command.arg("-fatbin").arg("--options-file").arg(root.join(FLAGS_FILE)).args(&code);
                    command.arg("-o").arg(fatbin(name)).arg(source);
                    if let Err(why) = run(&mut command) {
                        errors.lock().expect("no thread panics holding it").push(why);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().expect("no thread panics holding it");
    if !errors.is_empty() {
        eprintln!(
            "{} of {} kernel units failed to compile\n{}",
            errors.len(),
            units.len(),
            errors.join("\n")
        );
        process::exit(1);
    }
    units.iter().map(|(name, _)| (name.clone(), fatbin(name))).collect()
}

/// `kernels/unit_NAME.cu` as (NAME, path), in the order of the names.
fn units(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_prefix("unit_")?.strip_suffix(".cu")?.to_owned();
            Some((name, path))
        })
        .collect();
    found.sort();
    found
}

/// The `-gencode` options: machine code for each architecture, and PTX of the lowest.
///
/// PTX is only read by GPUs that no machine code fits. The lowest serves them all: PTX for 12.0 could not be compiled
/// for an 11.0 chip, nor PTX of a narrowed list for anything older than its newest member.
fn code_options(nvcc: &Path) -> Vec<String> {
    let requested = env::var("RINGLEADER_CUDA_ARCH").unwrap_or_default();
    let known = run(Command::new(nvcc).arg("--list-gpu-code")).unwrap_or_else(|why| panic!("{why}"));
    let knows = |arch: &str| known.lines().any(|line| line.trim().strip_prefix("sm_") == Some(arch));
    let mut architectures: Vec<&str> = requested
        .split([',', ' '])
        .map(|a| a.trim().trim_start_matches("sm_"))
        .filter(|a| !a.is_empty())
        .collect();
    if architectures.is_empty() {
        // A toolkit that is older than a chip builds for the others.
        architectures = DEFAULT_ARCHITECTURES.into_iter().filter(|arch| knows(arch)).collect();
    }
    architectures.sort_by_key(|arch| number(arch));
    let Some(lowest) = architectures.first() else {
        panic!("{} knows none of the compute capabilities {DEFAULT_ARCHITECTURES:?}", nvcc.display());
    };
    let mut options = vec![format!("-gencode=arch=compute_{lowest},code=compute_{lowest}")];
    options.extend(architectures.iter().map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}")));
    options
}

/// 90 of `90a`.
fn number(arch: &str) -> u32 {
    let digits: String = arch.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| {
        panic!("RINGLEADER_CUDA_ARCH has {arch:?}, expected compute capabilities such as 90 or 80,90,100,120")
    })
}

/// Runs a command and returns its standard output; the error holds the command line and everything it said.
fn run(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(done) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Ok(done) => {
            let said = [done.stdout, done.stderr].concat();
            Err(format!("{command:?}: {}\n{}", done.status, String::from_utf8_lossy(&said)))
        }
        Err(why) => Err(format!("{command:?}: {why}")),
    }
}

/// Writes the table of fatbins, and sets `cfg(ringleader_kernels)` where it has entries.
fn write_table(file: &Path, modules: &[(String, PathBuf)]) {
    let mut text = String::from(
        "/// Aligned, because the driver reads a fatbin's header as a struct.\n\
         #[allow(dead_code)]\n\
         #[repr(C, align(64))]\n\
         struct Aligned<T: ?Sized>(T);\n\n\
         /// (unit, fatbin) of every `kernels/unit_*.cu`, in the order of the names.\n\
         pub(crate) static MODULES: &[(&str, &[u8])] = &[\n",
    );
    for (name, fatbin) in modules {
        let fatbin = fatbin.display().to_string();
        writeln!(
            text,
            "    ({name:?}, {{ static F: &Aligned<[u8]> = &Aligned(*include_bytes!({fatbin:?})); &F.0 }}),"
        )
        .expect("writing to a String");
    }
    text.push_str("];\n");
    fs::write(file, text).unwrap_or_else(|why| panic!("cannot write {}: {why}", file.display()));
    if !modules.is_empty() {
        println!("cargo:rustc-cfg=ringleader_kernels");
    }
}
