//! PCI bus ids. Libraries write the same id in several ways; here there is one way.

/// The id in the form the Linux kernel uses, `0000:00:06.0`: lower case, domain of four digits or more.
///
/// NVML writes the domain with eight digits, CUDA in upper case, and some files leave out domain or function.
/// `None` when the text is no bus id.
pub(crate) fn normalize(text: &str) -> Option<String> {
    let text = text.trim();
    let (address, function) = match text.split_once('.') {
        Some((address, function)) => (address, hex(function, 2)?),
        None => (text, 0),
    };
    let parts: Vec<&str> = address.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (hex(domain, 8)?, hex(bus, 2)?, hex(device, 2)?),
        [bus, device] => (0, hex(bus, 2)?, hex(device, 2)?),
        _ => return None,
    };
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn hex(text: &str, longest: usize) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= longest && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// Whether the id is the "not known" that a virtual machine's NVLinks report: nothing but the digit F (or
/// nothing).
///
/// Such a link leads to an NVSwitch that the host keeps for itself.
pub(crate) fn is_unknown_remote(text: &str) -> bool {
    let mut digits = text.chars().filter(|c| !matches!(c, ':' | '.')).peekable();
    match digits.peek() {
        None => true,
        // The function is a single digit and is 0 in some drivers' all-F answers.
        Some(_) => {
            let digits: String = digits.collect();
            let body = digits.strip_suffix('0').unwrap_or(&digits);
            !body.is_empty() && body.chars().all(|c| c.eq_ignore_ascii_case(&'f'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_become_one() {
        for text in
            ["00000000:00:06.0", "0000:00:06.0", "00:06.0", "0:0:6.0", "0000:00:06", " 0000:00:06.0\n"]
        {
            assert_eq!(normalize(text).as_deref(), Some("0000:00:06.0"), "{text:?}");
        }
        assert_eq!(normalize("0000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(normalize("10000:e1:00.0").as_deref(), Some("10000:e1:00.0"));
        for text in
            ["", "fffffff:ffff:ff", "GPU-1", "0000:zz:00.0", "0000:+1:00.0", "a:b:c:d", "123456789:0:0.0"]
        {
            assert_eq!(normalize(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_f_is_unknown() {
        for text in ["", "fffffff:ffff:ff", "FFFFFFFF:FF:FF.F", "ffffffff:ff:ff.0", "ffff:ff:ff.f"] {
            assert!(is_unknown_remote(text), "{text:?}");
        }
        for text in ["0000:00:06.0", "ffff:ff:01.0", "0"] {
            assert!(!is_unknown_remote(text), "{text:?}");
        }
    }
}
