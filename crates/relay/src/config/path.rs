//! How packets to destinations are sent: the keys `upstream_mark`, `upstream_dscp`, `upstream_device` and
//! `upstream_address` of a forward and of `[relay.mesh]`.

use std::net::IpAddr;

use taut_sys::socket::{PathOptions, SourcePool};
use toml::Spanned;

use super::field::OneOrMany;

/// The largest DSCP (RFC 2474 3).
const MAX_DSCP: u8 = 63;

/// The keys of a section. (serde cannot flatten a section that denies unknown keys.)
pub(super) struct PathKeys {
    pub(super) mark: Option<Spanned<u32>>,
    pub(super) dscp: Option<Spanned<u8>>,
    pub(super) device: Option<String>,
    pub(super) address: Option<Spanned<OneOrMany>>,
}

// === impl PathKeys ===

impl PathKeys {
    /// Checks the keys of a section.
    pub(super) fn check(self, section: &str) -> Result<PathOptions, (usize, String)> {
        if let Some(mark) = self.mark.as_ref().filter(|mark| *mark.get_ref() == 0) {
            let message = format!("{section}.upstream_mark: must not be 0, which means no mark");
            return Err((mark.span().start, message));
        }
        if let Some(dscp) = self.dscp.as_ref().filter(|dscp| *dscp.get_ref() > MAX_DSCP) {
            let message = format!(
                "{section}.upstream_dscp: must be from 0 to {MAX_DSCP}, such as 46 for expedited forwarding"
            );
            return Err((dscp.span().start, message));
        }
        Ok(PathOptions {
            mark: self.mark.map(Spanned::into_inner),
            dscp: self.dscp.map(Spanned::into_inner),
            device: self.device,
            sources: match self.address {
                Some(addresses) => sources(addresses, section)?,
                None => SourcePool::default(),
            },
        })
    }
}

fn sources(addresses: Spanned<OneOrMany>, section: &str) -> Result<SourcePool, (usize, String)> {
    let at = addresses.span().start;
    let texts = addresses.into_inner().into_vec();
    let addresses = texts.iter().map(|text| {
        text.parse::<IpAddr>().map_err(|_| {
            let message = format!(
                "{section}.upstream_address: `{text}` is not an IP address, such as 192.0.2.5"
            );
            (at, message)
        })
    });
    Ok(SourcePool::new(addresses.collect::<Result<_, _>>()?))
}
