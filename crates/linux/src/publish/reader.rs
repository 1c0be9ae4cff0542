//! Reads the statistics that another process publishes.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::board;
use super::error::{Defect, ReadError};
use super::files::{self, FileError, Parts};
use super::header::{ProgramId, Request};
use super::process;
use super::snapshot::Snapshot;

/// Time between two looks for the answer.
const PAUSE: Duration = Duration::from_millis(2);

/// Reads what a program publishes.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// Opened when the reader was made, to read how far the program has come before it hears of
    /// another look.
    file: File,
    fixed: ProgramId,
    /// Requests so far.
    requests: u64,
    /// Makes numbers of requests that no other reader makes: see [`number`](Self::number).
    keys: RandomState,
}

impl Reader {
    /// A reader of the file at `path`, which a program that runs has published.
    ///
    /// # Errors
    /// [`ReadError`]; nothing in the file is trusted.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ReadError> {
        let path = path.into();
        let opened = files::open(&path, false).and_then(|file| Ok((Parts(&file).fixed()?, file)));
        let (fixed, file) = opened.map_err(|error| at(&path, error))?;
        let reader = Reader { path, file, fixed, requests: 0, keys: RandomState::new() };
        if reader.is_alive() { Ok(reader) } else { Err(reader.gone()) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.fixed.pid
    }

    /// Whether the program runs.
    pub fn is_alive(&self) -> bool {
        process::began(self.fixed.pid) == Some(self.fixed.began)
    }

    fn gone(&self) -> ReadError {
        ReadError::Gone { path: self.path.clone(), pid: self.fixed.pid }
    }

    /// Has the program write a snapshot of what is there now, and reads it. Waits at most `limit`
    /// for it.
    ///
    /// # Errors
    /// [`ReadError`]: among others, that the program has ended meanwhile, or does not answer.
    pub fn refresh(&mut self, limit: Duration) -> Result<Snapshot, ReadError> {
        let begin = Instant::now();
        // The program may be at one already, for another look: that is older.
        let begun = board::begun(&Parts(&self.file)).map_err(|error| at(&self.path, error))?;
        let file = self.reopen(false)?;
        let parts = Parts(&file);
        loop {
            // Before the look: the last snapshot may have come before the end.
            let is_removed = file.metadata().is_ok_and(|file| file.nlink() == 0);
            let message = board::read(&parts).map_err(|error| at(&self.path, error))?;
            if let Some((_, message)) = message.filter(|&(sequence, _)| sequence > begun) {
                return self.decode(&message);
            }
            if !self.is_alive() {
                return Err(self.gone());
            }
            if is_removed {
                return Err(ReadError::Withdrawn { path: self.path.clone(), pid: self.fixed.pid });
            }
            if begin.elapsed() >= limit {
                return Err(ReadError::NoAnswer { path: self.path.clone(), pid: self.fixed.pid });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Opens the file once more, which the program is told of, and checks that it is the same one.
    fn reopen(&self, write: bool) -> Result<File, ReadError> {
        let file = match files::open(&self.path, write) {
            // The program removes it when it ends.
            Err(_) if !self.is_alive() => return Err(self.gone()),
            Err(FileError::Io(error)) if error.kind() == ErrorKind::NotFound => {
                return Err(ReadError::Withdrawn { path: self.path.clone(), pid: self.fixed.pid });
            }
            file => file.map_err(|error| at(&self.path, error))?,
        };
        let are_same = files::are_same(&file, &self.file).map_err(FileError::Io);
        let fixed = are_same.and_then(|are_same| {
            if are_same { Parts(&file).fixed() } else { Err(Defect::Replaced.into()) }
        });
        match fixed {
            Ok(fixed) if fixed == self.fixed => Ok(file),
            Err(error) if self.is_alive() => Err(at(&self.path, error)),
            _ => Err(self.gone()),
        }
    }

    fn decode(&self, message: &[u8]) -> Result<Snapshot, ReadError> {
        serde_json::from_slice(message).map_err(|error| {
            let defect = Defect::Contents(error.to_string());
            ReadError::Defect { path: self.path.clone(), defect }
        })
    }

    /// Asks the program for a drain; returns the number that
    /// [`DrainAnswer::request`](super::DrainAnswer::request) will have. The answer is in a snapshot
    /// that follows, unless another reader asks before the program has looked: the last request is
    /// answered. A program that refuses drains says so there.
    ///
    /// # Errors
    /// [`ReadError`]: when the file cannot be written, or is another one by now.
    pub fn ask(&mut self, request: Request) -> Result<u64, ReadError> {
        let number = self.number();
        let file = self.reopen(true)?;
        let written = Parts(&file).set_request(request.encode(number));
        written.map_err(|error| at(&self.path, error))?;
        Ok(number)
    }

    /// A number for a request. Readers share the file, and its program takes requests of equal
    /// numbers for one: also those of a process and its forked child, whose keys are equal, and of
    /// two children that begin a PID namespace each, whose process ids are equal, too.
    fn number(&mut self) -> u64 {
        self.requests += 1;
        let one = (std::process::id(), Instant::now(), self.requests);
        // 0 is answered from the beginning.
        self.keys.hash_one(one).max(1)
    }
}

fn at(path: &Path, error: FileError) -> ReadError {
    let path = path.to_owned();
    match error {
        FileError::Io(error) => ReadError::Io { path, error },
        FileError::Defect(defect) => ReadError::Defect { path, defect },
    }
}

/// A file that [`find`] found.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishedFile {
    /// The file.
    pub path: PathBuf,
    /// A reader of it, or why it cannot be read.
    pub reader: Result<Reader, ReadError>,
}

/// The files in shared memory that programs of this user publish, or have left behind.
pub fn find() -> Vec<PublishedFile> {
    let mut paths: Vec<PathBuf> =
        files::directories().iter().flat_map(|directory| files::in_directory(directory)).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| PublishedFile { reader: Reader::open(&path), path })
        // Other users' are their own business.
        .filter(|found| !is_foreign(&found.reader))
        .collect()
}

fn is_foreign(reader: &Result<Reader, ReadError>) -> bool {
    match reader {
        Err(ReadError::Defect { defect: Defect::Owner { .. }, .. }) => true,
        Err(ReadError::Io { error, .. }) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}
