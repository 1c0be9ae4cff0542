//! The parts that listings of zones below `/proc` share: each listing is whole, and lists a zone
//! once.

use std::collections::BTreeMap;

use super::input::without_mark;
use super::reader::printable;

/// Most characters of a line that an error shows.
const EXCERPT_CHARS_MAX: usize = 60;

/// The text without a byte-order mark.
///
/// # Errors
/// When it does not end in a line end: then its last number may be cut.
pub fn whole(text: &str) -> Result<&str, String> {
    let text = without_mark(text);
    let last = text.rsplit('\n').next().unwrap_or_default();
    if last.trim().is_empty() {
        return Ok(text);
    }
    Err(format!(
        "its last line, {}, has no line end, so the rest may be missing (a file that is whole \
         needs one)",
        excerpt(last)
    ))
}

/// A line's beginning, quoted and printable.
pub fn excerpt(line: &str) -> String {
    let beginning: String = line.trim().chars().take(EXCERPT_CHARS_MAX).collect();
    format!("`{}`", printable(&beginning))
}

/// The number of a NUMA node.
pub fn node(word: &str) -> Option<u32> {
    word.trim_end_matches(',').parse().ok().filter(|&node| node < 1 << 16)
}

/// The zones that a listing has named so far, and in which lines.
#[derive(Default)]
pub struct ListedZones(BTreeMap<(u32, String), usize>);

impl ListedZones {
    /// Notes a zone that a line, counted from 1, lists.
    ///
    /// # Errors
    /// When a line above listed it.
    pub fn add(&mut self, node: u32, name: &str, line: usize) -> Result<(), String> {
        match self.0.insert((node, name.to_owned()), line) {
            None => Ok(()),
            Some(first) => Err(format!(
                "line {line} lists node {node}, zone {} a second time, after line {first}, so it \
                 is more than one reading",
                printable(name)
            )),
        }
    }
}
