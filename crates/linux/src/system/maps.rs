//! The mappings of this process, from `/proc/self/maps`, and the limit on their number. They are
//! read without memory from the heap, because there may be none left, and because the caller may be
//! a signal handler above `malloc`.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{fstat, major, minor};
use rustix::io::Errno;

/// The kernel's `DEFAULT_MAX_MAP_COUNT`, for processes without `/proc`.
const DEFAULT_LIMIT: u32 = 65_530;
/// The identity of a file in `/proc/self/maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileId {
    /// The identity of an open file.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        let stat = fstat(file)?;
        Ok(FileId { major: major(stat.st_dev), minor: minor(stat.st_dev), inode: stat.st_ino })
    }
}

/// A mapping.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct MappingInfo {
    /// The addresses that it covers.
    pub range: Range<usize>,
    pub is_shared: bool,
    /// Offset of its first byte in the file, in bytes.
    pub offset: u64,
    pub file: FileId,
}

/// More bytes than a line has before its path, which is not read.
const LINE_MAX: usize = 128;

impl MappingInfo {
    /// Parses the beginning of a line: `start-end access offset major:minor inode`.
    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.split_ascii_whitespace();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let range = hex(start)? as usize..hex(end)? as usize;
        let is_shared = words.next()?.as_bytes().get(3) == Some(&b's');
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let file = FileId { major: hex(major)? as u32, minor: hex(minor)? as u32, inode };
        Some(MappingInfo { range, is_shared, offset, file })
    }
}

/// Calls `each` with every mapping, in ascending order; `None`: they could not be read to the end.
pub(crate) fn for_each_mapping(mut each: impl FnMut(MappingInfo)) -> Option<()> {
    let mut is_readable = true;
    for_each_line(|line| match MappingInfo::parse(line) {
        Some(mapped) => each(mapped),
        None => is_readable = false,
    })?;
    is_readable.then_some(())
}

/// The number of mappings of this process.
pub(crate) fn count() -> Option<u32> {
    let mut lines = 0;
    for_each_line(|_| lines += 1)?;
    Some(lines)
}

/// Calls `each` with the beginning of every line.
fn for_each_line(mut each: impl FnMut(&[u8])) -> Option<()> {
    let mut file = File::open("/proc/self/maps").ok()?;
    let (mut buf, mut line, mut length) = ([0; 4096], [0; LINE_MAX], 0);
    loop {
        let read = file.read(&mut buf).ok()?;
        if read == 0 {
            return Some(());
        }
        for &byte in &buf[..read] {
            if byte == b'\n' {
                // A path may be cut inside a character.
                let cut =
                    line[..length].utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
                each(&line[..cut]);
                length = 0;
            } else if length < LINE_MAX {
                line[length] = byte;
                length += 1;
            }
        }
    }
}

/// `vm.max_map_count`, if this process may not have so many more mappings.
pub(crate) fn reached_limit(more: u32) -> Option<u32> {
    let limit = system_limit();
    count().filter(|count| count + more >= limit).map(|_| limit)
}

/// `vm.max_map_count`.
pub(crate) fn system_limit() -> u32 {
    // Digits of a u32, and a newline.
    let mut text = [0; 16];
    let read = File::open("/proc/sys/vm/max_map_count").and_then(|mut file| file.read(&mut text));
    let digits = text[..read.unwrap_or(0)].trim_ascii();
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(DEFAULT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_up_to_their_path() {
        let line = "7f0000001000-7f0000003000 rw-s 00002000 00:01 1234    /memfd:a b\u{e4}";
        let file = FileId { major: 0, minor: 1, inode: 1234 };
        let range = 0x7f00_0000_1000..0x7f00_0000_3000;
        let expected = MappingInfo { range, is_shared: true, offset: 0x2000, file };
        assert_eq!(MappingInfo::parse(line.as_bytes()), Some(expected));
        let stack = MappingInfo::parse(b"7ffd000-7ffe000 rw-p 00000000 00:00 0 [stack]").unwrap();
        assert_eq!((stack.is_shared, stack.offset, stack.file.inode), (false, 0, 0));
        for wrong in ["", "7f", "1-2 rw-p", "1-2 rw-p 0 0 0", "1-2 rw-p 0 0:0 x"] {
            assert_eq!(MappingInfo::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no /proc")]
    fn the_limit_is_that_of_the_system() {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let limit = text.ok().and_then(|text| text.trim().parse().ok());
        assert_eq!(system_limit(), limit.unwrap_or(DEFAULT_LIMIT));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the addresses it gives are not those that the kernel lists")]
    fn all_mappings_are_found() {
        let (mut last, mut found) = (0, false);
        let here = (&raw const found).addr();
        for_each_mapping(|mapped| {
            assert!(mapped.range.start >= last && mapped.range.end > mapped.range.start);
            last = mapped.range.end;
            found |= mapped.range.contains(&here);
        })
        .unwrap();
        assert!(found && count().unwrap() > 10);
    }
}
