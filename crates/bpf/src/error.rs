//! Why a BPF object cannot be used.

use libbpf_rs::ErrorKind;

/// Why a BPF object, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object has no part of this name.
    #[error("the BPF object lacks the {kind} `{name}` that this binary expects; rebuild taut")]
    Missing {
        /// `map`, `program` or `section`.
        kind: &'static str,
        /// The part's name.
        name: &'static str,
    },
    /// A map's keys or values have another size than the Rust type.
    #[error(
        "the BPF map `{map}` has {part} of {found} bytes and this binary expects {expected}; rebuild taut, or \
         unload the programs that an older version of taut has pinned"
    )]
    Layout {
        /// The map's name.
        map: &'static str,
        /// `keys` or `values`.
        part: &'static str,
        /// Bytes in the kernel.
        found: u32,
        /// Bytes of the Rust type.
        expected: usize,
    },
    /// The kernel does not export its types.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF), which these BPF programs need; mount /sys if it is \
         not mounted, or use a kernel that has BTF, such as those of Debian 11, Ubuntu 20.10, RHEL 8.2 and newer"
    )]
    NoBtf,
    /// The kernel or libbpf refused a call.
    #[error("cannot {action}: {source}")]
    Kernel {
        /// What was tried, such as "read the map `flows`".
        action: String,
        /// The reason.
        source: libbpf_rs::Error,
    },
}

// === impl Error ===

impl Error {
    /// The kind of the kernel's error; `NotFound` for what the object or the kernel lacks.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::NoBtf => ErrorKind::NotFound,
            Self::Layout { .. } => ErrorKind::InvalidData,
            Self::Kernel { source, .. } => source.kind(),
        }
    }

    /// Says during what an error of libbpf's occurred.
    pub fn during(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Kernel {
            action: action.into(),
            source,
        }
    }
}
