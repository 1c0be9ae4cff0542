//! The files of a recording.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use pagedepot_cli::failure::Failure;

/// Endings of the files of a recording.
const ENDINGS: [&str; 4] =
    [".perf.txt.zst", ".zoneinfo.before.txt", ".zoneinfo.after.txt", ".machine.json"];

/// Endings of the files that are there where the kernel lets this process read their sources.
const FREE_ENDINGS: [&str; 4] = [
    ".buddyinfo.before.txt",
    ".buddyinfo.after.txt",
    ".pagetypeinfo.before.txt",
    ".pagetypeinfo.after.txt",
];

/// The files of a recording while it is made, under temporary names. They get their final names
/// when all are complete: until then those of an earlier recording stay.
pub struct Files {
    name: PathBuf,
    pub trace: PathBuf,
    pub before: PathBuf,
    pub after: PathBuf,
    pub machine: PathBuf,
    /// perf's own file, in its format.
    pub data: PathBuf,
    pub window: PathBuf,
}

impl Files {
    /// The files of a recording called `name`.
    ///
    /// # Errors
    /// When they cannot be written there, or a recording exists and `replaces` is false.
    pub fn new(name: &Path, replaces: bool) -> Result<Self, Failure> {
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
        let finals = ENDINGS.map(|ending| joined(name, ending));
        if let Some(directory) = finals.iter().find(|file| file.is_dir()) {
            let directory = directory.display();
            return Err(Failure::Usage(format!(
                "{directory} is a directory; give -o another name"
            )));
        }
        // A dangling link counts as a file.
        let earlier = finals.iter().find(|file| fs::symlink_metadata(file).is_ok());
        if let Some(earlier) = earlier.filter(|_| !replaces) {
            let earlier = earlier.display();
            return Err(Failure::Usage(format!(
                "{earlier} is of an earlier recording; give -o another name, or --force to \
                 replace it"
            )));
        }
        // Fail now rather than after the command has run.
        write(&files.trace, b"")?;
        Ok(files)
    }

    /// Opens the file of the events for writing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create_trace(&self) -> Result<fs::File, Failure> {
        fs::File::create(&self.trace).map_err(|error| cannot_write(&self.trace, &error))
    }

    /// Adds the name of the events' file to an error of writing it.
    pub fn named(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Output(error) => cannot_write(&self.trace, &error),
            other => other,
        }
    }

    /// The error for a full disk, if the disk of the files is full.
    pub fn full_disk(&self) -> Option<Failure> {
        // A kilobyte for the note of the window, and some for metadata.
        const NEEDED_BYTES: u64 = 1 << 16;
        let directory = self.trace.parent().filter(|directory| !directory.as_os_str().is_empty());
        let disk = rustix::fs::statvfs(directory.unwrap_or(Path::new("."))).ok()?;
        (disk.f_bavail.saturating_mul(disk.f_frsize) < NEEDED_BYTES)
            .then(|| cannot_write(&self.data, &Errno::NOSPC.into()))
    }

    /// Renames the files to their final names, and returns these.
    ///
    /// # Errors
    /// When one cannot be renamed.
    pub fn keep(self) -> Result<Vec<String>, Failure> {
        let made = [&self.trace, &self.before, &self.after, &self.machine];
        for (made, ending) in made.into_iter().zip(ENDINGS) {
            let file = joined(&self.name, ending);
            fs::rename(made, &file).map_err(|error| cannot_write(&file, &error))?;
        }
        let mut kept = ENDINGS.to_vec();
        for (made, ending) in self.free().into_iter().zip(FREE_ENDINGS) {
            let file = joined(&self.name, ending);
            if made.exists() {
                fs::rename(made, &file).map_err(|error| cannot_write(&file, &error))?;
                kept.push(ending);
            } else {
                // One of an earlier recording would belong to no trace. It may not exist.
                let _ = fs::remove_file(file);
            }
        }
        Ok(kept.iter().map(|ending| joined(&self.name, ending).display().to_string()).collect())
    }

    /// The files about free blocks.
    fn free(&self) -> [PathBuf; 4] {
        FREE_ENDINGS.map(|ending| joined(&self.name, &format!(".recording{ending}")))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let own = [&self.data, &self.window];
        for file in [&self.trace, &self.before, &self.after, &self.machine].into_iter().chain(own) {
            // Best effort: files that were renamed, or never written, do not exist.
            let _ = fs::remove_file(file);
        }
        for file in self.free() {
            // As above.
            let _ = fs::remove_file(file);
        }
    }
}

/// The file about free blocks (`buddyinfo`, `pagetypeinfo`) that goes with one of a zoneinfo.
pub fn beside_zoneinfo(zoneinfo: &Path, what: &str) -> PathBuf {
    let name = zoneinfo.file_name().unwrap_or_default().as_bytes();
    let marks = [&b".zoneinfo.before.txt"[..], b".zoneinfo.after.txt"];
    let stem = marks.iter().find_map(|mark| name.strip_suffix(*mark)).unwrap_or(name);
    let when = if name.ends_with(b".before.txt") { "before" } else { "after" };
    let mut file = std::ffi::OsStr::from_bytes(stem).to_owned();
    file.push(format!(".{what}.{when}.txt"));
    zoneinfo.with_file_name(file)
}

fn joined(name: &Path, ending: &str) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(ending);
    PathBuf::from(file)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return Failure::Run(format!(
            "cannot write {path}: {error}; free some space, or give -o a name on another disk"
        ));
    }
    if error.kind() == io::ErrorKind::FileTooLarge {
        return Failure::Run(format!("cannot write {path}: {error}; raise `ulimit -f`"));
    }
    Failure::Usage(format!("cannot write {path}: {error}; give -o a name in a directory of yours"))
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written; names the file.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    fs::write(path, contents).map_err(|error| cannot_write(path, &error))
}
