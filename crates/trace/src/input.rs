//! Files as UTF-8 text, however they were saved: compressed with zstd, in UTF-16, with a byte-order
//! mark. Other kinds of files are known by how they begin, so that errors can name them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use super::error::TraceError;
use super::zstd::{self, ExpandLimit};

/// Bytes by which the kinds of files are told apart.
const START_BYTES: u64 = 64;
/// Most bytes read of a file that is read as a whole: more than the largest machine prints.
const WHOLE_BYTES_MAX: u64 = 64 << 20;
/// The byte-order mark, with which some editors and shells begin a file.
const MARK: char = '\u{feff}';

/// The contents of a file, as UTF-8.
pub struct Input<'i> {
    /// The first bytes of the file.
    pub start: Vec<u8>,
    /// All of it.
    pub text: Box<dyn BufRead + 'i>,
}

impl<'i> Input<'i> {
    /// Looks at how the input begins, and decodes it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(input: impl Read + 'i, limit: ExpandLimit) -> io::Result<Self> {
        let mut found = Self::peek(input)?;
        if zstd::is_zstd(&found.start) {
            found = Self::peek(zstd::Reader::new(found.text, limit))?;
        }
        if let Some(is_big_endian) = is_utf16(&found.start) {
            found =
                Self::peek(Utf16 { input: found.text, is_big_endian, decoded: Cursor::default() })?;
        }
        Ok(found)
    }

    /// The first bytes of an input, and all of it.
    fn peek(mut input: impl Read + 'i) -> io::Result<Self> {
        let mut start = Vec::new();
        input.by_ref().take(START_BYTES).read_to_end(&mut start)?;
        let whole = Cursor::new(start.clone()).chain(input);
        Ok(Input { start, text: Box::new(BufReader::with_capacity(1 << 16, whole)) })
    }
}

/// The text of the file at `path`, for one that is read as a whole.
///
/// # Errors
/// When it cannot be read, is too long, or is no text; `bad` makes errors of the last two.
pub fn read_whole(
    path: &Path,
    bad: impl Fn(String, String) -> TraceError,
) -> Result<String, TraceError> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| Input::open(file, ExpandLimit::default()));
    // Devices may have no end.
    let read = read.and_then(|input| input.text.take(WHOLE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Ok(read) if read as u64 > WHOLE_BYTES_MAX => {
            Err(bad(name, format!("it holds more than {} MiB", WHOLE_BYTES_MAX >> 20)))
        }
        Ok(0) => Err(bad(name, "it is empty".to_owned())),
        Ok(_) => match kind(&bytes) {
            Some(kind) => Err(bad(name, format!("it is {kind}"))),
            None => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        },
        Err(source) => Err(TraceError::Open { name, source }),
    }
}

/// A text without the byte-order mark. One may stand within a file that was put together.
pub fn without_mark(text: &str) -> &str {
    text.trim_start_matches(MARK)
}

/// The kinds of files that hold a trace, though not as text.
pub const PERF_DATA: &str = "a binary perf.data file";
pub const TRACE_DAT: &str = "a binary trace-cmd file";

/// Names the kind of a file that is not text, by its first bytes.
pub fn kind(start: &[u8]) -> Option<&'static str> {
    Some(match start {
        // perf writes its magic as a number: byte order shows.
        [b'P', b'E', b'R', b'F', b'I', b'L', b'E', ..]
        | [_, b'E', b'L', b'I', b'F', b'R', b'E', b'P', ..] => PERF_DATA,
        [0x17, 0x08, 0x44, b't', b'r', b'a', b'c', b'i', b'n', b'g', ..] => TRACE_DAT,
        _ if compression(start).is_some() => "a compressed file",
        [0x7f, b'E', b'L', b'F', ..] => "a program",
        _ if start.contains(&0) => "a binary file",
        _ => return None,
    })
}

/// The program that compressed a file which begins like this.
pub fn compression(start: &[u8]) -> Option<&'static str> {
    Some(match start {
        [0x1f, 0x8b, ..] => "gzip",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [b'B', b'Z', b'h', b'0'..=b'9', ..] => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        [b'P', b'K', 3, 4, ..] => "zip",
        _ => return None,
    })
}

/// Whether a file that begins like this is in UTF-16, and if so, whether it is big-endian. Without
/// a byte-order mark, the zero half of each ASCII character tells.
fn is_utf16(start: &[u8]) -> Option<bool> {
    let &[a, b, c, d, ..] = start else { return None };
    match [a, b] {
        [0xff, 0xfe] if d == 0 => Some(false),
        [0xfe, 0xff] if c == 0 => Some(true),
        _ if a > 0 && b == 0 && c > 0 && d == 0 => Some(false),
        _ if a == 0 && b > 0 && c == 0 && d > 0 => Some(true),
        _ => None,
    }
}

/// Decodes UTF-16.
struct Utf16<R> {
    input: R,
    is_big_endian: bool,
    decoded: Cursor<Vec<u8>>,
}

impl<R: BufRead> Utf16<R> {
    /// The next code unit; `None` at the end, also within a unit.
    fn unit(&mut self) -> io::Result<Option<u16>> {
        let mut bytes = [0; 2];
        for byte in &mut bytes {
            if self.input.read(std::slice::from_mut(byte))? == 0 {
                return Ok(None);
            }
        }
        let unit = if self.is_big_endian { u16::from_be_bytes } else { u16::from_le_bytes };
        Ok(Some(unit(bytes)))
    }

    /// Decodes the next line into `decoded`.
    fn decode(&mut self) -> io::Result<()> {
        let mut units = Vec::new();
        while let Some(unit) = self.unit()? {
            units.push(unit);
            // No half of a surrogate pair looks like a line end.
            if unit == u16::from(b'\n') || units.len() >= 1 << 16 {
                break;
            }
        }
        self.decoded = Cursor::new(String::from_utf16_lossy(&units).into_bytes());
        Ok(())
    }
}

impl<R: BufRead> Read for Utf16<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.decoded.read(buf)?;
        if read > 0 || buf.is_empty() {
            return Ok(read);
        }
        self.decode()?;
        self.decoded.read(buf)
    }
}
