//! Names of the kernel's functions (`/proc/kallsyms`).

use std::fs;
use std::path::Path;

/// The functions of the kernel by address.
#[derive(Debug, Default)]
pub(super) struct Symbols(Vec<(u64, Box<str>)>);

/// The maximum length of a function in bytes. What is farther behind a symbol is not in its function,
/// but in a module that was loaded later, or in a BPF program.
const FUNCTION_MOST: u64 = 1 << 16;

// === impl Symbols ===

impl Symbols {
    /// Reads the functions. Without CAP_SYSLOG, or with `kernel.kptr_restrict=2`, the kernel hides the
    /// addresses, and then none is known.
    pub(super) fn read() -> Self {
        // The kernel may have no symbols.
        let text = fs::read_to_string(Path::new("/proc/kallsyms")).unwrap_or_default();
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let functions = text.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let address = u64::from_str_radix(fields.next()?, 16).ok()?;
            let is_function = matches!(fields.next()?, "t" | "T" | "w" | "W");
            let name = fields.next()?;
            (is_function && address > 0).then(|| (address, name.into()))
        });
        let mut functions: Vec<_> = functions.collect();
        functions.sort_by_key(|(address, _)| *address);
        Self(functions)
    }

    /// Whether no function is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the function that an address is in.
    pub(super) fn at(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(begin, _)| *begin <= address);
        let (begin, name) = self.0.get(after.checked_sub(1)?)?;
        if address - begin >= FUNCTION_MOST {
            return None;
        }
        // Optimised parts of a function are symbols of their own: `name.cold`, `name.isra.0`.
        name.split('.').next()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_function_that_begins_before_it() {
        let symbols = Symbols::parse(
            "ffffffff81000200 t nf_hook_slow.isra.0\nffffffff81000000 T _stext\n\
             ffffffff81000280 D some_data\nffffffffc0000000 t tun_net_xmit\t[tun]\n",
        );
        assert_eq!(symbols.at(0xffff_ffff_8100_01ff), Some("_stext"));
        assert_eq!(symbols.at(0xffff_ffff_8100_0200), Some("nf_hook_slow"));
        assert_eq!(symbols.at(0xffff_ffff_8100_0290), Some("nf_hook_slow"));
        assert_eq!(symbols.at(0xffff_ffff_c000_0100), Some("tun_net_xmit"));
        assert_eq!(symbols.at(5), None);
        assert_eq!(symbols.at(0xffff_ffff_c001_0000), None);
    }

    #[test]
    fn hidden_and_damaged_symbols_are_none() {
        let symbols = Symbols::parse("0000000000000000 T hidden\nx T y\n\nffff t\n12 T\n");
        assert!(symbols.is_empty());
        assert_eq!(symbols.at(u64::MAX), None);
    }

    #[test]
    fn the_running_kernel_names_its_functions() {
        let text = fs::read_to_string("/proc/kallsyms").unwrap();
        let line = text.lines().find(|line| line.ends_with(" T tcp_v4_rcv"));
        let address = line.unwrap().split(' ').next().unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        assert_eq!(Symbols::read().at(address + 9), Some("tcp_v4_rcv"));
    }
}
