//! Errors of published statistics.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason why statistics are not published.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// No directory takes the file: the last one that was tried, and why not.
    File {
        /// The file that could not be made.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The system has no watch (inotify) for the file.
    Watch(io::Error),
    /// The system has no thread.
    Thread(io::Error),
    /// This is a child of the process that made the depot.
    Forked,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::File { path, error } if error.kind() == io::ErrorKind::FileTooLarge => {
                write!(
                    f,
                    "cannot write {}: the files of this process may not be so large: raise \
                     `ulimit -f` (RLIMIT_FSIZE)",
                    path.display()
                )
            }
            PublishError::File { path, error } => write!(
                f,
                "cannot make {}: {error}; name a directory by Publisher::directory",
                path.display()
            ),
            PublishError::Watch(error) => {
                write!(f, "cannot watch for readers: {error}; see fs.inotify.max_user_instances")
            }
            PublishError::Thread(error) => write!(f, "no thread for statistics: {error}"),
            PublishError::Forked => f.write_str("the depot is the parent process's"),
        }
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PublishError::File { error, .. }
            | PublishError::Watch(error)
            | PublishError::Thread(error) => Some(error),
            PublishError::Forked => None,
        }
    }
}

/// The fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// It is a symbolic link, a directory, a pipe or a device.
    NotAFile,
    /// It belongs to another user.
    Owner {
        /// The file's owner.
        uid: u32,
    },
    /// Other users may open it.
    Exposed {
        /// The file's permissions.
        mode: u32,
    },
    /// It does not begin as such files do.
    Magic,
    /// It is not the file that the reader opened first.
    Replaced,
    /// Another version of this crate wrote it.
    Version {
        /// The file's version.
        version: u32,
        /// The only one that this crate reads.
        known: u32,
    },
    /// It ends before what it says it has.
    Truncated {
        /// The file's size.
        bytes: u64,
    },
    /// It says that it has more than any program writes.
    TooLarge {
        /// The size that the file names.
        bytes: u64,
    },
    /// The contents are no snapshot: the fault in them.
    Contents(String),
}

/// The reason why statistics cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be opened or read.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is not what a program publishes.
    Defect {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        defect: Defect,
    },
    /// The program that published it has ended.
    Gone {
        /// The file.
        path: PathBuf,
        /// Process id of the program.
        pid: u32,
    },
    /// The program runs and has stopped publishing.
    Withdrawn {
        /// The file that there was.
        path: PathBuf,
        /// Process id of the program.
        pid: u32,
    },
    /// The program runs and does not write.
    NoAnswer {
        /// The file.
        path: PathBuf,
        /// Process id of the program.
        pid: u32,
    },
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Defect::NotAFile => f.write_str("it is no regular file, or a link to one"),
            Defect::Owner { uid } => write!(f, "it belongs to user {uid}, who may write anything"),
            Defect::Exposed { mode } => {
                write!(f, "its permissions are {mode:o}: its owner alone should have some (600)")
            }
            Defect::Magic => f.write_str("no program's statistics are in it"),
            Defect::Replaced => f.write_str("another file lies there now: open it anew"),
            Defect::Version { version, known } => write!(
                f,
                "it has version {version} and this reader knows {known}: use the reader of the \
                 program's own version"
            ),
            Defect::Truncated { bytes } => write!(f, "it ends after {bytes} bytes, too early"),
            Defect::TooLarge { bytes } => write!(f, "it claims to have {bytes} bytes, too many"),
            Defect::Contents(what) => write!(f, "its contents are damaged: {what}"),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            ReadError::Defect { path, defect } => {
                write!(f, "cannot read {}: {defect}", path.display())
            }
            ReadError::Gone { path, pid } => write!(
                f,
                "process {pid}, which published {}, has ended (or is in another container); \
                 remove the file",
                path.display()
            ),
            ReadError::Withdrawn { path, pid } => {
                write!(f, "process {pid} no longer publishes {}", path.display())
            }
            ReadError::NoAnswer { path, pid } => write!(
                f,
                "process {pid}, which published {}, does not answer: is it stopped?",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Defect {}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { error, .. } => Some(error),
            ReadError::Defect { defect, .. } => Some(defect),
            _ => None,
        }
    }
}
