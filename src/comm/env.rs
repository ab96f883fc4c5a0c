//! The environment: NCCL's variables, read strictly, and this library's own.
//!
//! `docs/environment.md` has the table of all of them. A value that is not understood is an error that says what is: NCCL
//! itself reads `4M` as 4 and `abc` as 0, and nobody notices. A variable that begins with `NCCL_` and is not in the table gets a
//! warning, once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use super::config::{Config, DebugLevel, Subsystem};
use crate::error::{Error, Result};
use crate::schedule::{ALGORITHMS, Encoding};
use crate::topology::PathType;

/// Variables that are for networks, which there are none of in one host: accepted, without effect.
const NETWORK: [&str; 8] = [
    "NCCL_IB_",
    "NCCL_SOCKET_",
    "NCCL_NET",
    "NCCL_CROSS_NIC",
    "NCCL_COLLNET_",
    "NCCL_OOB_",
    "NCCL_GDR",
    "NCCL_GIN_",
];

/// Set by containers to say which NCCL they ship; NCCL itself does not read it.
const NOT_SETTINGS: [&str; 1] = ["NCCL_VERSION"];

/// Algorithms of NCCL that do not exist here; may be excluded, but not asked for.
const FOREIGN: [&str; 5] = ["collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"];

/// Every variable that has an effect, or is checked.
const KNOWN: [&str; 19] = [
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_LEVEL",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_ENABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
];

/// Variables by name; empty ones count as not set.
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Self::new(
            std::env::vars_os()
                .map(text)
                .filter(|(name, _)| name.starts_with("NCCL_") || name.starts_with("RINGLEADER_")),
        )
    }

    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Variables(variables.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim())
    }

    fn parse<T>(&self, name: &str, expected: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        read(text).map(Some).ok_or_else(|| Error::invalid_value(name, text, expected))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.parse(name, "0 or 1", |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })
    }

    fn number(&self, name: &str, range: std::ops::RangeInclusive<u32>) -> Result<Option<u32>> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        // `parse` would also take a plus sign.
        self.parse(name, &expected, |text| {
            text.bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| text.parse().ok())
                .flatten()
                .filter(|n| range.contains(n))
        })
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// What the variables ask for.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::new();
        self.algorithms(&mut config)?;
        config.protocols = self.protocols()?;
        if let [only] = config.protocols[..] {
            config.encoding = Some(only);
        }
        self.transports(&mut config)?;
        self.blocks(&mut config)?;
        config.tile_bytes = self.buffer()?;
        self.parse("NCCL_NTHREADS", "64, 128, 256 or 512", |text| {
            ["64", "128", "256", "512"].contains(&text).then_some(())
        })?;
        config.graph_dump_file = self.file("NCCL_GRAPH_DUMP_FILE");
        config.topo_file = self.file("NCCL_TOPO_FILE");
        config.topo_dump_file = self.file("NCCL_TOPO_DUMP_FILE");
        config.debug = self.parse("NCCL_DEBUG", "NONE, VERSION, WARN, INFO or TRACE", DebugLevel::read)?;
        config.debug_subsystems = self.subsystems()?;
        config.debug_file = self.file("NCCL_DEBUG_FILE");
        if let Some(text) = self.get("RINGLEADER_CHANNELS") {
            let channels = text.parse().unwrap_or(0);
            super::config::check_channels("RINGLEADER_CHANNELS", channels, text)?;
            config.channels = Some(channels);
        }
        config.copies_from = self.parse(
            "RINGLEADER_COPIES_FROM",
            "bytes, such as 67108864 or 64M; 0 for all messages",
            bytes,
        )?;
        // 0 is refused: some would mean no limit by it, others no patience.
        let expected = "a number of seconds above 0, such as 30 or 0.5; left out, ranks wait for ever";
        config.timeout = self.parse("RINGLEADER_TIMEOUT", expected, |text| {
            let limit = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok())?;
            (!limit.is_zero()).then_some(limit)
        })?;
        Ok(config)
    }

    /// Reads `a,b` or `^a,b`; the names as `known` spells them.
    fn list<'a>(&self, name: &str, known: &[&'a str], foreign: &[&str]) -> Result<Vec<&'a str>> {
        let Some(text) = self.get(name) else { return Ok(Vec::new()) };
        let (excluded, names) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let mut chosen = Vec::new();
        for word in names.split(',') {
            let word = word.trim().to_ascii_lowercase();
            match known.iter().find(|known| known.eq_ignore_ascii_case(&word)) {
                Some(&known) => chosen.push(known),
                None if excluded && foreign.contains(&word.as_str()) => {}
                None => {
                    let expected =
                        format!("a list of {}, or ^ and a list of what to leave out", known.join(", "));
                    return Err(Error::invalid_value(name, text, expected));
                }
            }
        }
        if excluded {
            chosen = known.iter().copied().filter(|known| !chosen.contains(known)).collect();
        }
        if chosen.is_empty() {
            return Err(Error::invalid_value(name, text, "a list that leaves something to choose from"));
        }
        Ok(chosen)
    }

    fn algorithms(&self, config: &mut Config) -> Result<()> {
        let known: Vec<&str> = ALGORITHMS.iter().map(|a| a.name()).chain(["forest"]).collect();
        let chosen = self.list("NCCL_ALGO", &known, &FOREIGN)?;
        // One name that a builder has is the choice of all communicators; lists are for the planner.
        if let [only] = chosen[..]
            && ALGORITHMS.iter().any(|a| a.name() == only)
        {
            config.algorithm = Some(only.to_owned());
        }
        config.algorithms = chosen.into_iter().map(str::to_owned).collect();
        Ok(())
    }

    fn protocols(&self) -> Result<Vec<Encoding>> {
        let chosen = self.list("NCCL_PROTO", &["Simple", "LL", "LL128"], &[])?;
        let encoding = |name: &str| match name {
            "LL" => Encoding::Packet16,
            "LL128" => Encoding::Packet128,
            _ => Encoding::Bulk,
        };
        Ok(chosen.into_iter().map(encoding).collect())
    }

    fn transports(&self, config: &mut Config) -> Result<()> {
        let expected = "LOC, NVL, PIX, PXB, PHB, SYS, or 0 to 5";
        config.p2p_level = self.parse("NCCL_P2P_LEVEL", expected, |text| match text {
            "0" => Some(PathType::Loc),
            "1" => Some(PathType::Pix),
            "2" => Some(PathType::Pxb),
            "3" => Some(PathType::Phb),
            "4" | "5" => Some(PathType::Sys),
            name => ["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]
                .iter()
                .find(|known| known.eq_ignore_ascii_case(name))
                .and_then(|known| PathType::from_str(known).ok()),
        })?;
        let disabled = self.flag("NCCL_P2P_DISABLE")?;
        let enabled = self.flag("NCCL_P2P_ENABLE")?;
        if let (Some(disabled), Some(enabled)) = (disabled, enabled)
            && disabled == enabled
        {
            let expected = format!("{} as NCCL_P2P_DISABLE is {}", u8::from(!disabled), u8::from(disabled));
            return Err(Error::invalid_value("NCCL_P2P_ENABLE", u8::from(enabled).to_string(), expected));
        }
        config.p2p_disabled =
            disabled == Some(true) || enabled == Some(false) || config.p2p_level == Some(PathType::Loc);
        config.shm_disabled = self.flag("NCCL_SHM_DISABLE")? == Some(true);
        // No network is used in one host, so there is nothing to switch off.
        self.flag("NCCL_IB_DISABLE")?;
        Ok(())
    }

    /// A channel of NCCL is one thread block, so both spellings mean the same here, too.
    fn blocks(&self, config: &mut Config) -> Result<()> {
        for (names, slot) in [
            (["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"], &mut config.min_blocks),
            (["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"], &mut config.max_blocks),
        ] {
            let values = [self.number(names[0], 1..=64)?, self.number(names[1], 1..=64)?];
            *slot = values[0].or(values[1]);
        }
        match (config.min_blocks, config.max_blocks) {
            (Some(min), Some(max)) if min > max => {
                let name =
                    if self.get("NCCL_MIN_CTAS").is_some() { "NCCL_MIN_CTAS" } else { "NCCL_MIN_NCHANNELS" };
                Err(Error::invalid_value(
                    name,
                    min.to_string(),
                    format!("at most the maximum, which is {max}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// The bytes of a connection's buffer, divided into its slots.
    fn buffer(&self) -> Result<Option<usize>> {
        let expected = "bytes from 512 to 67108864, such as 4194304 or 4M";
        let bytes = self.parse("NCCL_BUFFSIZE", expected, |text| {
            bytes(text).filter(|bytes| (512..=64 << 20).contains(bytes))
        })?;
        Ok(bytes.map(|bytes| bytes / crate::plan::Limits::default().depth as usize / 128 * 128))
    }

    fn subsystems(&self) -> Result<Vec<Subsystem>> {
        let names: Vec<&str> = Subsystem::ALL.iter().map(|s| s.name()).collect();
        let Some(text) = self.get("NCCL_DEBUG_SUBSYS") else { return Ok(Vec::new()) };
        if text.eq_ignore_ascii_case("ALL") {
            return Ok(Subsystem::ALL.to_vec());
        }
        let chosen = self.list("NCCL_DEBUG_SUBSYS", &names, &[])?;
        Ok(Subsystem::ALL.iter().copied().filter(|s| chosen.contains(&s.name())).collect())
    }

    /// Variables of NCCL that mean nothing here.
    pub(super) fn unknown(&self) -> Vec<String> {
        let known = |name: &str| {
            KNOWN.contains(&name)
                || NOT_SETTINGS.contains(&name)
                || NETWORK.iter().any(|prefix| name.starts_with(prefix))
        };
        self.0.keys().filter(|name| name.starts_with("NCCL_") && !known(name)).cloned().collect()
    }

    /// Says on stderr which variables mean nothing, each once in this process.
    pub(super) fn warn(&self) {
        static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for name in self.unknown() {
            if said.insert(name.clone()) {
                eprintln!("ringleader: {name} is set, but this library does not know it; it has no effect");
            }
        }
    }
}

/// Bytes as a number, with `K` or `M` for 1024 and 1024².
fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.strip_suffix(['k', 'K', 'm', 'M']) {
        Some(digits) => (digits, if text.ends_with(['k', 'K']) { 10 } else { 20 }),
        None => (text, 0),
    };
    let plain = !digits.is_empty() && digits.len() < 10 && digits.bytes().all(|b| b.is_ascii_digit());
    Some(plain.then(|| digits.parse::<usize>().ok()).flatten()? << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        Variables::new(pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())))
    }

    fn read(pairs: &[(&str, &str)]) -> Config {
        variables(pairs).config().unwrap()
    }

    #[test]
    fn every_variable_sets_what_it_says() {
        let config = read(&[
            ("NCCL_ALGO", "Tree, ring"),
            ("NCCL_PROTO", "^LL128"),
            ("NCCL_P2P_LEVEL", "pxb"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_MIN_CTAS", "4"),
            ("NCCL_MAX_NCHANNELS", "32"),
            ("NCCL_BUFFSIZE", "1M"),
            ("NCCL_NTHREADS", "256"),
            ("NCCL_GRAPH_DUMP_FILE", "/tmp/graph.json"),
            ("NCCL_TOPO_FILE", "/tmp/in.xml"),
            ("NCCL_TOPO_DUMP_FILE", "/tmp/out.xml"),
            ("NCCL_DEBUG", "info"),
            ("NCCL_DEBUG_SUBSYS", "INIT,graph"),
            ("NCCL_DEBUG_FILE", "/tmp/log.%h.%p"),
            ("NCCL_IB_DISABLE", "1"),
            ("RINGLEADER_TIMEOUT", "0.5"),
        ]);
        assert_eq!(config.timeout, Some(Duration::from_millis(500)));
        let limits = config.limits();
        assert_eq!(limits.algorithms, ["tree", "ring"]);
        assert_eq!(limits.encodings, [Encoding::Bulk, Encoding::Packet16]);
        assert_eq!((limits.min_blocks, limits.max_blocks), (Some(4), 32));
        assert_eq!(limits.tile_bytes, Some(256 << 10));
        assert_eq!(read(&[("RINGLEADER_COPIES_FROM", "64M")]), Config::new().copies_from(64 << 20));
        assert_eq!(config.p2p_level, Some(PathType::Pxb));
        assert!(config.shm_disabled && !config.p2p_disabled);
        assert_eq!(config.debug, Some(DebugLevel::Info));
        assert_eq!(config.debug_subsystems, [Subsystem::Init, Subsystem::Graph]);
        assert_eq!(config.topo_dump_file.as_deref(), Some(std::path::Path::new("/tmp/out.xml")));
        assert_eq!(read(&[("NCCL_ALGO", "")]), Config::new());
    }

    #[test]
    fn peers_can_be_kept_apart_in_three_ways() {
        for pair in [("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_ENABLE", "0"), ("NCCL_P2P_LEVEL", "LOC")] {
            assert!(read(&[pair]).p2p_disabled, "{pair:?}");
        }
        for pair in [("NCCL_P2P_DISABLE", "0"), ("NCCL_P2P_ENABLE", "1"), ("NCCL_P2P_LEVEL", "5")] {
            assert!(!read(&[pair]).p2p_disabled, "{pair:?}");
        }
        assert!(read(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_ENABLE", "0")]).p2p_disabled);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let bad: &[(&str, &str)] = &[
            ("NCCL_ALGO", "tree!"),
            ("NCCL_ALGO", "NVLS"),
            ("NCCL_ALGO", "^ring,tree,direct,one_shot,forest"),
            ("NCCL_PROTO", "LL64"),
            ("NCCL_P2P_LEVEL", "6"),
            ("NCCL_P2P_LEVEL", "NODE5"),
            ("NCCL_P2P_DISABLE", "yes"),
            ("NCCL_P2P_ENABLE", "2"),
            ("NCCL_SHM_DISABLE", "-1"),
            ("NCCL_IB_DISABLE", "x"),
            ("NCCL_MIN_CTAS", "0"),
            ("NCCL_MAX_CTAS", "65"),
            ("NCCL_MIN_NCHANNELS", "4M"),
            ("NCCL_MAX_NCHANNELS", "+4"),
            ("NCCL_BUFFSIZE", "4G"),
            ("NCCL_BUFFSIZE", "big"),
            ("NCCL_BUFFSIZE", "1"),
            ("NCCL_NTHREADS", "100"),
            ("NCCL_DEBUG", "LOUD"),
            ("NCCL_DEBUG_SUBSYS", "INIT,FOO"),
            ("RINGLEADER_CHANNELS", "0"),
            ("RINGLEADER_TIMEOUT", "-1"),
            ("RINGLEADER_TIMEOUT", "0"),
            ("RINGLEADER_TIMEOUT", "inf"),
            ("RINGLEADER_TIMEOUT", "10s"),
        ];
        for &(name, value) in bad {
            let message = variables(&[(name, value)]).config().unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{name}={value}: {message}");
        }
        let message = |pairs| variables(pairs).config().unwrap_err().to_string();
        assert!(
            message(&[("NCCL_MIN_CTAS", "9"), ("NCCL_MAX_CTAS", "8")])
                .contains("at most the maximum, which is 8")
        );
        assert!(message(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_ENABLE", "1")]).contains("NCCL_P2P_ENABLE"));
        assert_eq!(
            read(&[("NCCL_ALGO", "^NVLS,PAT,ring,tree,one_shot,forest")]).limits().algorithms,
            ["direct"]
        );
    }

    #[test]
    fn unknown_variables_are_found_and_network_ones_pass() {
        let set =
            variables(&[("NCCL_FOO", "1"), ("NCCL_IB_HCA", "mlx5"), ("NCCL_DEBUG", "WARN"), ("OTHER", "1")]);
        assert_eq!(set.unknown(), ["NCCL_FOO"]);
    }
}
