//! The names of interfaces that have settings.

/// The longest name of an interface, in bytes (`IFNAMSIZ` less the terminating zero).
const MAX_LENGTH: usize = 15;

/// The name of an interface, which is also the name of its directories below /proc/sys. Any bytes,
/// not only text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName {
    bytes: [u8; MAX_LENGTH],
    length: usize,
}

// === impl InterfaceName ===

impl InterfaceName {
    /// Returns `None` if the name is not a directory of an interface's settings. (An interface may
    /// be called `all` or `default`, but the directories with these names do not belong to it.)
    pub fn new(name: &[u8]) -> Option<Self> {
        let is_path = name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
        let is_none = name.is_empty() || name == b"all" || name == b"default";
        if is_path || is_none || name.len() > MAX_LENGTH {
            return None;
        }
        let mut bytes = [0; MAX_LENGTH];
        bytes
            .iter_mut()
            .zip(name)
            .for_each(|(to, from)| *to = *from);
        Some(Self {
            bytes,
            length: name.len(),
        })
    }

    /// Returns the name as the kernel has it.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_no_interface_are_rejected() {
        for name in [
            "",
            ".",
            "..",
            "all",
            "default",
            "a/b",
            "/",
            "a\0",
            "sixteen-bytes-it",
        ] {
            assert_eq!(InterfaceName::new(name.as_bytes()), None, "{name}");
        }
        for name in ["lo", "...", "All", "defaults", "fifteen-bytes-i", "a b"] {
            let of = InterfaceName::new(name.as_bytes()).unwrap();
            assert_eq!(of.as_bytes(), name.as_bytes());
        }
    }
}
