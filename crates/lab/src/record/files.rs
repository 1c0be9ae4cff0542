//! Where things go.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// What a recording consists of.
const ENDINGS: [&str; 4] = [".perf.txt.zst", ".zoneinfo.before.txt", ".zoneinfo.after.txt", ".machine.json"];

/// The files of a recording while it is made. They get their names when all are whole: until then those
/// of an earlier recording stay.
pub struct Files {
    name: PathBuf,
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
        if name.as_os_str().as_bytes().ends_with(b"/") {
            let name = name.display();
            return Err(Failure::Usage(format!(
                "{name} is a directory; give -o a name in it, as in {name}NAME"
            )));
        }
        let with = |ending: &str| joined(name, &format!(".recording{ending}"));
        let [trace, before, after, machine] = ENDINGS.map(with);
        let files = Files {
            name: name.to_owned(),
            trace,
            before,
            after,
            machine,
            data: with(".perf.data"),
            window: with(".window"),
        };
        // Better now than after the command has run.
        write(&files.trace, b"")?;
        if let Some(directory) = ENDINGS.map(|ending| joined(name, ending)).iter().find(|file| file.is_dir())
        {
            let directory = directory.display();
            return Err(Failure::Usage(format!("{directory} is a directory; give -o another name")));
        }
        Ok(files)
    }

    /// Gives them their names; the names.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn keep(self) -> Result<[String; 4], Failure> {
        let made = [&self.trace, &self.before, &self.after, &self.machine];
        for (made, ending) in made.into_iter().zip(ENDINGS) {
            let file = joined(&self.name, ending);
            fs::rename(made, &file).map_err(|error| cannot_write(&file, &error))?;
        }
        Ok(ENDINGS.map(|ending| joined(&self.name, ending).display().to_string()))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [&self.trace, &self.before, &self.after, &self.machine, &self.data, &self.window] {
            // They are not there when nothing was recorded, or all of it kept.
            let _ = fs::remove_file(file);
        }
    }
}

fn joined(name: &Path, ending: &str) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(ending);
    PathBuf::from(file)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    Failure::Usage(format!("cannot write {path}: {error}; give -o a name in a directory of yours"))
}

/// Writes a file.
///
/// # Errors
/// One line that names it.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    fs::write(path, contents).map_err(|error| cannot_write(path, &error))
}
