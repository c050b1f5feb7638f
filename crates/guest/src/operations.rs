//! Which of a congestion control's operations fit the running kernel, by the functions it has.
//!
//! Linux 6.10 passes more arguments to `cong_control`, and Linux 7.1 has `cwnd_event_tx_start`, which
//! BBR and Cubic implement instead of `cwnd_event`. Some kernels have another BBR of the same name.

use std::fs;
use std::io;
use std::path::Path;

use crate::control::Control;

/// The kernel's functions that the programs call in every version.
const BBR: [&str; 7] = [
    "bbr_main",
    "bbr_init",
    "bbr_sndbuf_expand",
    "bbr_undo_cwnd",
    "bbr_ssthresh",
    "bbr_min_tso_segs",
    "bbr_set_state",
];
const CUBIC: [&str; 5] = [
    "cubictcp_init",
    "cubictcp_recalc_ssthresh",
    "cubictcp_cong_avoid",
    "cubictcp_state",
    "cubictcp_acked",
];

/// The names in the BTF of the kernel and of a module.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<u8>);

/// Returns the struct_ops maps of a congestion control's object. Each is named after the version of
/// Linux that brought its operations.
pub(crate) fn all(control: Control) -> &'static [&'static str] {
    match control {
        Control::Bbr => &["taut_bbr_6_1", "taut_bbr_6_10", "taut_bbr_7_1"],
        Control::Cubic => &["taut_cubic_6_1", "taut_cubic_7_1"],
    }
}

/// Returns the one of [`all`] that fits a kernel with these names, whose `cong_control` takes four
/// arguments or two.
///
/// # Errors
/// The name of a function that the kernel lacks.
pub(crate) fn choose(
    control: Control,
    has_ack_and_flag: bool,
    names: &Names,
) -> Result<&'static str, &'static str> {
    let (functions, event, tx_start) = match control {
        Control::Bbr => (&BBR[..], "bbr_cwnd_event", "bbr_cwnd_event_tx_start"),
        Control::Cubic => (
            &CUBIC[..],
            "cubictcp_cwnd_event",
            "cubictcp_cwnd_event_tx_start",
        ),
    };
    if let Some(missing) = functions.iter().find(|name| !names.contains(name)) {
        return Err(missing);
    }
    let has_tx_start = names.contains(tx_start);
    if !has_tx_start && !names.contains(event) {
        return Err(event);
    }
    Ok(match (control, has_tx_start, has_ack_and_flag) {
        (Control::Bbr, true, _) => "taut_bbr_7_1",
        (Control::Bbr, false, true) => "taut_bbr_6_10",
        (Control::Bbr, false, false) => "taut_bbr_6_1",
        (Control::Cubic, true, _) => "taut_cubic_7_1",
        (Control::Cubic, false, _) => "taut_cubic_6_1",
    })
}

// === impl Names ===

impl Names {
    /// Reads the names of the kernel, and of the module of the kernel's congestion control if it is
    /// one.
    pub(crate) fn read(control: Control) -> Self {
        let directory = Path::new("/sys/kernel/btf");
        let read = |file: &str| -> io::Result<Vec<u8>> { fs::read(directory.join(file)) };
        let files = ["vmlinux", &format!("tcp_{}", control.kernels())]
            .map(|file| read(file).unwrap_or_default());
        Self::from_btf(files.iter().map(Vec::as_slice))
    }

    /// Collects the strings of BTF files; those of a module lack the kernel's. Files of another format
    /// have none.
    fn from_btf<'a>(files: impl Iterator<Item = &'a [u8]>) -> Self {
        Self(
            files
                .flat_map(|btf| strings(btf).unwrap_or_default().to_vec())
                .collect(),
        )
    }

    /// Returns whether the kernel has something of this name.
    fn contains(&self, name: &str) -> bool {
        self.0
            .split(|&byte| byte == 0)
            .any(|string| string == name.as_bytes())
    }
}

/// Returns the string section of a BTF file: strings that each end with a zero byte.
fn strings(btf: &[u8]) -> Option<&[u8]> {
    // struct btf_header: magic, version and flags in 4 bytes, then the lengths and offsets.
    let number = |at: usize| -> Option<usize> {
        let bytes = btf.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_ne_bytes(bytes)).ok()
    };
    let begin = number(4)?.checked_add(number(16)?)?;
    btf.get(begin..begin.checked_add(number(20)?)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    const EVENTS: [&str; 2] = ["bbr_cwnd_event", "cubictcp_cwnd_event"];
    const TX_START: [&str; 2] = ["bbr_cwnd_event_tx_start", "cubictcp_cwnd_event_tx_start"];

    /// A kernel's names: the functions of every version, less `without`, and `with`.
    fn names(without: &str, with: &[&str]) -> Names {
        let every = BBR.iter().chain(&CUBIC).filter(|name| **name != without);
        let strings = every
            .chain(with)
            .flat_map(|name| [name.as_bytes(), b"\0"].concat());
        Names(strings.collect())
    }

    #[test]
    fn the_operations_are_those_of_the_functions_that_the_kernel_has() {
        let (bbr, cubic) = (Control::Bbr, Control::Cubic);
        let (old, new) = (names("", &EVENTS), names("", &TX_START));
        assert_eq!(choose(bbr, false, &old), Ok("taut_bbr_6_1"));
        assert_eq!(choose(bbr, true, &old), Ok("taut_bbr_6_10"));
        assert_eq!(choose(bbr, true, &new), Ok("taut_bbr_7_1"));
        assert_eq!(choose(cubic, true, &old), Ok("taut_cubic_6_1"));
        assert_eq!(choose(cubic, true, &new), Ok("taut_cubic_7_1"));
        for control in Control::ALL {
            for (has_ack_and_flag, names) in [(false, &old), (true, &old), (true, &new)] {
                let chosen = choose(control, has_ack_and_flag, names).unwrap();
                assert!(all(control).contains(&chosen), "{chosen}");
            }
        }
    }

    #[test]
    fn another_bbr_does_not_affect_cubic() {
        // BBRv3 has bbr_tso_segs() instead.
        let bbr3 = names(
            "bbr_min_tso_segs",
            &["bbr_tso_segs", TX_START[0], TX_START[1]],
        );
        assert_eq!(choose(Control::Bbr, true, &bbr3), Err("bbr_min_tso_segs"));
        assert_eq!(choose(Control::Cubic, true, &bbr3), Ok("taut_cubic_7_1"));
        let neither = names("", &[]);
        assert_eq!(choose(Control::Bbr, true, &neither), Err("bbr_cwnd_event"));
    }

    #[test]
    fn names_are_those_of_the_kernel_and_of_the_module() {
        let btf = |types: &[u8], strings: &[u8]| {
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
            let header = [
                0x0001_eb9f,
                24,
                0,
                length(types),
                length(types),
                length(strings),
            ];
            let header = header.iter().flat_map(|number| number.to_ne_bytes());
            header.chain([types, strings].concat()).collect::<Vec<u8>>()
        };
        let kernel = btf(b"\0types\0", b"\0cubictcp_init\0");
        let module = btf(b"", b"bbr_main\0bbr_init\0");
        let names = Names::from_btf([&kernel[..], &module[..]].into_iter());
        for name in ["cubictcp_init", "bbr_main", "bbr_init"] {
            assert!(names.contains(name), "{name}");
        }
        for name in ["types", "bbr", "bbr_mai"] {
            assert!(!names.contains(name), "{name}");
        }
        for cut in 0..kernel.len() {
            assert!(!Names::from_btf([&kernel[..cut]].into_iter()).contains("cubictcp_init"));
        }
    }
}
