//! What a communicator says about itself, as `NCCL_DEBUG` and its relatives ask.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::config::{Config, DebugLevel, Subsystem};
use crate::error::{Error, Result};

/// What is said something about unless it is asked otherwise; the same as in NCCL.
const BY_DEFAULT: [Subsystem; 3] = [Subsystem::Init, Subsystem::Bootstrap, Subsystem::Env];

/// Where lines go, and which.
#[derive(Clone, Debug)]
pub(super) struct Log {
    level: DebugLevel,
    subsystems: Vec<Subsystem>,
    /// stderr without.
    file: Option<Arc<Mutex<File>>>,
}

impl Log {
    /// As the settings say. The file is created.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be.
    pub(super) fn new(config: &Config) -> Result<Log> {
        let level = config.debug_level();
        let subsystems = match config.debug_subsystems.is_empty() {
            true => BY_DEFAULT.to_vec(),
            false => config.debug_subsystems.clone(),
        };
        // As with NCCL, the file is only for those who asked to be told something.
        let file = config.debug_file.as_deref().filter(|_| level > DebugLevel::None);
        Ok(Log { level, subsystems, file: file.map(open).transpose()? })
    }

    /// Whether lines about this are wanted.
    pub(super) fn wants(&self, about: Subsystem) -> bool {
        self.level >= DebugLevel::Info && self.subsystems.contains(&about)
    }

    /// Says lines about something, made only if they are wanted.
    pub(super) fn info<L: IntoIterator<Item = String>>(&self, about: Subsystem, lines: impl FnOnce() -> L) {
        if self.wants(about) {
            self.write("INFO", lines());
        }
    }

    /// Says which version this is.
    pub(super) fn version(&self) {
        if self.level >= DebugLevel::Version {
            self.write("INFO", [format!("ringleader version {}", env!("CARGO_PKG_VERSION"))]);
        }
    }

    /// Says that something is odd.
    pub(super) fn warn(&self, lines: impl IntoIterator<Item = String>) {
        if self.level >= DebugLevel::Warn {
            self.write("WARN", lines);
        }
    }

    fn write(&self, level: &str, lines: impl IntoIterator<Item = String>) {
        let text: String = lines.into_iter().map(|line| format!("ringleader {level} {line}\n")).collect();
        // Not worth failing a collective for.
        let _ = match &self.file {
            Some(file) => file.lock().write_all(text.as_bytes()),
            None => std::io::stderr().lock().write_all(text.as_bytes()),
        };
    }
}

/// Opens a log, to add to it, with `%h` in its name for the host and `%p` for the process.
fn open(path: &Path) -> Result<Arc<Mutex<File>>> {
    let host = rustix::system::uname();
    let named = path
        .to_string_lossy()
        .replace("%h", &host.nodename().to_string_lossy())
        .replace("%p", &std::process::id().to_string());
    let file = File::options().create(true).append(true).open(&named);
    file.map(|file| Arc::new(Mutex::new(file)))
        .map_err(|why| Error::System { action: format!("open {named}"), reason: why.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_the_file_if_they_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let config = |level, about: &[Subsystem]| {
            let path = folder.path().join("log.%p");
            Config::new().debug(level).debug_subsystems(about).debug_file(path)
        };
        let log = Log::new(&config(DebugLevel::Info, &[Subsystem::Graph])).unwrap();
        log.info(Subsystem::Graph, || ["a tree".to_owned()]);
        log.info(Subsystem::Init, || -> [String; 1] { unreachable!("not wanted") });
        log.warn(["odd".to_owned()]);
        let quiet = Log::new(&config(DebugLevel::Version, &[])).unwrap();
        quiet.version();
        quiet.warn(["not said".to_owned()]);
        let text =
            std::fs::read_to_string(folder.path().join(format!("log.{}", std::process::id()))).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                "ringleader INFO a tree\nringleader WARN odd\nringleader INFO ringleader version {version}\n"
            )
        );
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error() {
        let config = Config::new().debug(DebugLevel::Warn).debug_file("/nonexistent/log");
        assert!(matches!(Log::new(&config), Err(Error::System { .. })));
        assert!(Log::new(&Config::new().debug(DebugLevel::None).debug_file("/nonexistent/log")).is_ok());
    }
}
