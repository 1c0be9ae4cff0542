//! `/proc/buddyinfo`: free blocks of each zone by order. Pages that CPUs cache are in none of them.

use std::fs;
use std::path::Path;

use pagedepot::Order;

use super::error::TraceError;
use super::input::read_whole;
use super::listing::{self, ListedZones, excerpt};

/// Free blocks of all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buddyinfo {
    /// Zones, in the order of the file.
    pub zones: Vec<FreeBlocks>,
}

/// Free blocks of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeBlocks {
    /// The zone's NUMA node.
    pub node: u32,
    /// The zone's name.
    pub name: String,
    /// Number of free blocks, by order.
    pub blocks: Vec<u64>,
}

impl Buddyinfo {
    /// The file in which the running kernel shows its free blocks.
    pub const PATH: &'static str = "/proc/buddyinfo";

    /// Reads the running kernel's file; `None` if it cannot be read.
    pub fn here() -> Option<Self> {
        Self::parse(&fs::read_to_string(Self::PATH).ok()?, Self::PATH).ok()
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read or is no buddyinfo.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let text = read_whole(path, |name, what| TraceError::NotBuddyinfo { name, what })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads the text of the file that errors call `name`: lines such as
    /// `Node 0, zone   Normal   6495   1859 ...`.
    ///
    /// # Errors
    /// When it is no buddyinfo, not a whole one, or more than one.
    pub fn parse(text: &str, name: &str) -> Result<Self, TraceError> {
        Self::of_text(text).map_err(|what| TraceError::NotBuddyinfo { name: name.to_owned(), what })
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(listing::whole(text)?.lines());
        let (mut listed, mut zones) = (ListedZones::default(), Vec::<FreeBlocks>::new());
        for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let zone = zone(line)
                .ok_or_else(|| format!("line {at}, {}, is not one of a zone", excerpt(line)))?;
            listed.add(zone.node, &zone.name, at)?;
            if let Some(other) =
                zones.last().filter(|other| other.blocks.len() != zone.blocks.len())
            {
                let (many, before) = (zone.blocks.len(), other.blocks.len());
                return Err(format!("line {at} has {many} orders, and the one above it {before}"));
            }
            zones.push(zone);
        }
        if zones.is_empty() {
            return Err("it lists no zone".to_owned());
        }
        Ok(Buddyinfo { zones })
    }

    /// Free pages of all zones.
    pub fn free_pages(&self) -> u64 {
        self.usable_pages(Order::BASE)
    }

    /// Pages in free blocks of at least `order`.
    fn usable_pages(&self, order: Order) -> u64 {
        let of = |zone: &FreeBlocks| {
            let large = zone.blocks.iter().enumerate().skip(order.index());
            large.map(|(order, blocks)| blocks << order).sum::<u64>()
        };
        self.zones.iter().map(of).sum()
    }

    /// Pageblocks (512 pages) that are wholly free.
    pub fn whole_pageblocks(&self) -> u64 {
        self.usable_pages(Order::PAGEBLOCK) >> Order::PAGEBLOCK.get()
    }

    /// The unusable free index of an order, over all zones.
    pub fn unusable_index(&self, order: Order) -> f64 {
        let (free, usable) = (self.free_pages(), self.usable_pages(order));
        if free == 0 { 1.0 } else { free.saturating_sub(usable) as f64 / free as f64 }
    }
}

/// Most orders a line may have, so that blocks of pages stay numbers.
const ORDERS_MAX: usize = 20;
/// Most pages in free blocks of one order of a zone: more than any machine has, and few enough that
/// sums do not overflow.
const PAGES_MAX: u64 = 1 << 44;

fn zone(line: &str) -> Option<FreeBlocks> {
    let (node, rest) = line.trim().strip_prefix("Node ")?.split_once(',')?;
    let mut words = rest.trim().strip_prefix("zone")?.split_ascii_whitespace();
    let name = words.next()?.to_owned();
    let number = |(order, word): (u32, &str)| {
        word.parse().ok().filter(|&blocks: &u64| blocks <= PAGES_MAX >> order.min(63))
    };
    let blocks: Option<Vec<u64>> = (0..).zip(words).map(number).collect();
    let blocks = blocks.filter(|blocks| (1..=ORDERS_MAX).contains(&blocks.len()))?;
    Some(FreeBlocks { node: listing::node(node.trim())?, name, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 
Node 0, zone   Normal     10      1      0      0      0      0      0      0      0      2      0 
";

    #[test]
    fn blocks_are_read_by_zone_and_order() {
        let info = Buddyinfo::parse(TEXT, "it").unwrap();
        assert_eq!((info.zones[0].name.as_str(), info.zones[1].blocks[9]), ("DMA", 2));
        assert_eq!(info.free_pages(), 256 + 512 + 3 * 1024 + 10 + 2 + 2 * 512);
        assert_eq!(info.whole_pageblocks(), 1 + 2 * 3 + 2);
        let order = |n| Order::new(n).unwrap();
        assert_eq!(info.unusable_index(order(0)), 0.0);
        let free = info.free_pages() as f64;
        assert_eq!(info.unusable_index(order(1)), 10.0 / free);
        assert_eq!(info.unusable_index(order(10)), (free - 3072.0) / free);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, says) in [
            ("", "no zone"),
            ("Page block order: 9\n", "line 1"),
            ("Node 0, zone DMA\n", "line 1"),
            ("Node 0, zone DMA 1 2 x\n", "line 1"),
            ("Node 0, zone DMA 18446744073709551615\n", "line 1"),
        ] {
            let error = Buddyinfo::parse(text, "some file").unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("some file"), "{text}: {error}");
        }
    }
}
