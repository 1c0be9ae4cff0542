//! The choice of the program that `top` shows.

use std::path::Path;

use pagedepot_linux::publish::{PublishedFile, ReadError, Reader, find};

use crate::failure::Failure;

/// A reader of the program that the user names, or of the only one.
pub(super) fn reader(named: Option<&str>) -> Result<Reader, Failure> {
    match named {
        Some(name) => match name.parse::<u32>() {
            Ok(pid) => only(find(), Some(pid)),
            Err(_) => Reader::open(Path::new(name)).map_err(refused),
        },
        None => only(find(), None),
    }
}

/// The error for a program that cannot be shown.
pub(super) fn refused(error: ReadError) -> Failure {
    Failure::Run(error.to_string())
}

fn only(found: Vec<PublishedFile>, pid: Option<u32>) -> Result<Reader, Failure> {
    let (mut readers, mut dead) = (Vec::new(), Vec::new());
    for PublishedFile { reader, .. } in found {
        match reader {
            Ok(reader) if pid.is_none_or(|pid| reader.pid() == pid) => readers.push(reader),
            Err(ReadError::Gone { path, pid: gone }) if pid.is_none_or(|pid| gone == pid) => {
                dead.push(path.display().to_string());
            }
            _ => {}
        }
    }
    let name = |reader: &Reader| reader.path().display().to_string();
    let list = |names: Vec<String>| names.join(", ");
    match readers.len() {
        1 => Ok(readers.remove(0)),
        0 if !dead.is_empty() => Err(Failure::Usage(format!(
            "only programs that have ended left files: {}; remove them",
            list(dead)
        ))),
        0 => Err(Failure::Usage(match pid {
            Some(pid) => format!("process {pid} publishes no depot that this user may read"),
            None => "no program of this user publishes a depot; a program does so by \
                     pagedepot_linux::publish::Publisher"
                .to_owned(),
        })),
        _ => Err(Failure::Usage(format!(
            "several depots are published: name one of {}",
            list(readers.iter().map(name).collect())
        ))),
    }
}
