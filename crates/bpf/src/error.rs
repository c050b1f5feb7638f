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
    /// The kind of the kernel's error; `NotFound` for a part that the object lacks.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::NotFound,
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
