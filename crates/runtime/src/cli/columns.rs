//! Tables with aligned columns, which are shortened to the width of a terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::style::Style;
use super::text::to_single_line;

/// Number of columns of a terminal that tables must fit.
pub const TERMINAL_WIDTH: usize = 80;
/// Number of spaces between columns.
const GAP: usize = 2;
/// Mark at the end of a shortened text.
const ELLIPSIS: char = '…';

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading.
    pub title: &'static str,
    /// Alignment of the cells and the heading.
    pub alignment: Alignment,
    /// Width to which the column may be shortened; `None` for a column that is never shortened.
    pub minimum: Option<usize>,
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

impl Column {
    /// Returns a column of texts that is never shortened.
    #[must_use]
    pub const fn text(title: &'static str) -> Self {
        Self { title, alignment: Alignment::Left, minimum: None }
    }

    /// Returns a column of texts that may be shortened to `minimum`.
    #[must_use]
    pub const fn flexible(title: &'static str, minimum: usize) -> Self {
        Self { title, alignment: Alignment::Left, minimum: Some(minimum) }
    }

    /// Returns a column of numbers.
    #[must_use]
    pub const fn number(title: &'static str) -> Self {
        Self { title, alignment: Alignment::Right, minimum: None }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    emphasis: Emphasis,
}

/// Colour of a cell on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emphasis {
    /// No colour.
    #[default]
    None,
    /// Colour of a good result.
    Success,
    /// Colour of a warning.
    Warning,
    /// Colour of a bad result.
    Failure,
}

impl Cell {
    /// Returns a cell. Control characters and line ends are replaced, because the text may come from an object. An empty
    /// text becomes `-`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = if text.is_empty() { "-".to_owned() } else { to_single_line(text) };
        Self { text, emphasis: Emphasis::None }
    }

    /// Returns the cell in a colour.
    #[must_use]
    pub fn with_emphasis(mut self, emphasis: Emphasis) -> Self {
        self.emphasis = emphasis;
        self
    }
}

impl<T: ToString> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        Self::new(&value.map(|value| value.to_string()).unwrap_or_default())
    }
}

/// Formats a table with headings. If it is wider than `width`, the widest columns that may be shortened are shortened first.
/// Without `width`, no text is shortened.
#[must_use]
pub fn format_table(
    columns: &[Column],
    rows: &[Vec<Cell>],
    width: Option<usize>,
    style: Style,
) -> String {
    let widths = column_widths(columns, rows, width);
    let mut out = String::new();
    let titles = columns.iter().map(|column| Cell::new(column.title)).collect::<Vec<_>>();
    push_row(&mut out, columns, &widths, &titles, |text, _| style.format_heading(text));
    for row in rows {
        push_row(&mut out, columns, &widths, row, |text, emphasis| match emphasis {
            Emphasis::None => text.to_owned(),
            Emphasis::Success => style.format_success(text),
            Emphasis::Warning => style.format_warning(text),
            Emphasis::Failure => style.format_failure(text),
        });
    }
    out
}

fn column_widths(columns: &[Column], rows: &[Vec<Cell>], width: Option<usize>) -> Vec<usize> {
    let widest = |at: usize| rows.iter().filter_map(|row| Some(row.get(at)?.text.width())).max();
    let natural = columns.iter().enumerate();
    let mut widths: Vec<usize> = natural
        .map(|(at, column)| column.title.width().max(widest(at).unwrap_or_default()))
        .collect();
    let Some(width) = width else { return widths };
    let gaps = columns.len().saturating_sub(1) * GAP;
    let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    while excess > 0 {
        let shrinkable = columns.iter().zip(&mut widths).filter_map(|(column, width)| {
            let minimum = column.minimum?.max(column.title.width());
            (*width > minimum).then_some(width)
        });
        let Some(widest) = shrinkable.max_by_key(|width| **width) else { break };
        *widest -= 1;
        excess -= 1;
    }
    widths
}

fn push_row(
    out: &mut String,
    columns: &[Column],
    widths: &[usize],
    row: &[Cell],
    paint: impl Fn(&str, Emphasis) -> String,
) {
    let mut line = String::new();
    // Spaces before the next text; those at the end of a line are not written.
    let mut pending = 0;
    for ((column, width), cell) in columns.iter().zip(widths).zip(row) {
        let text = shorten(&cell.text, *width);
        let padding = width.saturating_sub(text.width());
        let (before, after) = match column.alignment {
            Alignment::Left => (0, padding),
            Alignment::Right => (padding, 0),
        };
        line.push_str(&" ".repeat(pending + before));
        line.push_str(&paint(&text, cell.emphasis));
        pending = after + GAP;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Returns the text, or its beginning with an ellipsis if it is wider than `width` columns of a terminal.
#[must_use]
pub fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let Some(available) = width.checked_sub(1) else { return String::new() };
    let (mut shortened, mut used) = (String::new(), 0);
    for letter in text.chars() {
        used += letter.width().unwrap_or_default();
        if used > available {
            break;
        }
        shortened.push(letter);
    }
    // A text may be wider than its characters together: a variation selector makes the character before it wider.
    while shortened.width() > available {
        shortened.pop();
    }
    shortened.push(ELLIPSIS);
    shortened
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::flexible("NAME", 8), Column::number("VMS"), Column::flexible("MESSAGE", 10)];

    fn rows(all: &[[&str; 3]]) -> Vec<Vec<Cell>> {
        all.iter().map(|row| row.iter().map(|text| Cell::new(text)).collect()).collect()
    }

    #[test]
    fn columns_are_aligned() {
        let table = format_table(
            &COLUMNS,
            &rows(&[["a", "1", "x"], ["bbbbbb", "100", ""]]),
            Some(TERMINAL_WIDTH),
            Style::Plain,
        );
        let lines = ["NAME    VMS  MESSAGE", "a         1  x", "bbbbbb  100  -"];
        assert_eq!(table, lines.join("\n") + "\n");
    }

    #[test]
    fn the_widest_column_is_shortened_first() {
        let long = "m".repeat(100);
        let short = ["rack1-a", "5", long.as_str()];
        let table = format_table(&COLUMNS, &rows(&[short]), Some(40), Style::Plain);
        let line = table.lines().nth(1).unwrap();
        assert_eq!(line, format!("rack1-a    5  {}…", "m".repeat(25)));
        let wide = format_table(&COLUMNS, &rows(&[short]), None, Style::Plain);
        assert!(wide.contains(&long));
    }

    #[test]
    fn colours_do_not_change_the_alignment() {
        let mut all = rows(&[["a", "1", "x"]]);
        all[0][0].emphasis = Emphasis::Failure;
        let table = format_table(&COLUMNS, &all, None, Style::Coloured);
        let line = table.lines().nth(1).unwrap();
        assert_eq!(line, "\u{1b}[31;1ma\u{1b}[0m       1  x");
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(shorten("東京東京", 5), "東京…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abcd", 3), "ab…");
        assert_eq!(shorten("abcd", 0), "");
    }

    proptest! {
        #[test]
        fn no_line_exceeds_the_width(
            texts in prop::collection::vec(prop::array::uniform3("\\PC{0,60}|[\u{1b}\r\n\t\u{9b}a]{0,9}"), 0..6),
        ) {
            let cells: Vec<Vec<Cell>> = texts
                .iter()
                .map(|row| row.iter().map(|text| Cell::new(text)).collect())
                .collect();
            // The column of numbers is never shortened.
            let columns =
                [COLUMNS[0], Column::flexible("VMS", 3), COLUMNS[2]];
            let table = format_table(&columns, &cells, Some(40), Style::Plain);
            prop_assert_eq!(table.lines().count(), cells.len() + 1);
            for line in table.lines() {
                prop_assert!(line.width() <= 40, "{:?}", line);
                prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
            }
        }
    }
}
