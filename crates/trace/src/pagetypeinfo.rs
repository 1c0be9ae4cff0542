//! `/proc/pagetypeinfo`: how many pageblocks of each zone have which migratetype. Only root may
//! read it.

use std::path::Path;

use super::error::TraceError;
use super::input::read_whole;
use super::listing::{self, ListedZones};

/// Pageblocks by migratetype, over all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pagetypeinfo {
    /// The name of each migratetype, and the number of its pageblocks.
    pub pageblocks: Vec<(String, u64)>,
    /// The order of a pageblock, where the file tells it.
    pub pageblock_order: Option<u32>,
}

/// The migratetypes whose pages can be moved; the others taint their pageblocks.
const MOVABLE: [&str; 3] = ["Movable", "CMA", "Isolate"];

/// The beginning of the table that is read.
const HEADING: &str = "Number of blocks type";

impl Pagetypeinfo {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read or is no pagetypeinfo.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let text = read_whole(path, |name, what| TraceError::NotPagetypeinfo { name, what })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads the text of the file that errors call `name`.
    ///
    /// # Errors
    /// When there is no table of pageblocks in it, a part of one, or one twice.
    pub fn parse(text: &str, name: &str) -> Result<Self, TraceError> {
        Self::of_text(text)
            .map_err(|what| TraceError::NotPagetypeinfo { name: name.to_owned(), what })
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let text = listing::whole(text)?;
        let mut info = Pagetypeinfo::default();
        let mut listed = ListedZones::default();
        // Each node has a table of its own, which ends at a blank line or another heading.
        let mut in_table = false;
        for (at, line) in (1..).zip(text.lines().map(str::trim)) {
            if let Some(order) = line.strip_prefix("Page block order:") {
                info.pageblock_order = order.trim().parse().ok();
            } else if let Some(names) = line.strip_prefix(HEADING) {
                info.begin_table(names.split_whitespace())
                    .map_err(|why| format!("line {at}: {why}"))?;
                in_table = true;
            } else if !line.starts_with("Node") {
                in_table = false;
            } else if in_table {
                let (node, name) =
                    info.take_zone(line).map_err(|why| format!("line {at}: {why}"))?;
                listed.add(node, &name, at)?;
            }
        }
        if info.pageblocks.is_empty() {
            return Err("it has no table of pageblocks".to_owned());
        }
        Ok(info)
    }

    /// Notes the migratetypes of a table, which all tables have.
    fn begin_table<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let types: Vec<_> = names.map(|name| (name.to_owned(), 0)).collect();
        if self.pageblocks.is_empty() {
            self.pageblocks = types;
        } else if !self.pageblocks.iter().map(|(name, _)| name).eq(types.iter().map(|it| &it.0)) {
            return Err("its migratetypes are not those of the table above it".to_owned());
        }
        Ok(())
    }

    /// Adds a zone's pageblocks: `Node 0, zone   Normal          135            3 ...`.
    fn take_zone(&mut self, line: &str) -> Result<(u32, String), String> {
        let mut words = line.split_whitespace();
        let head = [(); 4].map(|()| words.next().unwrap_or_default());
        let ["Node", node, "zone", name] = head else {
            return Err("it is not one of a zone".to_owned());
        };
        let node = listing::node(node).ok_or_else(|| format!("{node:?} is no node"))?;
        for (_, count) in &mut self.pageblocks {
            let word = words
                .next()
                .ok_or("the zone has fewer numbers than there are migratetypes".to_owned())?;
            let number: u64 =
                word.parse().map_err(|_| format!("{word:?} is no number of pageblocks"))?;
            *count = count.saturating_add(number);
        }
        if words.next().is_some() {
            return Err("the zone has more numbers than there are migratetypes".to_owned());
        }
        Ok((node, name.to_owned()))
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
Node 0, zone   Normal            8           89            3            0            0 
";

    #[test]
    fn pageblocks_are_counted_by_migratetype() {
        let info = Pagetypeinfo::parse(TEXT, "it").unwrap();
        assert_eq!(info.pageblocks[1], ("Movable".to_owned(), 2117));
        assert_eq!(info.tainted(), 1 + 51 + 79 + 2);
        assert_eq!(info.pageblock_order, Some(9));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, says) in [
            ("", "no table"),
            ("Number of blocks type Unmovable Movable\nNode 0, zone DMA 1 x\n", "is no number"),
            (
                "Number of blocks type A B C D E F G\nNode 0, zone DMA 1\n",
                "line 2: the zone has fewer",
            ),
            ("Number of blocks type A\nNode 0, zone DMA 1 2\n", "line 2: the zone has more"),
            ("Number of blocks type A\nNode 0, zone DMA 1", "no line end"),
            (&TEXT.repeat(2), "line 20 lists node 0, zone DMA a second time, after line 8"),
        ] {
            let error = Pagetypeinfo::parse(text, "some file").unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("some file"), "{text}: {error}");
        }
    }
}
