//! Baselines: results that are kept by name, to compare with later.
//!
//! They are result files in `$PAGEDEPOT_BASELINES`, or else in `pagedepot/baselines` below
//! `$XDG_STATE_HOME`, or else below `~/.local/state`.

use std::env;
use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;

/// The folder of baselines.
///
/// # Errors
/// When no variable says where.
fn directory() -> Result<PathBuf, Failure> {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
    of("PAGEDEPOT_BASELINES").or_else(|| Some(state()?.join("pagedepot/baselines"))).ok_or_else(
        || {
            Failure::Usage(
                "no place for baselines: set HOME, or PAGEDEPOT_BASELINES to a directory".into(),
            )
        },
    )
}

/// A name that is safe as a file's: letters, digits, `-`, `_` and `.`, and no `.` at the beginning.
///
/// # Errors
/// For any other.
pub fn name(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = !text.is_empty() && text.len() <= 100 && !text.starts_with('.');
    if is_name && text.chars().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err("give a name of letters, digits, '-', '_' and '.'".to_owned())
}

/// The file to save the baseline in; makes the directory.
///
/// # Errors
/// When the directory cannot be made.
pub fn to_save(name: &str) -> Result<PathBuf, Failure> {
    let directory = directory()?;
    fs::create_dir_all(&directory).map_err(|e| {
        let directory = directory.display();
        Failure::Usage(format!(
            "cannot make {directory}: {e}; set PAGEDEPOT_BASELINES to a directory that you may \
             write to"
        ))
    })?;
    Ok(directory.join(format!("{name}.json")))
}

/// The file of a baseline that was saved.
///
/// # Errors
/// Lists those there are.
pub fn saved(name: &str) -> Result<PathBuf, Failure> {
    let directory = directory()?;
    let file = directory.join(format!("{name}.json"));
    if file.is_file() {
        return Ok(file);
    }
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut there: Vec<String> = entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .collect();
    there.sort();
    let there = if there.is_empty() {
        "none is saved yet: --save-baseline NAME saves one".to_owned()
    } else {
        format!("there are {}", there.join(", "))
    };
    Err(Failure::Usage(format!("no baseline is called {name} in {}; {there}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory() {
        for bad in ["", "..", ".hidden", "a/b", "a b", "ä", &"x".repeat(101)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        assert_eq!(name("main-2024.1_x"), Ok("main-2024.1_x".to_owned()));
    }
}
