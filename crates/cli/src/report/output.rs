//! Files of results: tried before anything is measured, and written when all is. The crate of the
//! chores compiles this file, too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that can be written, as far as that is known before it is.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    way: Way,
}

/// The way in which the contents get there.
#[derive(Debug)]
enum Way {
    /// A complete file takes the name, and the place of an older one.
    Replace,
    /// They are written to the file as it is: to a link's end, a pipe, a device, or a file in a
    /// folder where none can be made beside it.
    InPlace(File),
}

impl OutputFile {
    /// Tries to write to a file, which keeps its contents. Of a pipe it waits for the reader.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let way = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                File::create_new(path)?;
                fs::remove_file(path)?;
                Way::Replace
            }
            Err(error) => return Err(error),
            Ok(found) if found.is_file() => {
                let file = File::options().write(true).open(path)?;
                let beside = beside(path);
                match File::create(&beside).and_then(|_| fs::remove_file(&beside)) {
                    Ok(()) => Way::Replace,
                    Err(error) if is_full(&error) => return Err(error),
                    Err(_) => Way::InPlace(file),
                }
            }
            Ok(_) => {
                // The end of a link may be missing.
                let is_there = path.exists();
                Way::InPlace(File::options().write(true).create(!is_there).open(path)?)
            }
        };
        Ok(OutputFile { path: path.to_owned(), way })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the contents.
    ///
    /// # Errors
    /// When they cannot be written. An older file is whole then, unless it is written in place.
    pub fn write(self, contents: &[u8]) -> io::Result<()> {
        match self.way {
            Way::InPlace(mut file) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                file.write_all(contents)
            }
            Way::Replace => {
                let beside = beside(&self.path);
                // In a folder like /tmp a file of another user can be written, but not replaced.
                let move_there =
                    || fs::rename(&beside, &self.path).or_else(|_| fs::write(&self.path, contents));
                let written = fs::write(&beside, contents).and_then(|()| move_there());
                // Best effort: a file that was moved is not there.
                let _ = fs::remove_file(&beside);
                written
            }
        }
    }
}

/// Whether an error is about space that is missing: contents written in place would be lost then.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A name beside `path` that is unique to this process, and no longer than names may be.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".pagedepot.{}.tmp", std::process::id()))
}
