//! Finds the paper's or an ideal system's figure for a series.
//!
//! The maps `paper` and `ideal` of an outcome have no fixed form. A number in them belongs to a
//! series if its top-level key is the series' metric and unit (`ttfb_s`) and every key below is a
//! part of the series' name. In `{"total_s": {"relay": {"1 MB": 0.9}}}` the number belongs to
//! `relay/1 MB`. The parts may be in either order.

use serde_json::{Map, Value};

use super::name::Name;
use crate::experiment::outcome::Series;

/// Returns the paper's figure for `series`.
///
/// The figure must name the configuration, and the condition if the series has one. The paper's
/// figure for another configuration, or for a world without that loss, cannot be compared.
pub(super) fn paper(paper: &Map<String, Value>, series: &Series) -> Option<f64> {
    let name = Name::of(&series.name);
    let (value, unused) = find(paper, series)?;
    let named = |word: &str| !unused.contains(&word);
    let condition = series.name.splitn(3, '/').nth(2).unwrap_or_default();
    let condition_named = condition.split('/').filter(|w| !w.is_empty()).all(named);
    (named(name.configuration) && condition_named).then_some(value)
}

/// Returns an ideal system's figure for `series`. The figure is a bound, so one number may apply to
/// all configurations and conditions.
pub(super) fn ideal(ideal: &Map<String, Value>, series: &Series) -> Option<f64> {
    find(ideal, series).map(|(value, _)| value)
}

/// Returns the number for `series`, and the parts of the series' name that the path to the number
/// does not include.
fn find<'a>(map: &Map<String, Value>, series: &'a Series) -> Option<(f64, Vec<&'a str>)> {
    let words: Vec<&str> = series.name.split('/').collect();
    let suffix: String = series
        .unit
        .to_lowercase()
        .replace(|c: char| !c.is_alphanumeric(), "_");
    [
        format!("{}_{}", series.metric, series.unit),
        format!("{}_{suffix}", series.metric),
        series.metric.clone(),
    ]
    .iter()
    .find_map(|key| below(map.get(key)?, &words))
}

fn below<'a>(value: &Value, words: &[&'a str]) -> Option<(f64, Vec<&'a str>)> {
    match value {
        Value::Number(number) => Some((number.as_f64()?, words.to_vec())),
        Value::Object(map) => {
            if let Some(Value::Number(number)) = map.get(&words.join("/")) {
                return Some((number.as_f64()?, Vec::new()));
            }
            words.iter().enumerate().find_map(|(i, word)| {
                let rest: Vec<&str> = [&words[..i], &words[i + 1..]].concat();
                below(map.get(*word)?, &rest)
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn series(name: &str) -> Series {
        Series::of(name, "total", "s", vec![1.0]).unwrap()
    }

    #[test]
    fn an_ideal_is_found_by_metric_unit_and_size() {
        let ideals = map(json!({"ttfb_s": 0.3, "total_s": {"10 kB": 0.4, "1 MB": 0.5}}));
        assert_eq!(ideal(&ideals, &series("e2e/1 MB")), Some(0.5));
        assert_eq!(ideal(&ideals, &series("e2e/1 MB/0.1 % loss")), Some(0.5));
        assert_eq!(ideal(&ideals, &series("e2e/2 MB")), None);
    }

    #[test]
    fn the_papers_words_may_come_in_any_order() {
        for paper_says in [
            json!({"total_s": {"e2e": {"1 MB": 2.5}}}),
            json!({"total_s": {"1 MB": {"e2e": 2.5}}}),
            json!({"total_s": {"e2e/1 MB": 2.5}}),
            json!({"total_s": {"e2e": 2.5}}),
        ] {
            assert_eq!(paper(&map(paper_says), &series("e2e/1 MB")), Some(2.5));
        }
    }

    #[test]
    fn a_paper_figure_of_something_else_is_not_compared() {
        let of_no_configuration = map(json!({"total_s": {"1 MB": 2.5}}));
        assert_eq!(paper(&of_no_configuration, &series("e2e/1 MB")), None);
        let without_loss = map(json!({"total_s": {"e2e": {"1 MB": 2.5}}}));
        assert_eq!(paper(&without_loss, &series("e2e/1 MB/0.1 % loss")), None);
        let with_loss = map(json!({"total_s": {"e2e": {"1 MB": {"0.1 % loss": 4.0}}}}));
        assert_eq!(paper(&with_loss, &series("e2e/1 MB/0.1 % loss")), Some(4.0));
        assert_eq!(paper(&with_loss, &series("e2e/1 MB")), None);
    }
}
