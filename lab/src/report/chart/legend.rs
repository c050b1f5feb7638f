//! The legend below a chart.

use maud::{Markup, html};

use super::{WIDTH, look, px, text};

const SIZE: f64 = 12.0;
const ROW: f64 = 19.0;
const SAMPLE: f64 = 26.0;

/// A legend and its height.
#[derive(Debug)]
pub(in super::super) struct Legend {
    entries: Vec<Entry>,
    pub(in super::super) height: f64,
}

#[derive(Debug)]
struct Entry {
    class: String,
    label: String,
    x: f64,
    y: f64,
}

// === impl Legend ===

impl Legend {
    /// Builds the legend from labels with the indices of their series, and an entry for the ideal
    /// if `ideal` is true.
    pub(in super::super) fn new<'a>(
        series: impl IntoIterator<Item = (&'a str, usize)>,
        ideal: bool,
    ) -> Self {
        let mut entries = Vec::new();
        let (mut x, mut y) = (0.0, 0.0);
        let series = series.into_iter().map(|(label, n)| (label, look(n)));
        let ideal = ideal.then(|| ("ideal", String::new()));
        for (label, class) in series.chain(ideal) {
            let label = text::fit(label, SIZE, WIDTH - SAMPLE - 10.0);
            let width = SAMPLE + 6.0 + text::width(&label, SIZE) + 16.0;
            if x > 0.0 && x + width > WIDTH {
                (x, y) = (0.0, y + ROW);
            }
            entries.push(Entry { class, label, x, y });
            x += width;
        }
        Self {
            height: if entries.is_empty() { 0.0 } else { y + ROW },
            entries,
        }
    }

    /// Draws the legend below `top`.
    pub(in super::super) fn draw(&self, top: f64) -> Markup {
        html! {
            @for entry in &self.entries {
                @let (x, y) = (px(entry.x), px(top + entry.y + ROW / 2.0));
                g class=(entry.class) {
                    line.ideal[entry.class.is_empty()].curve[!entry.class.is_empty()]
                        x1=(x) x2=(px(entry.x + SAMPLE)) y1=(y) y2=(y) {}
                    text.name x=(px(entry.x + SAMPLE + 6.0)) y=(px(top + entry.y + ROW / 2.0 + 4.0)) {
                        (entry.label)
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_breaks_its_line_before_the_edge() {
        let labels = vec![("a rather long configuration", 0); 5];
        let legend = Legend::new(labels, true);
        assert!(legend.entries.iter().all(|entry| entry.x < WIDTH - SAMPLE));
        assert!(legend.height > ROW);
        assert_eq!(Legend::new([], false).height, 0.0);
    }
}
