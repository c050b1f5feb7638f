//! Tables for people: titles in capitals, text at the left, figures at the right, and no rules. `taut top`
//! has the same style.

use comfy_table::{CellAlignment, Table, presets};

/// The blanks between two columns.
const GAP: u16 = 2;

/// A column.
pub(crate) struct Column {
    title: String,
    alignment: CellAlignment,
}

/// Returns a column of text.
pub(crate) fn text(title: impl Into<String>) -> Column {
    Column {
        title: title.into(),
        alignment: CellAlignment::Left,
    }
}

/// Returns a column of figures.
pub(crate) fn figure(title: impl Into<String>) -> Column {
    Column {
        title: title.into(),
        alignment: CellAlignment::Right,
    }
}

/// Renders rows with one cell a column, without trailing blanks.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| &column.title));
    for row in rows {
        table.add_row(row);
    }
    for (shown, column) in table.column_iter_mut().zip(columns) {
        shown.set_padding((0, GAP));
        shown.set_cell_alignment(column.alignment);
    }
    let lines = table.lines();
    lines
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_at_the_left_and_figures_are_at_the_right() {
        let columns = [text("RELAY"), figure("RTT ms"), text("STATE")];
        let rows = [["fra1", "81.25", "up"], ["a-long-name", "7.00", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&columns, rows),
            "RELAY        RTT ms  STATE\nfra1          81.25  up\na-long-name    7.00\n"
        );
    }
}
