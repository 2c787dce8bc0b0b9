//! Text in columns, as Go's `text/tabwriter` lines them up for kubectl: cells end with a tab, and
//! a column is as wide as the widest of its cells in lines that follow each other.

use super::escaped;

/// Between two columns.
const PADDING: usize = 2;

/// Text that is written line by line, and lined up at its end.
#[derive(Default)]
pub(in crate::kinds) struct Tabs {
    done: String,
    text: String,
}

impl Tabs {
    /// Adds text, `level` times two spaces before it.
    pub(in crate::kinds) fn write(&mut self, level: usize, text: &str) {
        for _ in 0..level {
            self.text.push_str("  ");
        }
        // What a container says of itself is not to steer the terminal.
        self.text.push_str(&escaped(text));
    }

    /// Adds text with indentation of `level`, and ends the line.
    pub(in crate::kinds) fn line(&mut self, level: usize, text: &str) {
        self.write(level, text);
        self.text.push('\n');
    }

    /// Starts new columns for the following lines.
    pub(in crate::kinds) fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        let lines: Vec<Vec<&str>> = text.split_inclusive('\n').map(cells).collect();
        align(&mut self.done, &lines, &mut Vec::new());
    }

    /// Returns the aligned text.
    pub(in crate::kinds) fn finish(mut self) -> String {
        self.flush();
        self.done
    }
}

fn cells(line: &str) -> Vec<&str> {
    line.split('\t').collect()
}

fn align(out: &mut String, lines: &[Vec<&str>], widths: &mut Vec<usize>) {
    let column = widths.len();
    // The last cell of a line belongs to no column.
    let has_column = |line: &Vec<&str>| column + 1 < line.len();
    let mut rest = lines;
    while let Some(begin) = rest.iter().position(has_column) {
        let (before, from) = rest.split_at(begin);
        put(out, before, widths);
        let end = from.iter().position(|line| !has_column(line)).unwrap_or(from.len());
        let (block, after) = from.split_at(end);
        let width = block.iter().map(|line| line[column].chars().count() + PADDING).max().unwrap_or(0);
        widths.push(width);
        align(out, block, widths);
        widths.pop();
        rest = after;
    }
    put(out, rest, widths);
}

fn put(out: &mut String, lines: &[Vec<&str>], widths: &[usize]) {
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            out.push_str(cell);
            let width = widths.get(column).copied().unwrap_or(0);
            let missing = width.saturating_sub(cell.chars().count());
            out.extend(std::iter::repeat_n(' ', missing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_cell_ends_the_column() {
        let mut tabs = Tabs::default();
        tabs.line(0, "Name:\tweb");
        tabs.line(0, "Namespace:\tdefault");
        tabs.line(0, "Containers:");
        tabs.line(1, "app:");
        tabs.line(2, "Image:\ta");
        tabs.line(2, "Args:");
        tabs.line(3, "Größe:\tb\tc");
        tabs.line(0, "\tindented");
        tabs.flush();
        tabs.line(0, "a\tb\u{1b}[31m\r");
        assert_eq!(
            tabs.finish(),
            "Name:       web\n\
             Namespace:  default\n\
             Containers:\n  app:\n    Image:  a\n    Args:\n      Größe:  b  c\n\
             \u{20}             indented\n\
             a  b^[[31m\\r\n"
        );
    }
}
