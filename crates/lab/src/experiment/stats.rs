//! Order statistics of small samples.

/// The `p`-quantile of `samples` (0 to 1), interpolated linearly between the two nearest ranks
/// (the definition of most spreadsheets and of NumPy's default); `None` of an empty sample.
pub fn quantile(samples: &[f64], p: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = p.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)? as f64);
    let (below, part) = (rank.floor(), rank.fract());
    let low = sorted[below as usize];
    let high = sorted.get(below as usize + 1).copied().unwrap_or(low);
    Some(low + (high - low) * part)
}

/// The middle of `samples`.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_extremes_are_the_least_and_the_most() {
        let samples = [5.0, 1.0, 9.0, 2.0];
        assert_eq!(quantile(&samples, 0.0), Some(1.0));
        assert_eq!(quantile(&samples, 1.0), Some(9.0));
    }

    #[test]
    fn a_quantile_lies_between_its_neighbours() {
        let samples: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(quantile(&samples, 0.1), Some(1.0));
        assert_eq!(quantile(&samples, 0.95), Some(9.5));
    }
}
