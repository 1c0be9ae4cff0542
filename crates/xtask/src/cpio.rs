//! The files that a kernel begins with, as one archive (`newc`;
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

/// An archive that grows.
#[derive(Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Cpio {
    /// A folder, and those above it.
    pub fn folder(&mut self, path: &str) {
        let above: Vec<&Path> = Path::new(path).ancestors().collect();
        for folder in above.into_iter().rev() {
            let name = folder.to_str().expect("it is a part of a text").trim_start_matches('/');
            if !name.is_empty() && self.folders.insert(name.to_owned()) {
                self.entry(name, FOLDER, &[], (0, 0));
            }
        }
    }

    /// A file that can be run, and its folders.
    pub fn program(&mut self, path: &str, contents: &[u8]) {
        if let Some(folder) = Path::new(path).parent().and_then(Path::to_str) {
            self.folder(folder);
        }
        self.entry(path.trim_start_matches('/'), PROGRAM, contents, (0, 0));
    }

    /// A character device, by its numbers, in a folder that is there.
    pub fn device(&mut self, path: &str, numbers: (u32, u32)) {
        self.entry(path.trim_start_matches('/'), DEVICE, &[], numbers);
    }

    /// The whole archive.
    pub fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let length = u32::try_from(contents.len()).expect("files are below 4 GiB");
        let name_length = name.len() as u32 + 1;
        let fields =
            [self.entries, mode, 0, 0, 1, 0, length, 0, 0, device.0, device.1, name_length, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    /// Headers and contents begin at multiples of 4.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_each_other() {
        let mut cpio = Cpio::default();
        cpio.folder("/dev");
        cpio.device("/dev/console", (5, 1));
        cpio.program("/a/b/init", b"12345");
        cpio.program("/a/b/other", b"");
        let bytes = cpio.end();
        let number = |at: usize, field: usize| {
            let text = &bytes[at + 6 + 8 * field..at + 14 + 8 * field];
            usize::from_str_radix(std::str::from_utf8(text).unwrap(), 16).unwrap()
        };
        let (mut at, mut seen) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (mode, length, name) = (number(at, 1), number(at, 6), number(at, 11));
            let name = std::str::from_utf8(&bytes[at + 110..at + 109 + name]).unwrap();
            seen.push((name.to_owned(), mode as u32, length, (number(at, 9), number(at, 10))));
            at = (at + 110 + name.len() + 1).next_multiple_of(4);
            at = (at + length).next_multiple_of(4);
        }
        let entry = |name: &str, mode, length| (name.to_owned(), mode, length, (0, 0));
        let console = ("dev/console".to_owned(), DEVICE, 0, (5, 1));
        let expected = [
            entry("dev", FOLDER, 0),
            console,
            entry("a", FOLDER, 0),
            entry("a/b", FOLDER, 0),
            entry("a/b/init", PROGRAM, 5),
            entry("a/b/other", PROGRAM, 0),
            entry("TRAILER!!!", 0, 0),
        ];
        assert_eq!(seen, expected);
    }
}
