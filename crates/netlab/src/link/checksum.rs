//! The Internet checksum (RFC 1071), as sums still to be complemented.

/// The ones' complement sum of `bytes` as big-endian words, an odd last byte padded with zero.
pub fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match *word {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    });
    fold(words.sum())
}

/// `sum` with one of its words changed from `old` to `new` (RFC 1624, for a sum not complemented).
pub fn replace(sum: u16, old: u16, new: u16) -> u16 {
    fold(u64::from(sum) + u64::from(!old) + u64::from(new))
}

/// The sum of what `a` and `b` are the sums of.
pub fn add(a: u16, b: u16) -> u16 {
    fold(u64::from(a) + u64::from(b))
}

/// What goes into a checksum field for `sum`.
pub fn complete(sum: u16) -> u16 {
    !sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
