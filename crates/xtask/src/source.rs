//! Linux's source, from Debian's archive.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::archive::Archive;

/// Large, and needed by no configuration here.
const LEFT_OUT: [&str; 3] =
    ["*/drivers/gpu/drm/amd/include/*", "*/tools/testing/*", "*/Documentation/*/*"];

/// A source that is there.
#[derive(Clone, Debug)]
pub struct Source {
    /// Debian's version, such as `6.1.192-2`.
    pub version: String,
    /// The tree.
    pub folder: PathBuf,
}

/// Fetches and unpacks a package of Linux's source, unless its newest version is there already.
pub fn source(archive: &Archive, cache: &Path, package: &str) -> Result<Source> {
    let version = archive.version(package)?;
    let at = cache.join(format!("source-{version}"));
    if !at.join("Makefile").exists() {
        let file = archive.fetch(cache, package, &version)?;
        let unpack = format!(
            "dpkg-deb --fsys-tarfile \"$1\" | tar xO ./usr/src/{package}.tar.xz | \
             tar xJ --strip-components=1 -C \"$2\" {}",
            LEFT_OUT.map(|pattern| format!("--exclude='{pattern}'")).join(" ")
        );
        archive.unpack(&unpack, &file, &at)?;
    }
    Ok(Source { version, folder: at })
}
