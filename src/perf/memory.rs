//! Whether the buffers of a measurement fit in memory: asked before they are allocated, since a system that promises
//! more than it has ends the process when the memory is used.

use crate::error::{Error, Result};

/// What the machine can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    free: u64,
    total: u64,
}

/// Checks that so many bytes can be had.
///
/// # Errors
/// [`Error::Unavailable`] with both numbers; `what` says for what the memory is.
pub(super) fn check(bytes: u64, what: impl Fn() -> String) -> Result<()> {
    room().map_or(Ok(()), |room| check_within(bytes, what, room))
}

fn check_within(bytes: u64, what: impl Fn() -> String, room: Room) -> Result<()> {
    if bytes <= room.free {
        return Ok(());
    }
    let reason = format!(
        "{} of this machine's {} are free; measure smaller messages, or fewer ranks",
        human(room.free),
        human(room.total)
    );
    Err(Error::Unavailable { what: format!("{} of memory for {}", human(bytes), what()), reason })
}

/// An empty vector with room for so many elements.
///
/// # Errors
/// [`Error::Unavailable`] if the system refuses.
pub(super) fn reserve<T>(len: usize, what: impl Fn() -> String) -> Result<Vec<T>> {
    let mut made = Vec::new();
    made.try_reserve_exact(len).map_err(|why| Error::Unavailable {
        what: format!("{} of memory for {}", human((len * size_of::<T>()) as u64), what()),
        reason: format!("{why}; measure smaller messages, or fewer ranks"),
    })?;
    Ok(made)
}

/// Physical memory, or less where this process may use only a part of it.
#[cfg(target_os = "linux")]
fn room() -> Option<Room> {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    // Memory that caches hold is free, too; only this file says how much of it there is.
    let facts = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = facts.lines().find_map(|line| {
        let kilobytes = line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?;
        Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
    });
    let free = available.unwrap_or((info.freeram + info.bufferram) * unit);
    let whole = Room { free, total: info.totalram * unit };
    let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    // A container's share; the file says `max` where there is no limit.
    let share = number("/sys/fs/cgroup/memory.max").map(|most| {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        Room { free: most.saturating_sub(used).min(whole.free), total: most.min(whole.total) }
    });
    Some(share.unwrap_or(whole))
}

#[cfg(not(target_os = "linux"))]
fn room() -> Option<Room> {
    None
}

/// `1.5 GiB`.
pub(super) fn human(bytes: u64) -> String {
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    match ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"].get(unit as usize) {
        Some(&"bytes") => format!("{bytes} bytes"),
        Some(name) => format!("{:.1} {name}", bytes as f64 / (1u64 << (10 * unit)) as f64),
        None => format!("{:.1} EiB", bytes as f64 / (1u64 << 60) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let room = Room { free: 3 << 29, total: 2 << 30 };
        let what = || "the buffers of 2 ranks".to_owned();
        assert_eq!(check_within(3 << 29, what, room), Ok(()));
        insta::assert_snapshot!(check_within(4 << 40, what, room).unwrap_err(), @"4.0 TiB of memory for the buffers of 2 ranks is not available: 1.5 GiB of this machine's 2.0 GiB are free; measure smaller messages, or fewer ranks");
        assert!(reserve::<u64>(isize::MAX as usize / 8, what).is_err());
        assert!(reserve::<u64>(1000, what).unwrap().capacity() >= 1000);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        let room = room().unwrap();
        assert!(0 < room.free && room.free <= room.total, "{room:?}");
        assert_eq!(check(1, || unreachable!("it fits")), Ok(()));
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<_> = [0, 1023, 1024, 1536 << 20, 8 << 40, u64::MAX].map(human).into();
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 GiB", "8.0 TiB", "16.0 EiB"]);
    }
}
