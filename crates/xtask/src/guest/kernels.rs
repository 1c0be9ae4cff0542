//! The kernels of guests: Debian's as they are, and one that is built from Debian's source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{CROSS, PageSize};
use crate::archive::{Archive, BOOKWORM, NEWEST, TRIXIE};
use crate::source::{Source, source};
use crate::tools::{self, run};

/// The package of the source that a kernel is built from, and the options that it is built with.
const SOURCE: &str = "linux-source-6.1";
const OPTIONS: &str = include_str!("arm64.config");

/// A kernel, and the C library that programs have on it.
pub struct Kernel {
    pub image: PathBuf,
    /// The folder of a newer C library than the cross compiler's.
    pub libraries: Option<PathBuf>,
}

/// Fetches or builds the kernel with pages of this size; the newest that Debian has if `newest`.
pub fn kernel(cache: &Path, page_size: PageSize, newest: bool) -> Result<Kernel> {
    let of_release = |image| Ok(Kernel { image, libraries: None });
    match (page_size, newest) {
        (PageSize::Kib4, false) => of_release(fetch(cache, &BOOKWORM, "linux-image-arm64")?),
        (PageSize::Kib16, false) => of_release(fetch(cache, &TRIXIE, "linux-image-arm64-16k")?),
        (PageSize::Kib64, false) => of_release(build(cache)?),
        (PageSize::Kib4, true) => {
            let image = fetch(cache, &NEWEST, "linux-image-arm64")?;
            Ok(Kernel { image, libraries: Some(c_library(cache)?) })
        }
        (_, true) => bail!("the newest kernel is booted with pages of 4 KiB: omit --page-size"),
    }
}

/// The newest kernel of a release, of those that `package` stands for.
fn fetch(cache: &Path, release: &[(&str, &str)], package: &str) -> Result<PathBuf> {
    let archive = open(cache, release)?;
    let package = archive.dependency(package, "linux-image-")?;
    // Since 7.2 the image lies in a package of its own.
    let package = archive.dependency(&package, "linux-binary-").unwrap_or(package);
    let at = unpacked(&archive, cache, &package, "*/vmlinuz*", "vmlinuz")?;
    Ok(at.join("vmlinuz"))
}

/// The folder of the newest C library, beside the newest kernel.
fn c_library(cache: &Path) -> Result<PathBuf> {
    let archive = open(cache, &NEWEST)?;
    let version = archive.version("libc6")?;
    let at = cache.join(format!("libc6_{version}"));
    if !at.exists() {
        eprintln!("fetching libc6 {version}");
        let file = archive.fetch(cache, "libc6", &version)?;
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" \
            | tar x -C \"$2\" --wildcards --transform='s,.*/,,' './usr/lib/*/*.so.*'";
        archive.unpack(unpack, &file, &at)?;
    }
    Ok(at)
}

fn open(cache: &Path, release: &[(&str, &str)]) -> Result<Archive> {
    eprintln!("reading the archive's lists");
    Archive::open_for(cache, release, "arm64")
}

/// The folder with the one file of a package that `pattern` matches.
fn unpacked(
    archive: &Archive,
    cache: &Path,
    package: &str,
    pattern: &str,
    name: &str,
) -> Result<PathBuf> {
    let version = archive.version(package)?;
    let at = cache.join(format!("{package}_{version}"));
    if !at.join(name).exists() {
        eprintln!("fetching {package} {version}");
        let file = archive.fetch(cache, package, &version)?;
        let unpack = format!(
            "dpkg-deb --fsys-tarfile \"$1\" | tar xO --wildcards '{pattern}' >\"$2\"/{name}"
        );
        archive.unpack(&unpack, &file, &at)?;
    }
    Ok(at)
}

/// Builds a kernel with pages of 64 KiB, which Debian has none with.
fn build(cache: &Path) -> Result<PathBuf> {
    check_installed()?;
    let archive = open(cache, &BOOKWORM)?;
    let source = source(&archive, cache, SOURCE)?;
    let out = tools::folder(cache.join(format!("build-64k-{}", source.version)))?;
    let image = out.join("arch/arm64/boot/Image");
    let wanted = format!("{OPTIONS}CONFIG_ARM64_64K_PAGES=y\n");
    let stamp = out.join("options");
    if image.exists() && fs::read_to_string(&stamp).is_ok_and(|now| now == wanted) {
        return Ok(image);
    }
    eprintln!("building Linux {} with pages of 64 KiB", source.version);
    let log = out.join("log");
    let config = out.join(".config");
    run(make(&source, &out).arg("allnoconfig"), &log)?;
    // The last line about an option is the one that counts.
    let none = fs::read_to_string(&config)?;
    fs::write(&config, format!("{none}\n{wanted}"))?;
    run(make(&source, &out).arg("olddefconfig"), &log)?;
    check_options(&fs::read_to_string(&config)?, &wanted)?;
    let jobs = 1 + std::thread::available_parallelism().map_or(1, usize::from);
    run(make(&source, &out).arg(format!("-j{jobs}")).arg("Image"), &log)
        .with_context(|| format!("Linux {} does not build", source.version))?;
    fs::write(&stamp, &wanted)?;
    Ok(image)
}

fn make(source: &Source, out: &Path) -> Command {
    let mut make = Command::new("make");
    make.current_dir(&source.folder).arg("ARCH=arm64").arg(format!("CROSS_COMPILE={CROSS}"));
    make.arg(format!("O={}", out.display())).env("KBUILD_BUILD_TIMESTAMP", "pagedepot");
    make
}

fn check_installed() -> Result<()> {
    for program in ["make", "flex", "bison", "bc"] {
        let found = tools::output(Command::new(program).arg("--version"));
        found.with_context(|| format!("{program} is needed to build Linux (Debian: {program})"))?;
    }
    Ok(())
}

/// Fails unless each option is as it should be: a test that needs one would be left out.
fn check_options(config: &str, wanted: &str) -> Result<()> {
    let lines: Vec<_> = config.lines().collect();
    let options = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    let dropped: Vec<_> = options.filter(|line| !lines.contains(line)).collect();
    if dropped.is_empty() { Ok(()) } else { bail!("Linux does not take {}", dropped.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_kernel_drops_are_named() {
        let config = "CONFIG_A=y\n# CONFIG_B is not set\n";
        check_options(config, "# why\nCONFIG_A=y\n").unwrap();
        let error = check_options(config, "CONFIG_A=y\nCONFIG_B=y\n").unwrap_err().to_string();
        assert!(error.contains("CONFIG_B=y") && !error.contains("CONFIG_A"), "{error}");
    }
}
