//! The project that the machines' kernbench builds: sources of Linux's own, copied beside a
//! Makefile of ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use xtask::source::Source;
use xtask::tools::{folder, write_if_changed};

/// The folder in Linux's source, and those in it, whose files are copied.
const FROM: &str = "scripts/dtc";
const FOLDERS: [&str; 2] = ["", "libfdt"];
/// Endings of what is compiled.
const ENDINGS: [&str; 4] = ["c", "h", "l", "y"];

/// Copies the project to a folder of `cache`, which it returns.
pub fn copy(root: &Path, cache: &Path, source: &Source) -> Result<PathBuf> {
    let to = folder(cache.join("project"))?;
    for inner in FOLDERS {
        let from = source.folder.join(FROM).join(inner);
        let into = folder(to.join(inner))?;
        let entries = fs::read_dir(&from)
            .with_context(|| format!("this version of Linux has no {}", from.display()))?;
        for entry in entries {
            let path = entry?.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if let (true, Some(name)) = (ending.is_some_and(is_wanted), path.file_name()) {
                write_if_changed(&into.join(name), &fs::read(&path)?)?;
            }
        }
    }
    let makefile = fs::read(root.join("examples/linux/init/kernbench.mk"))?;
    write_if_changed(&to.join("Makefile"), &makefile)?;
    Ok(to)
}

fn is_wanted(ending: &str) -> bool {
    ENDINGS.contains(&ending)
}
