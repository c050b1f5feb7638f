//! Names of interfaces that have settings.

/// The longest name of an interface (`IFNAMSIZ` with its zero).
const LONGEST: usize = 15;

/// The name of an interface, which has a directory of this name below /proc/sys: bytes of its owner's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName {
    bytes: [u8; LONGEST],
    length: usize,
}

// === impl InterfaceName ===

impl InterfaceName {
    /// `None`: no interface's settings are in a directory of this name. (`all` and `default` are none's, though an interface may be called so.)
    pub fn new(name: &[u8]) -> Option<Self> {
        let is_path = name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
        let is_none = name.is_empty() || name == b"all" || name == b"default";
        if is_path || is_none || name.len() > LONGEST {
            return None;
        }
        let mut bytes = [0; LONGEST];
        bytes
            .iter_mut()
            .zip(name)
            .for_each(|(to, from)| *to = *from);
        Some(Self {
            bytes,
            length: name.len(),
        })
    }

    /// As the kernel has it.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_interfaces_directory_is_no_name_of_one() {
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
