//! The archive that Linux's sources come from, and the newest there.

use std::path::Path;

use anyhow::Result;

use xtask::archive::{Archive, BOOKWORM, BULLSEYE};

/// The archive with 6.1 and the newest, and with 5.10 if `with_old`.
pub fn archive(cache: &Path, with_old: bool) -> Result<Archive> {
    let [stable, updates] = BOOKWORM;
    let mut sources = vec![stable, updates, (stable.0, "unstable")];
    if with_old {
        sources.extend(BULLSEYE);
    }
    Archive::open(cache, &sources)
}

/// The package of the newest Linux there is.
pub fn newest(archive: &Archive) -> Result<String> {
    archive.dependency("linux-source", "linux-source-")
}
