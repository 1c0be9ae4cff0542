//! Areas of addresses, as `/proc/vmallocinfo`.

use std::fmt;

use crate::vmalloc::{AreaState, ListedArea, Vmalloc};

/// The areas of a [`Vmalloc`], by address. Its `Display` is what `/proc/vmallocinfo` would print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VmallocInfo {
    /// Busy or not.
    pub areas: Vec<ListedLine>,
}

/// An area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListedLine {
    /// The area's line of the listing.
    pub line: String,
    /// First address of the area.
    pub start: u64,
    /// Size of the area, with the guard.
    pub bytes: u64,
    /// Whether it is in use; else it was freed, and is kept for the next request or a purge.
    pub is_busy: bool,
    /// Pages mapped.
    pub mapped_pages: u32,
    /// The call that allocated it last: file, line and column.
    pub caller: Option<(String, u32, u32)>,
}

impl VmallocInfo {
    /// The areas of an address space as they are now. None in a forked child.
    pub fn of(space: &Vmalloc) -> Self {
        VmallocInfo { areas: space.listing().map(|area| ListedLine::of(&area)).collect() }
    }
}

impl ListedLine {
    fn of(area: &ListedArea) -> Self {
        let info = &area.info;
        let place = |caller: &std::panic::Location<'_>| {
            (caller.file().to_owned(), caller.line(), caller.column())
        };
        ListedLine {
            line: area.to_string(),
            start: info.span.start.get() as u64,
            bytes: info.span.bytes(area.page_size) as u64,
            is_busy: info.state == AreaState::Busy,
            mapped_pages: info.mapped_pages,
            caller: info.caller.map(place),
        }
    }
}

impl fmt::Display for VmallocInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.areas.iter().try_for_each(|area| writeln!(f, "{}", area.line))
    }
}
