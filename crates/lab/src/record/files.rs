//! Where things go.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The files of a recording, and those needed while it is made.
pub struct Files {
    pub trace: PathBuf,
    pub before: PathBuf,
    pub after: PathBuf,
    pub machine: PathBuf,
    /// perf's own.
    pub data: PathBuf,
    pub window: PathBuf,
}

impl Files {
    /// Those of a recording called `name`.
    ///
    /// # Errors
    /// When they cannot be written there.
    pub fn new(name: &Path) -> Result<Self, Failure> {
        let with = |ending: &str| {
            let mut file = name.as_os_str().to_owned();
            file.push(ending);
            PathBuf::from(file)
        };
        let files = Files {
            trace: with(".perf.txt.zst"),
            before: with(".zoneinfo.before.txt"),
            after: with(".zoneinfo.after.txt"),
            machine: with(".machine.json"),
            data: with(".perf.data.tmp"),
            window: with(".window.tmp"),
        };
        // Better now than after the command has run.
        write(&files.trace, b"")?;
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [&self.data, &self.window] {
            // They are not there when nothing was recorded.
            let _ = fs::remove_file(file);
        }
        if fs::metadata(&self.trace).is_ok_and(|file| file.len() == 0) {
            let _ = fs::remove_file(&self.trace);
        }
    }
}

/// Writes a file.
///
/// # Errors
/// One line that names it.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    fs::write(path, contents).map_err(|error| {
        Failure::Usage(format!(
            "cannot write {}: {error}; give -o a name in a directory of yours",
            path.display()
        ))
    })
}
