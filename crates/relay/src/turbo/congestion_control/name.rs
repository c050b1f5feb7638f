//! Names of congestion controls. Names are registered for the whole machine, in all namespaces.

/// TCP_CA_NAME_MAX, including the final NUL.
pub(super) const NAME_MAX: usize = super::raw::PIPE_CA_NAME_MAX as usize;

/// The default name.
const NAME: &str = "taut_pipe";

/// Returns the names to try in turn: the default, one for the process `pid`, and one with random digits, as
/// processes of several PID namespaces may have the same number.
pub(super) fn candidates(pid: u32, random: u32) -> [String; 3] {
    let with = |number| format!("{NAME}.{}", base36(number));
    [NAME.to_owned(), with(pid), with(random % (1 << 22))]
}

/// Writes `name` as a C string, cut to the maximum length.
pub(super) fn write(name: &str, into: &mut [u8]) {
    let into = &mut into[..NAME_MAX];
    into.fill(0);
    let len = name.len().min(NAME_MAX - 1);
    into[..len].copy_from_slice(&name.as_bytes()[..len]);
}

/// Returns `n` in base 36. Process numbers of Linux (below 2^22) have five digits or fewer.
fn base36(mut n: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit(n % 36, 36).unwrap_or('0'));
        n /= 36;
        if n == 0 {
            break;
        }
    }
    digits.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_choice_is_the_default_name() {
        assert_eq!(
            candidates(0, 36),
            ["taut_pipe", "taut_pipe.0", "taut_pipe.10"]
        );
        assert_eq!(candidates(36 * 36 + 35, 0)[1], "taut_pipe.10z");
    }

    #[test]
    fn a_name_is_cut_and_ends_with_nul() {
        let mut field = [0xFF; NAME_MAX + 1];
        write("a-name-that-is-far-too-long", &mut field);
        assert_eq!(&field, b"a-name-that-is-\0\xFF");
    }

    proptest! {
        #[test]
        fn every_process_has_a_name_that_fits_and_is_its_own(a in 0u32..1 << 22, b in 0u32..1 << 22) {
            let [_, name, random] = candidates(a, b);
            prop_assert!(random.len() < NAME_MAX);
            prop_assert!(name.len() < NAME_MAX);
            prop_assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.'));
            prop_assert_eq!(a == b, name == candidates(b, a)[1].clone());
        }
    }
}
