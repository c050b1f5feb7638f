//! The Internet checksum (RFC 1071). All sums here are the ones before the final complement.

/// Returns the ones' complement sum of `bytes` as big-endian words; an odd last byte is padded with zero.
pub fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match *word {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    });
    fold(words.sum())
}

/// Updates `sum` for a word that changes from `old` to `new` (RFC 1624, for a sum before the complement).
pub fn replace(sum: u16, old: u16, new: u16) -> u16 {
    fold(u64::from(sum) + u64::from(!old) + u64::from(new))
}

/// Adds two sums: the sum over both inputs, if the first has an even length.
pub fn add(a: u16, b: u16) -> u16 {
    fold(u64::from(a) + u64::from(b))
}

/// Returns the value of a checksum field: the complement of `sum`.
pub fn complete(sum: u16) -> u16 {
    !sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
