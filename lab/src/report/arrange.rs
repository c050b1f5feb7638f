//! Arranges series for comparison: one figure per metric and condition, one panel per group, one
//! row per configuration.

use super::{name::Name, quantity};
use crate::experiment::outcome::Series;

/// All series of one metric.
#[derive(Debug)]
pub(super) struct Metric<'a> {
    pub(super) name: &'a str,
    pub(super) unit: &'a str,
    /// One figure per condition. The figure of the experiment's own world comes first.
    pub(super) figures: Vec<Figure<'a>>,
}

/// A metric under one condition.
#[derive(Debug)]
pub(super) struct Figure<'a> {
    pub(super) condition: Option<&'a str>,
    pub(super) panels: Vec<Panel<'a>>,
}

/// Series that may be compared directly: of the same metric, condition and group.
#[derive(Debug)]
pub(super) struct Panel<'a> {
    pub(super) group: Option<&'a str>,
    pub(super) rows: Vec<Row<'a>>,
}

/// A configuration's series in a panel.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) configuration: &'a str,
    /// The configuration's index in the outcome. It selects the same colour in all figures.
    pub(super) colour: usize,
    pub(super) series: &'a Series,
}

/// Arranges an outcome's series. Keeps the order of appearance, except that groups which are
/// quantities are sorted by size.
pub(super) fn arrange(series: &[Series]) -> Vec<Metric<'_>> {
    let mut configurations: Vec<&str> = Vec::new();
    let mut metrics: Vec<Metric<'_>> = Vec::new();
    for one in series {
        let name = Name::of(&one.name);
        let colour = place(
            &mut configurations,
            |c| *c == name.configuration,
            || name.configuration,
        );
        let metric = entry(
            &mut metrics,
            |m| m.name == one.metric && m.unit == one.unit,
            || Metric {
                name: &one.metric,
                unit: &one.unit,
                figures: Vec::new(),
            },
        );
        let figure = entry(
            &mut metric.figures,
            |f| f.condition == name.condition,
            || Figure {
                condition: name.condition,
                panels: Vec::new(),
            },
        );
        let panel = entry(
            &mut figure.panels,
            |p| p.group == name.group,
            || Panel {
                group: name.group,
                rows: Vec::new(),
            },
        );
        panel.rows.push(Row {
            configuration: name.configuration,
            colour,
            series: one,
        });
    }
    for metric in &mut metrics {
        metric
            .figures
            .sort_by_key(|figure| figure.condition.is_some());
        for figure in &mut metric.figures {
            quantity::sort(&mut figure.panels, |panel| panel.group.unwrap_or_default());
            for panel in &mut figure.panels {
                panel.rows.sort_by_key(|row| row.colour);
            }
        }
    }
    metrics
}

/// Returns the item's index in `list`, adding the item if it is missing.
fn place<T>(list: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    list.iter().position(is).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    })
}

fn entry<T>(list: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = place(list, is, new);
    &mut list[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(names: &[&str]) -> Vec<Series> {
        names
            .iter()
            .map(|name| Series::of(name, "total", "s", vec![1.0]).unwrap())
            .collect()
    }

    #[test]
    fn sizes_stand_in_order_and_configurations_as_they_came() {
        let series = series(&[
            "e2e/10 MB",
            "e2e/10 kB",
            "relay/10 MB",
            "relay/10 kB",
            "a/10 kB",
        ]);
        let metrics = arrange(&series);
        let panels = &metrics[0].figures[0].panels;
        assert_eq!(panels[0].group, Some("10 kB"));
        assert_eq!(panels[1].group, Some("10 MB"));
        let rows: Vec<&str> = panels[0].rows.iter().map(|r| r.configuration).collect();
        assert_eq!(rows, ["e2e", "relay", "a"]);
    }

    #[test]
    fn a_condition_is_a_figure_of_its_own_after_the_plain_one() {
        let series = series(&["e2e/1 MB/lossy", "e2e/1 MB"]);
        let metrics = arrange(&series);
        let conditions: Vec<_> = metrics[0].figures.iter().map(|f| f.condition).collect();
        assert_eq!(conditions, [None, Some("lossy")]);
    }

    #[test]
    fn a_configuration_keeps_its_colour_where_others_are_missing() {
        let series = series(&[
            "e2e/1 MB",
            "ssh/1 MB",
            "relay/1 MB",
            "e2e/2 MB",
            "relay/2 MB",
        ]);
        let metrics = arrange(&series);
        assert_eq!(metrics[0].figures[0].panels[1].rows[1].colour, 2);
    }
}
