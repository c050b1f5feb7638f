//! Captions that explain how to read a figure.

use super::{
    super::{
        arrange::{Figure, Metric},
        chart::lines::Lines,
        name::in_words,
        unit::{self, Better},
    },
    view::{View, baseline, ratio},
};

/// Returns the figure's caption. `shared` means that the figure's panels share one scale.
pub(super) fn caption(
    view: View<'_>,
    metric: &Metric<'_>,
    figure: &Figure<'_>,
    shared: bool,
    lines: Option<&Lines<'_>>,
) -> String {
    let rows = || figure.panels.iter().flat_map(|panel| &panel.rows);
    let mark = if lines.is_some() { "Dots" } else { "Bars" };
    let n = samples(rows().map(|row| row.series.n));
    let mut caption =
        format!("{mark} are medians of {n}; whiskers reach from the 10th to the 90th percentile.");
    caption += match lines {
        Some(lines) if lines.is_log() => " The vertical axis is logarithmic.",
        None if figure.panels.len() > 1 && shared => " All panels have the same scale.",
        None if figure.panels.len() > 1 => " Each panel has its own scale, from zero.",
        _ => "",
    };
    let compared = figure
        .panels
        .iter()
        .find(|panel| panel.rows.iter().any(|row| ratio(panel, row).is_some()));
    if let (None, Some(base)) = (lines, compared.and_then(baseline)) {
        let name = in_words(base.configuration);
        caption += &match unit::better(metric.unit) {
            Better::Lower => format!(" × is the speed relative to {name}."),
            Better::Higher => format!(" × is the ratio to {name}."),
            Better::Unknown => String::new(),
        };
    }
    if rows().any(|row| view.paper(row.series).is_some()) {
        caption += " ◇ is the paper’s own figure.";
    }
    if rows().any(|row| view.ideal(row.series).is_some()) {
        caption += " The dashed line is the ideal.";
    }
    caption
}

fn samples(counts: impl Iterator<Item = usize> + Clone) -> String {
    let least = counts.clone().min().unwrap_or(0);
    match counts.max().unwrap_or(0) {
        1 => "one sample".to_owned(),
        most if most == least => format!("{most} samples"),
        most => format!("{least} to {most} samples"),
    }
}
