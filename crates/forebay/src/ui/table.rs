//! Tables with aligned columns.

#[derive(Clone, Copy, PartialEq)]
pub enum Align {
    Left,
    Right,
}

/// The head of a column, and how its cells line up.
pub type Column = (&'static str, Align);

/// Lays rows out below the heads of their columns.
pub fn tabulate(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
    let (heads, aligns): (Vec<&str>, Vec<Align>) = columns.iter().copied().unzip();
    let heads: Vec<String> = heads.into_iter().map(String::from).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    lay_out(&aligns, &rows)
}

/// Lays rows out with two blanks between columns and none at the end of a line.
pub fn lay_out(columns: &[Align], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = (0..columns.len())
        .map(|c| rows.iter().map(|row| row.get(c).map_or(0, |cell| width(cell))).max().unwrap_or(0))
        .collect();
    rows.iter().map(|row| line(columns, &widths, row)).collect()
}

fn line(columns: &[Align], widths: &[usize], row: &[String]) -> String {
    let cells: Vec<String> = row
        .iter()
        .zip(columns.iter().zip(widths))
        .map(|(cell, (align, total))| {
            let pad = " ".repeat(total.saturating_sub(width(cell)));
            match align {
                Align::Left => format!("{cell}{pad}"),
                Align::Right => format!("{pad}{cell}"),
            }
        })
        .collect();
    cells.join("  ").trim_end().to_string()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "10".into(), "x".into()], vec!["long".into(), "9".into()]];
        let lines = lay_out(&[Align::Left, Align::Right, Align::Left], &rows);
        assert_eq!(lines, ["a     10  x", "long   9"]);
        let columns = [("NAME", Align::Left), ("N", Align::Right)];
        let lines = tabulate(&columns, [vec!["a".into(), "10".into()]]);
        assert_eq!(lines, ["NAME   N", "a     10"]);
    }
}
