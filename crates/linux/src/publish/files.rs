//! The file: where it is made, and its parts as cells.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::board::Cells;
use super::error::Defect;
use super::header::{
    ANSWERED_AT, FIXED_BYTES, LENGTH_AT, MESSAGE_AT, MESSAGE_BYTES_MAX, ProgramId, REQUEST_AT,
    REQUEST_BYTES, SEQUENCE_AT,
};
use crate::system::limits::file_bytes_max;

/// Suffix after the process id and a number.
const SUFFIX: &str = ".stats";
const PREFIX: &str = "pagedepot-";
/// Files that a process tries in order, the first of which tell a user which process it is.
const ORDERED: u64 = 8;
/// Files that it tries then, with numbers that no other user can guess and take beforehand.
const GUESSES: u64 = 8;

/// Directories in shared memory, the best first.
pub(super) fn directories() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.filter(|directory| directory.is_absolute());
    own.into_iter().chain([PathBuf::from("/dev/shm")]).collect()
}

/// The files of programs in a directory, whatever is in them.
pub(super) fn in_directory(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(PREFIX) && name.ends_with(SUFFIX)
    };
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect()
}

/// Makes a file in a directory that no other process has. Never follows a link.
pub(super) fn create_in(directory: &Path) -> Result<(PathBuf, File), (PathBuf, io::Error)> {
    let pid = std::process::id();
    let mut last = None;
    let random = RandomState::new();
    let guesses = (0..GUESSES).map(|guess| random.hash_one(guess));
    for number in (0..ORDERED).chain(guesses) {
        let path = directory.join(format!("{PREFIX}{pid}-{number}{SUFFIX}"));
        match create(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // This process's, or that of one which had its number and has ended, or another
                // user's: anyone may make files in `/dev/shm`. Another number is as good.
                last = Some((path, error));
            }
            Err(error) => return Err((path, error)),
        }
    }
    Err(last.expect("at least one number was tried"))
}

fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // Whatever the process's mask leaves of the mode.
    rustix::fs::fchmod(&file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    Ok(file)
}

/// The reason why a file cannot be used.
#[derive(Debug)]
pub(super) enum FileError {
    Io(io::Error),
    Defect(Defect),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        FileError::Io(error)
    }
}

impl From<Defect> for FileError {
    fn from(defect: Defect) -> Self {
        FileError::Defect(defect)
    }
}

/// Opens a file of this user that a program may have published, to read and perhaps to write. Waits
/// for nothing, follows no link, and trusts nothing but the permissions.
pub(super) fn open(path: &Path, write: bool) -> Result<File, FileError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened =
        OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path);
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(Defect::NotAFile.into());
        }
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Defect::NotAFile.into());
    }
    let (uid, own) = (metadata.uid(), geteuid().as_raw());
    // Root may read what is anybody's.
    if uid != own && own != 0 {
        return Err(Defect::Owner { uid }.into());
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Defect::Exposed { mode }.into());
    }
    Ok(file)
}

/// Whether two open files are one.
pub(super) fn are_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// The file's parts. Read and written by system calls: a mapping could be truncated behind its
/// user's back, which ends in `SIGBUS`.
pub(super) struct Parts<'f>(pub &'f File);

impl Parts<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], FileError> {
        let mut bytes = [0; N];
        match self.0.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Defect::Truncated { bytes: self.0.metadata()?.len() }.into())
            }
            read => Ok(read.map(|()| bytes)?),
        }
    }

    fn number(&self, at: u64) -> Result<u64, FileError> {
        Ok(u64::from_le_bytes(self.bytes(at)?))
    }

    fn set_number(&self, at: u64, to: u64) -> Result<(), FileError> {
        self.put(&to.to_le_bytes(), at)
    }

    /// Writes, unless the file would become larger than this process may make files: the kernel
    /// would end the program by `SIGXFSZ`.
    fn put(&self, bytes: &[u8], at: u64) -> Result<(), FileError> {
        let end = at + bytes.len() as u64;
        if file_bytes_max().is_some_and(|limit| end > limit) {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        Ok(self.0.write_all_at(bytes, at)?)
    }

    pub fn fixed(&self) -> Result<ProgramId, FileError> {
        Ok(ProgramId::decode(&self.bytes::<FIXED_BYTES>(0)?)?)
    }

    pub fn set_fixed(&self, fixed: ProgramId) -> Result<(), FileError> {
        // Also what lies between, so that nothing in front of the snapshot is a hole.
        let mut bytes = [0; MESSAGE_AT as usize];
        bytes[..FIXED_BYTES].copy_from_slice(&fixed.encode());
        self.put(&bytes, 0)
    }

    pub fn request(&self) -> Result<[u8; REQUEST_BYTES], FileError> {
        self.bytes(REQUEST_AT)
    }

    pub fn set_request(&self, request: [u8; REQUEST_BYTES]) -> Result<(), FileError> {
        self.put(&request, REQUEST_AT)
    }

    pub fn answered(&self) -> Result<u64, FileError> {
        self.number(ANSWERED_AT)
    }

    pub fn set_answered(&self, request: u64) -> Result<(), FileError> {
        self.set_number(ANSWERED_AT, request)
    }
}

impl Cells for Parts<'_> {
    type Error = FileError;
    type Message = Vec<u8>;

    fn sequence(&self) -> Result<u64, FileError> {
        self.number(SEQUENCE_AT)
    }

    fn set_sequence(&self, to: u64) -> Result<(), FileError> {
        self.set_number(SEQUENCE_AT, to)
    }

    fn read(&self) -> Result<Vec<u8>, FileError> {
        let (length, size) = (self.number(LENGTH_AT)?, self.0.metadata()?.len());
        if length > MESSAGE_BYTES_MAX {
            return Err(Defect::TooLarge { bytes: length }.into());
        }
        if length > size.saturating_sub(MESSAGE_AT) {
            return Err(Defect::Truncated { bytes: size }.into());
        }
        let mut message = vec![0; length as usize];
        match self.0.read_exact_at(&mut message, MESSAGE_AT) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Defect::Truncated { bytes: self.0.metadata()?.len() }.into())
            }
            read => Ok(read.map(|()| message)?),
        }
    }

    fn write(&self, message: &Vec<u8>) -> Result<(), FileError> {
        self.put(message, MESSAGE_AT)?;
        self.set_number(LENGTH_AT, message.len() as u64)
    }
}
