//! The terminal that a live view is drawn on: keys, rows of text, and all as it was at the end.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Interrupt,
    Escape,
    Tab,
    BackTab,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
}

/// The look of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Look {
    #[default]
    Plain,
    Bold,
    Reversed,
    /// Some of its characters are reversed.
    Marked(Range<usize>),
}

/// A row of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub text: String,
    pub look: Look,
}

impl From<&str> for Row {
    fn from(text: &str) -> Self {
        Row { text: text.to_owned(), look: Look::Plain }
    }
}

impl Row {
    /// The row, cut or filled up to `width` characters.
    pub fn fitted(&self, width: usize) -> Row {
        let text: String = self.text.chars().chain(std::iter::repeat(' ')).take(width).collect();
        Row { text, look: self.look.clone() }
    }

    fn painted(&self) -> String {
        let part = |range: Range<usize>| -> String {
            self.text.chars().skip(range.start).take(range.len()).collect()
        };
        match &self.look {
            Look::Plain => self.text.clone(),
            Look::Bold => format!("\x1b[1m{}\x1b[0m", self.text),
            Look::Reversed => format!("\x1b[7m{}\x1b[0m", self.text),
            Look::Marked(marked) => {
                let end = self.text.chars().count();
                let (before, after) =
                    (part(0..marked.start), part(marked.end..end.max(marked.end)));
                format!("{before}\x1b[7m{}\x1b[0m{after}", part(marked.clone()))
            }
        }
    }
}

/// Begins: the alternate screen, no cursor, and no wrapping of rows that are too wide after all.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal of this process, until it is dropped.
pub(super) struct Terminal {
    keyboard: File,
    before: Termios,
    /// The rows that were drawn last, and the size that they were drawn for.
    drawn: (Vec<Row>, (usize, usize)),
}

impl Terminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When there is none.
    pub fn new() -> io::Result<Self> {
        // Not standard input: that may be a pipe.
        let keyboard = File::open("/dev/tty")?;
        let before = tcgetattr(&keyboard)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&keyboard, OptionalActions::Now, &raw)?;
        let terminal = Terminal { keyboard, before, drawn: (Vec::new(), (0, 0)) };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows, of 80 by 24 where the terminal does not tell.
    pub fn size(&self) -> (usize, usize) {
        let told = tcgetwinsize(&self.keyboard).ok();
        let told = told.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        told.filter(|&(columns, rows)| columns > 0 && rows > 0).unwrap_or((80, 24))
    }

    /// Draws all rows, from the first on.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn draw(&mut self, rows: Vec<Row>, size: (usize, usize)) -> io::Result<()> {
        let now = (rows, size);
        if self.drawn == now {
            return Ok(());
        }
        let lines: Vec<String> = now.0.iter().map(|row| row.painted() + "\x1b[K").collect();
        write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))?;
        self.drawn = now;
        Ok(())
    }

    /// Waits for keys; none when none came in that time, or a signal did.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn keys(&mut self, wait: Duration) -> io::Result<Vec<Key>> {
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let ready = match poll(&mut [PollFd::new(&self.keyboard, PollFlags::IN)], Some(&wait)) {
            Err(rustix::io::Errno::INTR) => 0,
            ready => ready?,
        };
        if ready == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = [0; 64];
        match self.keyboard.read(&mut bytes)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(keys(&bytes[..read])),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Best effort: the terminal may be gone.
        let _ = write(LEAVE);
        let _ = tcsetattr(&self.keyboard, OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The keys that a terminal tells by these bytes; those that nothing here is bound to are left out.
fn keys(bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&str, Key); 11] = [
        ("\x1b[A", Key::Up),
        ("\x1b[B", Key::Down),
        ("\x1b[C", Key::Right),
        ("\x1b[D", Key::Left),
        ("\x1bOA", Key::Up),
        ("\x1bOB", Key::Down),
        ("\x1bOC", Key::Right),
        ("\x1bOD", Key::Left),
        ("\x1b[5~", Key::PageUp),
        ("\x1b[6~", Key::PageDown),
        ("\x1b[Z", Key::BackTab),
    ];
    let text = String::from_utf8_lossy(bytes);
    let (mut rest, mut keys) = (&*text, Vec::new());
    while let Some(first) = rest.chars().next() {
        let known = SEQUENCES.iter().find(|(sequence, _)| rest.starts_with(sequence));
        let (key, long) = match (known, first) {
            (Some((sequence, key)), _) => (Some(*key), sequence.len()),
            (None, '\x1b') => other_sequence(rest),
            (None, '\t') => (Some(Key::Tab), 1),
            (None, '\x03') => (Some(Key::Interrupt), 1),
            (None, other) => ((!other.is_control()).then_some(Key::Char(other)), other.len_utf8()),
        };
        keys.extend(key);
        rest = &rest[long..];
    }
    keys
}

/// The escape key alone, or a sequence that is not known, with its length.
fn other_sequence(text: &str) -> (Option<Key>, usize) {
    let Some(rest) = text.strip_prefix("\x1b[") else { return (Some(Key::Escape), 1) };
    let end = rest.find(|c: char| c.is_ascii_alphabetic() || c == '~');
    (None, end.map_or(text.len(), |at| "\x1b[".len() + at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_by_their_sequences() {
        let told = |text: &str| keys(text.as_bytes());
        assert_eq!(told("q\t\x03"), [Key::Char('q'), Key::Tab, Key::Interrupt]);
        assert_eq!(told("\x1b[A\x1b[B\x1b[5~"), [Key::Up, Key::Down, Key::PageUp]);
        assert_eq!(told("\x1b"), [Key::Escape]);
        assert_eq!(told("\x1b[15~x\x1b[Z"), [Key::Char('x'), Key::BackTab]);
        assert_eq!(told("\x1b["), []);
        assert_eq!(told("ä\x01"), [Key::Char('ä')]);
    }

    #[test]
    fn rows_are_cut_filled_and_marked() {
        let row = Row { text: "abcd".to_owned(), look: Look::Marked(1..3) };
        assert_eq!(row.painted(), "a\x1b[7mbc\x1b[0md");
        assert_eq!(row.fitted(2).text, "ab");
        assert_eq!(row.fitted(6).text, "abcd  ");
    }
}
