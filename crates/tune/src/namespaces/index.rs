//! The network namespaces that exist, by cookie.

use std::collections::HashMap;

use taut_observe::namespaces::{self, Namespace};
use taut_sys::netns;

/// The maximum number of lists if namespaces end meanwhile.
const TRIES: usize = 3;

/// The network namespaces that existed a moment ago, by cookie.
pub(crate) struct NamespaceIndex {
    by_cookie: HashMap<u64, Namespace>,
    is_partial: bool,
}

// === impl NamespaceIndex ===

impl NamespaceIndex {
    /// Enters all namespaces to read their cookies.
    pub(crate) fn read() -> Self {
        let mut index = Self {
            by_cookie: HashMap::new(),
            is_partial: true,
        };
        // A list names a namespace by a process in it. If that process has ended, the next list may
        // name another process.
        for _ in 0..TRIES {
            let Ok(found) = namespaces::all() else {
                return index;
            };
            // A process that may not be inspected does not matter: nothing was changed in its
            // namespace, unless the namespace has a name and is listed by it.
            index.is_partial = found.left_out > 0;
            let mut has_vanished = false;
            for namespace in found.namespaces {
                match namespace.run(netns::cookie) {
                    Ok(Some(Ok(cookie))) => {
                        index.by_cookie.insert(cookie, namespace);
                    }
                    Ok(None) => has_vanished = true,
                    Ok(Some(Err(error))) => {
                        tracing::warn!(%error, "the cookie of a namespace cannot be read");
                        index.is_partial = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a namespace cannot be entered");
                        index.is_partial = true;
                    }
                }
            }
            if !has_vanished {
                break;
            }
        }
        index
    }

    /// Returns an index of these namespaces, as they were found a while ago.
    #[cfg(test)]
    pub(crate) fn of(namespaces: impl IntoIterator<Item = (u64, Namespace)>) -> Self {
        Self {
            by_cookie: namespaces.into_iter().collect(),
            is_partial: false,
        }
    }

    /// Iterates over the namespaces.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Namespace> {
        self.by_cookie.values()
    }

    /// Returns the rank of a namespace for undoing: first this program's own, then named ones, then
    /// the others. So a container cannot delay the host.
    pub(crate) fn rank(&self, cookie: u64) -> u8 {
        match self.by_cookie.get(&cookie) {
            Some(namespace) if namespace.is_own() => 0,
            Some(namespace) if namespace.is_named() => 1,
            Some(_) => 2,
            None => 3,
        }
    }

    /// Whether some namespaces could not be entered.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns the namespace with this cookie; `None` if it has ended.
    ///
    /// # Errors
    /// The namespace may be one of those that could not be entered.
    pub(crate) fn get(&self, cookie: u64) -> Result<Option<&Namespace>, &'static str> {
        match self.by_cookie.get(&cookie) {
            None if self.is_partial => Err("not all namespaces could be entered"),
            found => Ok(found),
        }
    }
}
