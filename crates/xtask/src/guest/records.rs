//! Records of programs that passed, so that a later run need not run them again.
//!
//! A record is a file with the lines of the console from a program's first to its last. It is valid
//! for the same program, arguments, kernel and libraries, whose digest is its first line.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::boot::ConsoleLine;
use crate::tools;

/// The records of the programs of one machine.
pub struct Records {
    folder: PathBuf,
    /// The hash of all that a machine has beside its programs.
    machine: DefaultHasher,
}

impl Records {
    /// Opens the records of the machine with this name, which begins with these files.
    pub fn open(cache: &Path, machine: &str, files: &[&[u8]]) -> Result<Self> {
        let folder = tools::folder(cache.join("passed").join(machine))?;
        let mut hasher = DefaultHasher::new();
        files.hash(&mut hasher);
        Ok(Records { folder, machine: hasher })
    }

    /// The digest of a program: of its file, and of its line in the machine's list.
    pub fn digest(&self, line: &str, file: &[u8]) -> u64 {
        let mut hasher = self.machine.clone();
        (line, file).hash(&mut hasher);
        hasher.finish()
    }

    /// Reads what the program said when it passed. `None`: it has changed since, or never passed.
    pub fn read(&self, program: &str, digest: u64) -> Option<Vec<ConsoleLine>> {
        let text = fs::read_to_string(self.folder.join(program)).ok()?;
        let (first, rest) = text.split_once('\n')?;
        if first != format!("{digest:x}") {
            return None;
        }
        rest.lines().map(ConsoleLine::parse).collect()
    }

    /// Keeps what a program has said that passed.
    pub fn write(&self, program: &str, digest: u64, said: &[ConsoleLine]) -> Result<()> {
        let lines = said.iter().map(|line| format!("{line}\n"));
        let text = [format!("{digest:x}\n")].into_iter().chain(lines).collect::<String>();
        tools::write_if_changed(&self.folder.join(program), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_program_on_one_machine() {
        let cache = std::env::temp_dir().join(format!("pagedepot-records-{}", std::process::id()));
        let records = Records::open(&cache, "a", &[b"kernel"]).unwrap();
        let digest = records.digest("p\t--x", b"code");
        assert_eq!(records.read("p", digest), None);
        let said: Vec<_> = ["= begin p", "= stops 3", "= untested p: no tracer", "= check p ok"]
            .into_iter()
            .map(|line| ConsoleLine::parse(line).unwrap())
            .collect();
        records.write("p", digest, &said).unwrap();
        assert_eq!(records.read("p", digest), Some(said));
        let others = [records.digest("p\t--y", b"code"), records.digest("p\t--x", b"other")];
        let newer = Records::open(&cache, "a", &[b"newer"]).unwrap();
        for other in others.into_iter().chain([newer.digest("p\t--x", b"code")]) {
            assert_eq!(records.read("p", other), None);
        }
        let elsewhere = Records::open(&cache, "b", &[b"kernel"]).unwrap();
        assert_eq!(elsewhere.read("p", digest), None);
        fs::remove_dir_all(cache).unwrap();
    }
}
