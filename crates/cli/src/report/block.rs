//! A report's text: sentences and tables, laid out for a width.
//!
//! A table that is too wide loses the columns of the highest rank, one after another, and says
//! which. A table with a column per design is continued below itself instead: no rival is left out.
//! Cells never wrap.

use comfy_table::{ColumnConstraint, Table, TableComponent, presets};

use super::columns;
use super::table::NONE;
use crate::names::Design;

/// A part of a report.
#[derive(Clone, Debug)]
pub enum Block {
    /// One or more lines, which wrap between words.
    Text(String),
    /// A table.
    Table(Box<Table>),
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Block::Table(Box::new(table))
    }
}

impl From<String> for Block {
    fn from(text: String) -> Self {
        Block::Text(text)
    }
}

impl From<&String> for Block {
    fn from(text: &String) -> Self {
        Block::Text(text.clone())
    }
}

impl From<&str> for Block {
    fn from(text: &str) -> Self {
        Block::Text(text.to_owned())
    }
}

/// The line below the bounds' rows.
const BOUNDS: &str = "* a bound, not an allocator: an array per CPU, without store and limits; its \
                      drain only clears a count.";

/// The blocks as text for a terminal of `width` columns: every line ends with a newline.
pub fn laid_out(blocks: &[Block], width: usize) -> String {
    let mut text = String::new();
    for block in blocks {
        match block {
            Block::Text(lines) => text += &wrapped(lines, width),
            Block::Table(table) => text += &fitted(table, width),
        }
    }
    text
}

/// The meaning of the tables' columns, a line each, and that floors are bounds; empty where all is
/// self-evident.
pub fn legend(blocks: &[Block], width: usize) -> String {
    let tables = || {
        blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(&**table),
            Block::Text(_) => None,
        })
    };
    let mut known: Vec<(String, &str)> = Vec::new();
    for heading in tables().flat_map(|table| kept(table, width)) {
        if let Some(means) = columns::means(&heading)
            && known.iter().all(|(other, _)| *other != heading)
        {
            known.push((heading, means));
        }
    }
    let mut text = String::new();
    let longest = known.iter().map(|(heading, _)| heading.len()).max().unwrap_or(0);
    for (heading, means) in known {
        text += &hanging(&format!("{heading:longest$}  {means}"), width, longest + 2);
    }
    if tables().any(has_bounds) {
        text += &hanging(BOUNDS, width, 2);
    }
    text
}

/// The headings that are left at this width.
fn kept(table: &Table, width: usize) -> Vec<String> {
    let headings = headings(table);
    if designs_from(&headings).is_some() {
        return headings;
    }
    let hidden = to_hide(table, &headings, width);
    let kept = headings.into_iter().enumerate().filter(|(at, _)| !hidden.contains(at));
    kept.map(|(_, heading)| heading).collect()
}

/// Wraps each line between words; continued lines are indented by two more than they begin with.
pub fn wrapped(text: &str, width: usize) -> String {
    text.split('\n').map(|line| hanging(line, width, 2)).collect()
}

fn hanging(line: &str, width: usize, indent: usize) -> String {
    let own = line.len() - line.trim_start().len();
    let indent = " ".repeat((own + indent).min(width / 2));
    let (mut text, mut used, mut is_fresh) = (String::new(), 0, true);
    let wide = |part: &str| part.trim_end().chars().count();
    for mut part in parts(line) {
        if !is_fresh && used + wide(part) > width {
            text.truncate(text.trim_end().len());
            text = text + "\n" + &indent;
            used = indent.len();
        }
        // A word that no line can hold.
        while used + wide(part) > width {
            let at = part.char_indices().nth((width - used).max(1)).map_or(part.len(), |at| at.0);
            text = text + &part[..at] + "\n" + &indent;
            (part, used) = (&part[at..], indent.len());
        }
        text += part;
        used += part.chars().count();
        is_fresh = false;
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The words of a line, each with the blanks behind it; the first also with those before it.
fn parts(line: &str) -> impl Iterator<Item = &str> {
    let start = line.len() - line.trim_start().len();
    let mut rest = line;
    let mut from = start;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = rest[from..].find(' ').map_or(rest.len(), |at| from + at);
        let blanks = rest[word..].len() - rest[word..].trim_start_matches(' ').len();
        let (part, after) = rest.split_at(word + blanks);
        (rest, from) = (after, 0);
        Some(part)
    })
}

fn headings(table: &Table) -> Vec<String> {
    let header = table.header().into_iter().flat_map(|header| header.cell_iter());
    header.map(comfy_table::Cell::content).collect()
}

/// The first column of those that are a design each, if all from there on are.
fn designs_from(headings: &[String]) -> Option<usize> {
    let is_design = |heading: &String| Design::parse(heading).is_ok();
    let first = headings.iter().position(is_design)?;
    headings[first..].iter().all(is_design).then_some(first)
}

fn has_bounds(table: &Table) -> bool {
    let first = table.row_iter().filter_map(|row| row.cell_iter().next());
    let names = first.map(comfy_table::Cell::content).chain(headings(table));
    names.into_iter().any(|name| Design::parse(&name).is_ok_and(Design::is_bound))
}

/// Columns between two cells.
const GAP: usize = 2;

/// Columns of the terminal that the table takes without those hidden.
fn width_without(table: &Table, hidden: &[usize]) -> usize {
    let widths = table.column_max_content_widths();
    let shown = widths.iter().enumerate().filter(|(at, _)| !hidden.contains(at));
    shown.map(|(_, &width)| usize::from(width) + GAP).sum::<usize>().saturating_sub(GAP)
}

/// The columns that have no figure in any row.
fn empty(table: &Table) -> Vec<usize> {
    let columns = 0..table.column_max_content_widths().len();
    let is_empty = |row: &comfy_table::Row, at: usize| {
        row.cell_iter().nth(at).is_none_or(|cell| matches!(&*cell.content(), NONE | ""))
    };
    let has_rows = table.row_iter().next().is_some();
    columns.filter(|&at| has_rows && table.row_iter().all(|row| is_empty(row, at))).collect()
}

/// The columns to leave out at this width, those without figures first.
fn to_hide(table: &Table, headings: &[String], width: usize) -> Vec<usize> {
    let mut hidden = empty(table);
    while width_without(table, &hidden) > width {
        let left = (0..headings.len()).filter(|at| !hidden.contains(at));
        // Of those of one rank, the last.
        let Some(next) = left.max_by_key(|&at| columns::rank(&headings[at])) else { break };
        if columns::rank(&headings[next]) == 0 {
            break;
        }
        hidden.push(next);
    }
    hidden
}

/// The table without the columns that the width leaves no room for.
pub fn fitted(table: &Table, width: usize) -> String {
    let headings = headings(table);
    if let Some(first) = designs_from(&headings) {
        return continued(table, first, width);
    }
    let mut hidden = to_hide(table, &headings, width);
    let mut text = rendered(table, &hidden, width);
    let empty = empty(table);
    hidden.retain(|at| !empty.contains(at));
    hidden.sort_unstable();
    let mut names: Vec<&str> = hidden.iter().map(|&at| headings[at].as_str()).collect();
    names.dedup();
    if !names.is_empty() {
        let left_out = format!("({width} columns leave out: {})", names.join(", "));
        text += &wrapped(&left_out, width);
    }
    text
}

/// Lays out as many of the columns from `first` on beside each other as fit, the next ones below,
/// behind the columns before `first` again.
pub fn continued(table: &Table, first: usize, width: usize) -> String {
    let count = table.column_max_content_widths().len();
    let (mut text, mut from) = (String::new(), first);
    while from < count {
        let without = |to: usize| (first..count).filter(|at| !(from..to).contains(at)).collect();
        let mut to = from + 1;
        while to < count
            && width_without(table, &Vec::from_iter::<Vec<_>>(without(to + 1))) <= width
        {
            to += 1;
        }
        let hidden: Vec<usize> = without(to);
        text += &rendered(table, &hidden, width);
        from = to;
    }
    text
}

fn rendered(table: &Table, hidden: &[usize], width: usize) -> String {
    let mut table = table.clone();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP as u16));
        if hidden.contains(&at) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    let wide = width_without(&table, hidden);
    let bounds: Vec<&str> =
        Design::ALL.iter().filter(|design| design.is_bound()).map(|design| design.name()).collect();
    let mut text = String::new();
    for line in table.to_string().lines() {
        // The last column's padding is blank, or a part of the rule.
        let line: String = line.chars().take(wide.max(1)).collect();
        text += &cut(marked(line + " ", &bounds).trim_end(), width);
        text.push('\n');
    }
    text
}

/// Marks bounds by a star in the blank behind their names, so that no column moves.
fn marked(mut line: String, bounds: &[&str]) -> String {
    for bound in bounds {
        line = line.replace(&format!("{bound} "), &format!("{bound}*"));
    }
    line
}

/// A line that is still too wide: of a name from a file, say.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    fn wide() -> Table {
        let mut table = table::new(["design", "1 CPU", "quartiles", "x floor-rseq", "p50"]);
        table.add_row(["depot", "1.00", "1.00 .. 2.00", "1.10", "9"]);
        table.add_row(["floor-spin", "3.00", "1.00 .. 2.00", "3.10", "9"]);
        table::align(table, 1)
    }

    #[test]
    fn the_columns_of_the_highest_rank_give_way_first() {
        let all = fitted(&wide(), 100);
        assert!(all.lines().all(|line| line.chars().count() <= 52), "{all}");
        let (header, narrow) = (all.lines().next().unwrap(), fitted(&wide(), 45));
        assert!(header.contains("quartiles") && !all.contains("leave out"));
        assert!(!narrow.lines().next().unwrap().contains("quartiles"));
        assert!(narrow.contains("(45 columns leave out: quartiles)"), "{narrow}");
        let least = fitted(&wide(), 12);
        assert!(least.contains("design") && !least.lines().next().unwrap().contains("p50"));
    }

    #[test]
    fn columns_without_a_figure_are_left_out() {
        let mut table = table::new(["design", "drain us", "interrupts", "pending"]);
        table.add_row(["depot", "1.0", NONE, "2"]);
        table.add_row(["spin", "2.0", NONE, NONE]);
        let text = fitted(&table, 80);
        assert!(!text.contains("interrupts") && text.contains("pending"), "{text}");
        assert!(!text.contains("leave out"), "{text}");
        assert!(!legend(&[Block::from(table)], 80).contains("interrupts"));
    }

    #[test]
    fn nothing_is_wider_than_asked_for() {
        let mut designs = table::new(["order", "depot", "spin", "rcu", "magazine", "floor-tls"]);
        designs.add_row(["0", "100.0 / 100.0", "1.00 / 2.00", "1 / 2", "3 / 4", "5 / 6"]);
        for table in [wide(), table::align(designs, 0)] {
            for width in 10..90 {
                let text = fitted(&table, width);
                assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn designs_are_continued_below_and_none_is_left_out() {
        let mut designs = table::new(["order", "depot", "spin", "rcu", "floor-tls"]);
        designs.add_row(["0", "11.0 / 12.0", "13.0 / 14.0", "15.0 / 16.0", "17.0 / 18.0"]);
        let text = fitted(&table::align(designs, 0), 40);
        for cell in ["11.0 / 12.0", "13.0 / 14.0", "15.0 / 16.0", "17.0 / 18.0", "floor-tls*"] {
            assert!(text.contains(cell), "{text}");
        }
        assert_eq!(text.matches("order").count(), 2, "{text}");
    }

    #[test]
    fn bounds_are_marked_and_explained() {
        let blocks = [Block::from(wide()), Block::from("text")];
        let text = laid_out(&blocks, 80);
        assert!(text.contains("floor-spin*") && !text.contains("depot*"), "{text}");
        let legend = legend(&blocks, 80);
        assert!(legend.contains("not an allocator"), "{legend}");
        assert!(legend.contains("x floor-rseq  times the cost"), "{legend}");
        assert!(legend.lines().all(|line| line.chars().count() <= 80), "{legend}");
    }

    #[test]
    fn long_lines_wrap_between_words() {
        assert_eq!(wrapped("aaa bbb ccc\n  d e", 8), "aaa bbb\n  ccc\n  d e\n");
        assert_eq!(wrapped("name  means it", 12), "name  means\n  it\n");
        assert_eq!(wrapped("a bbbbbbbbbbbb c", 8), "a\n  bbbbbb\n  bbbbbb\n  c\n");
        assert_eq!(wrapped("", 8), "\n");
    }
}
