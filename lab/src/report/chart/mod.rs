//! Charts as inline SVG. Only the geometry is here: colours and type come from the page's style
//! sheet, by class. Marks carry their values as `title`, which a browser shows under the pointer.

pub(super) mod axis;
pub(super) mod bars;
pub(super) mod cdf;
pub(super) mod legend;
pub(super) mod lines;
pub(super) mod text;

/// The width of every chart in the chart's units. A unit is a pixel unless the page is narrower.
/// Two charts fit side by side on a desktop screen, and one chart fills half of it.
pub(super) const WIDTH: f64 = 540.0;

/// The number of distinct line styles in the style sheet.
const LOOKS: usize = 8;

/// Returns the class of the `n`-th series' colour and dash.
pub(super) fn look(n: usize) -> String {
    format!("look{}", n % LOOKS)
}

/// Formats a coordinate to a tenth of a pixel.
pub(super) fn px(value: f64) -> String {
    format!("{value:.1}")
}

/// Returns `points` as an SVG path of straight lines.
pub(super) fn path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (x, y) in points {
        path.push(if path.is_empty() { 'M' } else { 'L' });
        path.push_str(&format!("{x:.1} {y:.1}"));
    }
    path
}

/// Returns the outline of the mark that shows the paper's figure at a point.
pub(super) fn diamond(x: f64, y: f64) -> String {
    path([(x - 5.5, y), (x, y - 5.5), (x + 5.5, y), (x, y + 5.5)]) + "Z"
}
