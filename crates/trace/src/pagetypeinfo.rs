//! `/proc/pagetypeinfo`: how many pageblocks of each zone have which migratetype. Only root may
//! read it.

use std::path::Path;

use super::error::TraceError;
use super::parse_file;

/// Pageblocks by migratetype, over all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pagetypeinfo {
    /// The name of each migratetype, and the number of its pageblocks.
    pub pageblocks: Vec<(String, u64)>,
}

/// The migratetypes whose pages can be moved; the others taint their pageblocks.
const MOVABLE: [&str; 3] = ["Movable", "CMA", "Isolate"];

/// How the table begins that is read.
const HEADING: &str = "Number of blocks type";

impl Pagetypeinfo {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read or is no pagetypeinfo.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        parse_file(path, Self::parse)
    }

    /// Reads the text of the file that errors call `name`.
    ///
    /// # Errors
    /// When there is no table of pageblocks in it, or something that should be a number is none.
    pub fn parse(text: &str, name: &str) -> Result<Self, TraceError> {
        let bad =
            |what: &str| TraceError::NotPagetypeinfo { name: name.to_owned(), what: what.into() };
        // The table of each node has a heading of its own; all are alike.
        let headings = text.lines().find_map(|line| line.trim().strip_prefix(HEADING));
        let types: Vec<&str> = headings
            .ok_or_else(|| bad("it has no table of pageblocks"))?
            .split_whitespace()
            .collect();
        let mut info =
            Pagetypeinfo { pageblocks: types.iter().map(|name| ((*name).to_owned(), 0)).collect() };
        let lines = text.lines().skip_while(|line| !line.trim().starts_with(HEADING));
        for line in lines.filter(|line| line.trim().starts_with("Node") && !line.contains("type")) {
            let numbers: Vec<&str> = line.split_whitespace().rev().take(types.len()).collect();
            if numbers.len() < types.len() {
                return Err(bad("a zone has fewer numbers than there are migratetypes"));
            }
            for ((_, count), number) in info.pageblocks.iter_mut().zip(numbers.iter().rev()) {
                let number: u64 =
                    number.parse().map_err(|_| bad("a number of pageblocks is none"))?;
                *count = count.saturating_add(number);
            }
        }
        Ok(info)
    }

    /// Pageblocks that are for pages that cannot be moved. Fewer than hold such pages: where
    /// memory was short, some are in pageblocks for movable ones.
    pub fn tainted(&self) -> u64 {
        let tainting = self.pageblocks.iter().filter(|(name, _)| !MOVABLE.contains(&name.as_str()));
        tainting.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1
Node    0, zone   Normal, type    Unmovable      1    289

Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate 
Node 0, zone      DMA            1            7            0            0            0 
Node 0, zone   Normal           51         2110           79            2            0 

Number of mixed blocks    Unmovable      Movable  Reclaimable   HighAtomic      Isolate 
";

    #[test]
    fn pageblocks_are_counted_by_migratetype() {
        let info = Pagetypeinfo::parse(TEXT, "it").unwrap();
        assert_eq!(info.pageblocks[1], ("Movable".to_owned(), 2117));
        assert_eq!(info.tainted(), 1 + 51 + 79 + 2);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, says) in [
            ("", "no table"),
            ("Number of blocks type Unmovable Movable\nNode 0, zone DMA 1 x\n", "is none"),
            ("Number of blocks type A B C D E F G\nNode 0, zone DMA 1\n", "fewer"),
        ] {
            let error = Pagetypeinfo::parse(text, "some file").unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("some file"), "{text}: {error}");
        }
    }
}
