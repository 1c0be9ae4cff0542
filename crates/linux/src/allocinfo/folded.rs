//! Sites as folded stacks.

use std::fmt;

use super::{AllocInfo, SiteInfo};

/// Folded stacks: `src;cache.rs;cache.rs:31:22 [pages] 8192` for each site. Made by
/// [`AllocInfo::folded`].
#[derive(Clone, Copy, Debug)]
pub struct FoldedStacks<'a>(&'a AllocInfo);

impl AllocInfo {
    /// The sites as stacks of one line each, for tools that draw flame graphs: the parts of the
    /// file's path, the call, and its bytes.
    pub fn folded(&self) -> FoldedStacks<'_> {
        FoldedStacks(self)
    }
}

impl fmt::Display for FoldedStacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for SiteInfo { site, bytes, .. } in &self.0.sites {
            // Semicolons part frames, and the last blank parts the count.
            let path = site.file.replace(';', "_");
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            for part in &parts {
                write!(f, "{part};")?;
            }
            let name = parts.last().unwrap_or(&"?");
            writeln!(f, "{name}:{}:{} [{}] {bytes}", site.line, site.column, site.kind.name())?;
        }
        Ok(())
    }
}
