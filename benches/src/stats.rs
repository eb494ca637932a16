//! Percentiles and medians of a few dozen measurements.

/// Returns the `percent`th percentile of `values`, interpolated between the two nearest values.
///
/// Returns NaN if `values` is empty.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let hundredths = sorted.len().saturating_sub(1) * percent;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let low = at(hundredths / 100);
    match hundredths % 100 {
        0 => low,
        rest => low + (at(hundredths / 100 + 1) - low) * rest as f64 / 100.0,
    }
}

/// Returns the median of `values`, or NaN if `values` is empty.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// Returns the median of the ratios `ours / theirs` of each round. The two lists have the same order of rounds.
pub(crate) fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!(percentile(&values, 0), 1.0);
        assert_eq!(percentile(&values, 10), 1.3);
        assert_eq!(percentile(&values, 100), 4.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(median_ratio(&[1.0, 2.0, 9.0], &[2.0, 4.0, 6.0]), 0.5);
    }
}
