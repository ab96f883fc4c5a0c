//! Reading a topology from a file of whatever kind.

use std::path::Path;

use crate::error::{Error, Result};
use crate::topology::facts::Facts;
use crate::topology::model::Topology;
use crate::topology::rates::LinkRates;
use crate::topology::smi::{self, SmiOptions};

/// Topology files are a few kilobytes; what is larger is something else.
const MAX_BYTES: u64 = 16 << 20;

impl Topology {
    /// Reads a file: NCCL topology XML, the text of `nvidia-smi topo -m`, or facts recorded by
    /// [`Facts::record`]. Which of them it is shows from its content.
    pub fn load(path: impl AsRef<Path>) -> Result<Topology> {
        Self::load_with(path, &SmiOptions::default())
    }

    /// As [`load`](Self::load), with the compute capability and the link rates to take where the file has
    /// none. Rates that are given replace those of XML and facts, too.
    pub fn load_with(path: impl AsRef<Path>, options: &SmiOptions) -> Result<Topology> {
        let path = path.as_ref();
        let text = read_text(path)?;
        Self::from_text(&text, &path.display().to_string(), options)
    }

    /// As [`load_with`](Self::load_with), from text. `file` names it in errors.
    pub fn from_text(text: &str, file: &str, options: &SmiOptions) -> Result<Topology> {
        let fail = |reason: &str| Err(Error::Parse { file: file.into(), line: None, reason: reason.into() });
        let rated = |t: Topology, rates: &LinkRates| if rates.is_empty() { t } else { t.with_rates(rates) };
        let start = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
        if start.starts_with('<') {
            Ok(rated(Self::from_xml(text, file)?, &options.rates))
        } else if start.starts_with('{') {
            let facts = Facts::from_json(text, file)?;
            Ok(rated(Self::from_facts_named(&facts, file)?, &options.rates))
        } else if smi::looks_like_matrix(text) {
            Self::from_smi(text, file, options)
        } else if start.is_empty() {
            fail("the file is empty")
        } else {
            fail(
                "this is no topology: expected NCCL topology XML, the text of `nvidia-smi topo -m`, or facts recorded by \
                 `ringleader topo --record`",
            )
        }
    }
}

/// The file's text; bytes that are no UTF-8 are replaced, so that the parser can tell the line.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let fail = |reason: String| Error::System { action: format!("read {}", path.display()), reason };
    let meta = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
    if meta.is_dir() {
        return Err(fail("it is a directory".into()));
    }
    if meta.len() > MAX_BYTES {
        return Err(fail(format!("{} bytes are too many for a topology (at most {MAX_BYTES})", meta.len())));
    }
    let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
