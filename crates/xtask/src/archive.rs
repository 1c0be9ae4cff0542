//! Debian's archive, by its ordinary client with a state of its own: nothing of the host's apt is
//! read or changed but the archive's public keys.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result};

use crate::tools::{self, folder, run};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The stable release that has Linux 6.1, and its updates.
pub const BOOKWORM: [(&str, &str); 2] = [
    ("http://deb.debian.org/debian", "bookworm"),
    ("http://deb.debian.org/debian-security", "bookworm-security"),
];

/// The release after, that has Linux 6.12, also with pages of 16 KiB, and its updates.
pub const TRIXIE: [(&str, &str); 2] = [
    ("http://deb.debian.org/debian", "trixie"),
    ("http://deb.debian.org/debian-security", "trixie-security"),
];

/// The newest of all: what the next release will have, and what is tried before.
pub const NEWEST: [(&str, &str); 2] = [
    ("http://deb.debian.org/debian", "unstable"),
    ("http://deb.debian.org/debian", "experimental"),
];

/// The release before, that has Linux 5.10, and its updates.
pub const BULLSEYE: [(&str, &str); 2] = [
    ("http://deb.debian.org/debian", "bullseye"),
    ("http://deb.debian.org/debian-security", "bullseye-security"),
];

/// Debian's archive cannot be had here, by no fault of this repository.
#[derive(Debug)]
pub struct Unavailable(pub(crate) String);

impl Display for Unavailable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Debian's archive, as of now.
pub struct Archive {
    folder: PathBuf,
    log: PathBuf,
}

impl Archive {
    /// Reads the lists of packages of `sources`, each an address and a release, for x86-64.
    pub fn open(cache: &Path, sources: &[(&str, &str)]) -> Result<Self> {
        Self::open_for(cache, sources, "amd64")
    }

    /// Reads the lists of packages like [`open`](Self::open), for one of Debian's architectures.
    pub fn open_for(cache: &Path, sources: &[(&str, &str)], architecture: &str) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            let missing = "is not there: install the package debian-archive-keyring";
            return Err(Error::msg(Unavailable(format!("{KEYRING} {missing}"))));
        }
        let at = folder(cache.join("apt"))?;
        for inner in ["lists/partial", "cache/archives/partial"] {
            folder(at.join(inner))?;
        }
        let sources: String = sources
            .iter()
            .map(|(from, suite)| format!("deb [signed-by={KEYRING}] {from} {suite} main\n"))
            .collect();
        fs::write(at.join("sources.list"), sources)?;
        fs::write(at.join("status"), "")?;
        let at_text = at.display();
        let options = format!(
            "Dir::State \"{at_text}\";\nDir::State::lists \"{at_text}/lists\";\n\
             Dir::State::status \"{at_text}/status\";\nDir::Cache \"{at_text}/cache\";\n\
             Dir::Etc::sourcelist \"{at_text}/sources.list\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::Etc::preferencesparts \"-\";\nDir::Log \"{at_text}\";\n\
             APT::Architecture \"{architecture}\";\n\
             APT::Architectures \"{architecture}\";\n\
             APT::Sandbox::User \"\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             Acquire::Retries \"3\";\n"
        );
        fs::write(at.join("apt.conf"), options)?;
        let archive = Archive { folder: at.clone(), log: at.join("log") };
        run(archive.apt("apt-get").arg("update"), &archive.log).context(Unavailable(
            "cannot read the package lists of deb.debian.org: is there a network?".to_owned(),
        ))?;
        Ok(archive)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// The package whose name begins with `prefix` that `package` depends on: its newest version.
    pub fn dependency(&self, package: &str, prefix: &str) -> Result<String> {
        let depends = tools::output(self.apt("apt-cache").args(["depends", package]))?;
        let found = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|package| package.starts_with(prefix));
        Ok(found.with_context(|| format!("{package} depends on no {prefix}*"))?.to_owned())
    }

    /// The newest version of a package.
    pub fn version(&self, package: &str) -> Result<String> {
        let shown = tools::output(self.apt("apt-cache").args(["policy", package]))?;
        let version = shown
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))
            .filter(|version| *version != "(none)");
        Ok(version.with_context(|| format!("the archive has no {package}"))?.to_owned())
    }

    /// Fetches a package; returns its file.
    pub fn fetch(&self, cache: &Path, package: &str, version: &str) -> Result<PathBuf> {
        let packages = folder(cache.join("packages"))?;
        let wanted = format!("{package}={version}");
        run(self.apt("apt-get").current_dir(&packages).args(["download", &wanted]), &self.log)
            .with_context(|| Unavailable(format!("cannot fetch {wanted}")))?;
        let stem = format!("{package}_{}_", version.replace(':', "%3a"));
        let is_it = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                name.strip_prefix(&stem).is_some_and(|rest| rest.ends_with(".deb"))
            })
        };
        let entries = fs::read_dir(&packages)?.filter_map(Result::ok).map(|entry| entry.path());
        let found = entries.into_iter().find(is_it);
        found.with_context(|| format!("apt-get left no {stem}*.deb in {}", packages.display()))
    }

    /// Runs bash with `script`, whose `$1` is the package's file and `$2` a new folder, which is
    /// then named `at`: complete, or not there. The package is removed: apt can fetch it again.
    pub fn unpack(&self, script: &str, file: &Path, at: &Path) -> Result<()> {
        let name = at.file_name().context("a folder with a name")?;
        let partial = at.with_file_name(format!("partial-{}", name.display()));
        let _ = fs::remove_dir_all(&partial);
        folder(partial.clone())?;
        let script = format!("set -o pipefail; {script}");
        run(Command::new("bash").args(["-c", &script, "-"]).arg(file).arg(&partial), &self.log)
            .with_context(|| format!("cannot unpack {}", file.display()))?;
        fs::rename(&partial, at).with_context(|| format!("cannot name {}", at.display()))?;
        let _ = fs::remove_file(file);
        Ok(())
    }
}
