//! Order statistics of small samples.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Returns the `p`-quantile of `samples` (`p` from 0 to 1), interpolated linearly between the two
/// nearest ranks (the definition of most spreadsheets and NumPy's default); `None` if `samples` is
/// empty.
pub fn quantile(samples: &[f64], p: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = p.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)? as f64);
    let (below, part) = (rank.floor(), rank.fract());
    let low = sorted[below as usize];
    let high = sorted.get(below as usize + 1).copied().unwrap_or(low);
    // If the rank is an integer, the next sample has no weight. It may be infinite.
    match part == 0.0 || low == high {
        true => Some(low),
        false => Some(low + (high - low) * part),
    }
}

/// Returns the median of `samples`.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The number of bootstrap resamplings. It is so large that the interval's ends do not depend on
/// it.
const RESAMPLINGS: usize = 4_000;

/// Returns the 90 % interval of `median(above) / median(below)` by the percentile bootstrap: how
/// much the ratio would vary if the same numbers of samples were taken again. Returns `None`
/// without samples.
pub fn ratio_interval(above: &[f64], below: &[f64]) -> Option<(f64, f64)> {
    // The seed is fixed, so that the same samples give the same interval.
    let mut random = Pcg64Mcg::seed_from_u64(0);
    let mut again = |samples: &[f64]| -> Option<f64> {
        let n = samples.len() as u64;
        let drawn: Vec<f64> = samples
            .iter()
            .map(|_| samples[(random.next_u64() % n) as usize])
            .collect();
        median(&drawn)
    };
    let ratios: Option<Vec<f64>> = (0..RESAMPLINGS)
        .map(|_| Some(again(above)? / again(below)?))
        .collect();
    let ratios = ratios?;
    Some((quantile(&ratios, 0.05)?, quantile(&ratios, 0.95)?))
}

/// The widest interval of a ratio that counts as narrow, as a share of the ratio.
const NARROW: f64 = 0.1;

/// Returns whether the 90 % interval of `median(above) / median(below)` is at most a tenth of it
/// wide. With two samples it is all that is between them, so the answer is whether the two agree
/// within a tenth; it says little about a third. One sample does not show how much it varies.
pub fn is_narrow(above: &[f64], below: &[f64]) -> bool {
    let Some(ratio) = median(above).zip(median(below)).map(|(a, b)| a / b) else {
        return false;
    };
    above.len() > 1
        && ratio_interval(above, below)
            .is_some_and(|(low, high)| high - low <= NARROW * ratio.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[f64::INFINITY, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[f64::INFINITY; 2]), Some(f64::INFINITY));
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

    #[test]
    fn an_interval_holds_the_ratio_and_narrows_with_samples() {
        let spread = |n: u32| -> Vec<f64> { (0..n).map(|i| f64::from(i % 10 + 5)).collect() };
        let (low, high) = ratio_interval(&spread(200), &[2.0; 200]).unwrap();
        assert!(
            low <= 4.75 && 4.75 <= high && high - low < 1.5,
            "{low} {high}"
        );
        let (few_low, few_high) = ratio_interval(&spread(5), &[2.0; 5]).unwrap();
        assert!(few_low <= few_high);
        assert_eq!(ratio_interval(&[3.0], &[1.5]), Some((2.0, 2.0)));
        assert_eq!(ratio_interval(&[], &[1.0]), None);
    }

    #[test]
    fn an_interval_is_narrow_up_to_a_tenth_of_the_ratio() {
        assert!(is_narrow(&[1.0, 1.09], &[1.0]));
        assert!(!is_narrow(&[1.0, 1.2], &[1.0]));
        assert!(!is_narrow(&[1.0], &[1.0]));
        assert!(!is_narrow(&[0.0, 0.0], &[0.0]));
        assert!(!is_narrow(&[], &[1.0]) && !is_narrow(&[1.0], &[]));
    }
}
