//! Draws a figure as lines if it is a sweep over a quantity.

use super::{
    super::{
        about,
        arrange::{Figure, Metric, Row},
        chart::lines::{Line, Lines, Point},
        name::in_words,
        quantity,
        unit::Unit,
    },
    view::{View, greatest},
};

/// The maximum number of groups in bars. Lines show more quantities better.
const BAR_GROUPS: usize = 5;

/// Returns the figure's lines, or `None` if bars show it better.
pub(super) fn lines<'a>(
    view: View<'_>,
    metric: &Metric<'_>,
    figure: &'a Figure<'a>,
) -> Option<Lines<'a>> {
    let panels = &figure.panels;
    if panels.len() <= BAR_GROUPS {
        return None;
    }
    let names = || panels.iter().map(|panel| panel.group.unwrap_or_default());
    let steps: Vec<f64> = quantity::all(names())?.iter().map(|q| q.value).collect();
    let most = greatest(panels.iter().flat_map(|panel| view.values(panel)));
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut ideal = Vec::new();
    for (step, panel) in steps.iter().copied().zip(panels) {
        let mut ideals = panel.rows.iter().map(|row| view.ideal(row.series));
        ideal.extend(ideals.find_map(|ideal| Some((step, ideal?))));
        for row in &panel.rows {
            line_of(row, &mut lines).points.push(Point {
                x: step,
                median: row.series.median,
                p10: row.series.p10,
                p90: row.series.p90,
                paper: view.paper(row.series),
                about: view.in_words(row.series),
            });
        }
    }
    lines.sort_by_key(|line| line.colour);
    let unit = Unit::fitting(metric.unit, most);
    let what = figure
        .condition
        .map_or_else(|| about::metric(metric.name), |c| c.replace('/', ", "));
    Some(Lines {
        // The title includes the unit, because the axis has no room for it.
        title: match unit.label.as_str() {
            "" => what,
            unit => format!("{what} ({unit})"),
        },
        unit,
        steps: steps.into_iter().zip(names()).collect(),
        lines,
        ideal,
    })
}

/// Returns the row's line in `lines`, adding it if it is missing.
fn line_of<'a, 'b>(row: &Row<'a>, lines: &'b mut Vec<Line<'a>>) -> &'b mut Line<'a> {
    let at = lines.iter().position(|line| line.colour == row.colour);
    let at = at.unwrap_or_else(|| {
        lines.push(Line {
            label: in_words(row.configuration),
            colour: row.colour,
            points: Vec::new(),
        });
        lines.len() - 1
    });
    &mut lines[at]
}
