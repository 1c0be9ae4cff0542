//! The terminal that text is written for: its width, and colours.

use std::env;
use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;

use super::block::wrapped;

/// Columns where neither a terminal nor `COLUMNS` says how many there are.
const WIDTH_DEFAULT: usize = 100;
/// Fewest columns that text is laid out for: in fewer, no table is left.
const WIDTH_MIN: usize = 40;

/// Marks a figure that is better than what it is compared with.
pub const BETTER: char = '▲';
/// Marks a figure that is worse.
pub const WORSE: char = '▼';
/// Begins a line that warns.
pub const WARNING: &str = "warning: ";

/// Columns of the terminal on stdout, or else on stderr; else of `COLUMNS`; else 100.
pub fn width() -> usize {
    let of_terminal = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr()));
    let columns = of_terminal.ok().map(|size| usize::from(size.ws_col)).filter(|&n| n > 0);
    let given = || env::var("COLUMNS").ok()?.parse().ok();
    columns.or_else(given).unwrap_or(WIDTH_DEFAULT).max(WIDTH_MIN)
}

/// Columns of the terminal on stderr, or else as [`width`].
pub fn width_of_stderr() -> usize {
    let of_terminal = tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col));
    of_terminal.filter(|&columns| columns > 0).unwrap_or_else(width)
}

/// A message for stderr: wrapped if that is a terminal, else one line.
pub fn fitted_to_stderr(message: &str) -> String {
    if !io::stderr().is_terminal() {
        return message.to_owned();
    }
    wrapped(message, width()).trim_end().to_owned()
}

/// Whether stdout is a terminal that shows colours, and the user has not refused them
/// (<https://no-color.org>).
fn has_colours() -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !refused && moves_cursor()
}

/// Whether terminals here obey control sequences, by what `TERM` says of them.
pub fn moves_cursor() -> bool {
    env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Colours what is marked as better, worse or a warning, where the terminal shows colours. The
/// marks stay: a colour never says anything alone.
pub fn painted(text: String) -> String {
    if has_colours() { paint(&text) } else { text }
}

fn paint(text: &str) -> String {
    let mut painted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        if body.trim_start().starts_with(WARNING) {
            painted += &format!("\x1b[33m{body}\x1b[0m{end}");
        } else {
            paint_marks(body, &mut painted);
            painted += end;
        }
    }
    painted
}

/// Colours each mark with what follows it, up to two blanks or the end of the line.
fn paint_marks(line: &str, painted: &mut String) {
    let mut rest = line;
    while let Some(at) = rest.find([BETTER, WORSE]) {
        let (before, marked) = rest.split_at(at);
        let (marked, after) = marked.split_at(marked.find("  ").unwrap_or(marked.len()));
        let colour = if marked.starts_with(BETTER) { 32 } else { 31 };
        *painted += &format!("{before}\x1b[{colour}m{marked}\x1b[0m");
        rest = after;
    }
    *painted += rest;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_about_marks_and_leave_the_text() {
        let text = "a  ▲ +3.0 %  b\nwarning: busy\nplain\n▼ -1.0 %";
        let painted = paint(text);
        assert_eq!(
            painted,
            "a  \x1b[32m▲ +3.0 %\x1b[0m  b\n\x1b[33mwarning: busy\x1b[0m\nplain\n\
             \x1b[31m▼ -1.0 %\x1b[0m"
        );
        let codes = ["\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"];
        assert_eq!(codes.iter().fold(painted, |text, code| text.replace(code, "")), text);
    }
}
