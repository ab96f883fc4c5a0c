//! `src/engine/cuda/abi.rs` is what bindgen makes of `kernels/abi.h`.
//!
//! `RINGLEADER_UPDATE_ABI=1 cargo test --test abi` writes the file; without the variable the test compares. It needs
//! libclang (`LIBCLANG_PATH`, or where the system keeps it) and rustfmt. Where one is missing it says so and passes,
//! unless `RINGLEADER_REQUIRE_LIBCLANG=1`.

use std::path::Path;
use std::process::Command;
use std::{env, fs, panic};

const HEADER: &str = "kernels/abi.h";
const GENERATED: &str = "src/engine/cuda/abi.rs";

/// What bindgen makes of the header, or why it cannot.
fn generate(header: &Path) -> Result<String, String> {
    if !Command::new("rustfmt").arg("--version").output().is_ok_and(|done| done.status.success()) {
        return Err("rustfmt does not run".into());
    }
    let builder = bindgen::builder()
        .header(header.display().to_string())
        // The same text whatever compiler and bindgen run the test.
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("bindgen knows Rust 1.85"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .disable_header_comment()
        .raw_line(format!("//! Made from `{HEADER}`; change that, then run"))
        .raw_line("//! `RINGLEADER_UPDATE_ABI=1 cargo test --test abi`. The module's declaration says which lints it is spared.")
        .use_core()
        .layout_tests(false)
        .allowlist_file(".*abi\\.h")
        .derive_default(true)
        .derive_eq(true);
    // bindgen panics where it finds no libclang.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    match outcome {
        Ok(Ok(bindings)) => Ok(bindings.to_string().trim_start().to_owned()),
        Ok(Err(why)) => panic!("bindgen: {why}"),
        Err(_) => {
            Err("libclang not found (Debian: apt-get install libclang1; or pip install libclang and set \
                       LIBCLANG_PATH to its clang/native folder)"
                .into())
        }
    }
}

#[test]
fn generated_bindings_match_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    let text = match generate(&root.join(HEADER)) {
        Ok(text) => text,
        Err(why) if set("RINGLEADER_REQUIRE_LIBCLANG") || set("RINGLEADER_UPDATE_ABI") => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    let file = root.join(GENERATED);
    if set("RINGLEADER_UPDATE_ABI") {
        fs::write(&file, &text).unwrap_or_else(|why| panic!("cannot write {GENERATED}: {why}"));
    }
    let committed = fs::read_to_string(&file).unwrap_or_else(|why| panic!("cannot read {GENERATED}: {why}"));
    if let Some((line, (new, old))) =
        (1..).zip(text.lines().zip(committed.lines())).find(|(_, (a, b))| a != b)
    {
        panic!(
            "{GENERATED}:{line} is {old:?}, but {HEADER} gives {new:?}; RINGLEADER_UPDATE_ABI=1 rewrites the file"
        );
    }
    assert_eq!(
        text.lines().count(),
        committed.lines().count(),
        "{GENERATED} is shorter or longer than what {HEADER} gives; RINGLEADER_UPDATE_ABI=1 rewrites the file"
    );
}
