//! Runs of pages in the managed range.

/// Pages `start..end`, counted from the first of the managed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub start: u32,
    pub end: u32,
}

impl Run {
    pub const fn new(start: u32, pages: u32) -> Self {
        Run { start, end: start + pages }
    }

    pub const fn pages(self) -> u32 {
        self.end - self.start
    }

    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }
}
