//! The verdict on a destination.

use std::fmt;

use strum::{IntoStaticStr, VariantArray};

/// Whether a session may connect to a destination, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum DestinationVerdict {
    /// The relay may connect to the address, or may look up the name and check each of its
    /// addresses.
    Allowed,
    /// The host is neither an address nor a valid DNS name.
    NotAName,
    /// No rule allows the destination.
    NotListed,
    /// Only a name or `*` allows the destination, which covers public addresses, and this address
    /// is not public.
    NotPublic,
    /// A rule denies the destination.
    DeniedRule,
    /// 0.0.0.0/8 or `::`, which Linux treats as this machine (RFC 1122 3.2.1.3, RFC 4291 2.5.2).
    Unspecified,
    /// 127.0.0.0/8 or `::1`.
    Loopback,
    /// 169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291 2.5.6).
    LinkLocal,
    /// A cloud's metadata service, which hands out credentials.
    Metadata,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// 240.0.0.0/4 (RFC 1112 4).
    Reserved,
    /// An address of this machine.
    Own,
    /// A relay of the mesh, or an address that only relays may reach.
    MeshInternal,
}

// === impl DestinationVerdict ===

impl DestinationVerdict {
    /// Every verdict.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// Returns whether the destination is allowed.
    pub fn is_allowed(self) -> bool {
        self == Self::Allowed
    }
}

impl fmt::Display for DestinationVerdict {
    /// Writes the end of a sentence that begins with the destination: "10.0.0.1:80 ...".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "is allowed",
            Self::NotAName => "is neither an address nor a name",
            Self::NotListed => "is not in the list of allowed destinations",
            Self::NotPublic => {
                "is not a public address: only a rule that names its prefix can allow it"
            }
            Self::DeniedRule => "is denied by a rule",
            Self::Unspecified => "is the unspecified address, which means this machine",
            Self::Loopback => "is a loopback address",
            Self::LinkLocal => "is a link-local address",
            Self::Metadata => "is a cloud's metadata service",
            Self::Multicast => "is a multicast address",
            Self::Broadcast => "is the broadcast address",
            Self::Reserved => "is a reserved address",
            Self::Own => "is an address of this machine",
            Self::MeshInternal => "belongs to the mesh itself",
        })
    }
}
