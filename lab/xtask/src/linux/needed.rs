//! Programs of the host that this needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::tools::output;

/// A program, and the Debian package that has it.
const NEEDED: [(&str, &str); 11] = [
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
];

/// Files of libraries that Linux's build tools include, and their packages.
const NEEDED_FILES: [(&str, &str); 2] =
    [("/usr/include/libelf.h", "libelf-dev"), ("/usr/include/openssl/opensslv.h", "libssl-dev")];

/// Checks that all of them are there, before anything is fetched, and names all that are not.
pub fn check_installed(guest: bool) -> Result<()> {
    let is_there = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let qemu = [("qemu-system-x86_64", "qemu-system-x86")];
    let missing: Vec<&str> = NEEDED
        .iter()
        .chain(qemu.iter().filter(|_| guest))
        .filter(|(name, _)| !is_there(name))
        .chain(NEEDED_FILES.iter().filter(|(file, _)| guest && !Path::new(file).exists()))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "these are needed and not there: {0} (Debian, Ubuntu: apt-get install \
         --no-install-recommends {0})",
        missing.join(" ")
    )
}

/// Checks the tools that the library alone needs, as [`check_installed`] checks all.
pub fn check_library() -> Result<()> {
    output(Command::new("ld").arg("--version"))
        .and_then(|_| output(Command::new("objcopy").arg("--version")))
        .map(drop)
        .context("the library is linked by binutils (apt-get install binutils)")
}
