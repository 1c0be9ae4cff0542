//! Linux's source from Debian's archive, by its ordinary client with a state of its own: nothing of
//! the host's apt is read or changed but the archive's public keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tools::{self, folder, run};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The stable release that has 6.1, its updates, and the release that has the newest.
const SOURCES: [(&str, &str); 3] = [
    ("http://deb.debian.org/debian", "bookworm"),
    ("http://deb.debian.org/debian-security", "bookworm-security"),
    ("http://deb.debian.org/debian", "unstable"),
];
/// Large, and needed by no configuration here.
const LEFT_OUT: [&str; 3] =
    ["*/drivers/gpu/drm/amd/include/*", "*/tools/testing/*", "*/Documentation/*/*"];

/// Debian's archive, as of now.
pub struct Archive {
    folder: PathBuf,
    log: PathBuf,
}

/// A source that is there.
#[derive(Clone, Debug)]
pub struct Source {
    /// Debian's version, such as `6.1.192-2`.
    pub version: String,
    /// The tree.
    pub folder: PathBuf,
}

impl Archive {
    /// Reads the lists of packages.
    pub fn open(cache: &Path) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is not there: install the package debian-archive-keyring");
        }
        let at = folder(cache.join("apt"))?;
        for inner in ["lists/partial", "cache/archives/partial"] {
            folder(at.join(inner))?;
        }
        let sources: String = SOURCES
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
             APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\n\
             APT::Sandbox::User \"\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             Acquire::Retries \"3\";\n"
        );
        fs::write(at.join("apt.conf"), options)?;
        let archive = Archive { folder: at.clone(), log: at.join("log") };
        run(archive.apt("apt-get").arg("update"), &archive.log)
            .context("cannot read the package lists of deb.debian.org: is there a network?")?;
        Ok(archive)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// The package of the newest Linux there is, by the package that depends on it.
    pub fn newest(&self) -> Result<String> {
        let depends = tools::output(self.apt("apt-cache").args(["depends", "linux-source"]))?;
        let package = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|package| package.starts_with("linux-source-"));
        Ok(package.context("linux-source depends on no version")?.to_owned())
    }

    /// Fetches and unpacks a package of Linux's source, unless its newest version is there already.
    pub fn source(&self, cache: &Path, package: &str) -> Result<Source> {
        let shown = tools::output(self.apt("apt-cache").args(["policy", package]))?;
        let version = shown
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))
            .filter(|version| *version != "(none)")
            .with_context(|| format!("the archive has no {package}"))?
            .to_owned();
        let at = cache.join(format!("source-{version}"));
        if at.join("Makefile").exists() {
            return Ok(Source { version, folder: at });
        }
        let packages = folder(cache.join("packages"))?;
        let wanted = format!("{package}={version}");
        run(self.apt("apt-get").current_dir(&packages).args(["download", &wanted]), &self.log)
            .with_context(|| format!("cannot fetch {wanted}"))?;
        let file = packages.join(format!("{package}_{}_all.deb", version.replace(':', "%3a")));
        // Complete or not there.
        let partial = cache.join(format!("partial-{version}"));
        let _ = fs::remove_dir_all(&partial);
        folder(partial.clone())?;
        let unpack = format!(
            "set -o pipefail; dpkg-deb --fsys-tarfile \"$1\" | tar xO ./usr/src/{package}.tar.xz | \
             tar xJ --strip-components=1 -C \"$2\" {}",
            LEFT_OUT.map(|pattern| format!("--exclude='{pattern}'")).join(" ")
        );
        run(Command::new("bash").args(["-c", &unpack, "-"]).arg(&file).arg(&partial), &self.log)
            .with_context(|| format!("cannot unpack {}", file.display()))?;
        fs::rename(&partial, &at).context("cannot name the source's folder")?;
        // It takes as much room again, and apt can fetch it again.
        let _ = fs::remove_file(file);
        Ok(Source { version, folder: at })
    }
}
