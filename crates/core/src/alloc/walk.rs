//! One walk over the zones that a request may use (the kernel's `get_page_from_freelist`), down to
//! a watermark; and the request itself, of any kind, on its way down the watermarks.

use super::flags::Flags;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, Tag};
use crate::frame::{NodeId, Order, Pfn, ZoneId};
use crate::front::{Here, WordOffset};
use crate::pcp::{Caches, Mode, NO_ZONE, Scope};
use crate::store::SearchRules;
use crate::sync::model::IS_LOOM;
use crate::zone::Reserve;

impl<'m, C: Cpus> Caches<'m, C> {
    /// The zone to try first here, whatever its watermarks; `None`: the zone list decides.
    pub fn first_zone(&self, here: Here, flags: Flags) -> Option<ZoneId> {
        let shared = self.pcps.shared(here.cpu);
        let first = Some(shared.first_zones[flags.level()]).filter(|&zone| zone != NO_ZONE)?;
        let first = ZoneId::new(u32::from(first));
        if flags.is_this_node() || !self.has_memory(first) {
            return self.zones_for(shared.node, flags).find(|&zone| self.has_memory(zone));
        }
        Some(first)
    }

    /// Whether a zone has memory, so that its caches and its store are worth a look: the highest
    /// zone of a kernel may have none.
    fn has_memory(&self, zone: ZoneId) -> bool {
        IS_LOOM || self.zones.get(zone).managed() > 0
    }

    fn may_serve(&self, zone: ZoneId, node: NodeId, flags: Flags) -> bool {
        let zone = self.zones.get(zone);
        flags.takes_level(zone.level) && (!flags.is_this_node() || zone.node == node)
    }

    /// The zones a block for a caller on `node` may come from, nearest first and in each node the
    /// highest level first.
    pub fn zones_for(&self, node: NodeId, flags: Flags) -> impl Iterator<Item = ZoneId> {
        self.zones.from(node).filter(move |&zone| self.may_serve(zone, node, flags))
    }

    /// The zones that a request may use, the best first.
    pub fn zones_of(&self, request: Request) -> impl Iterator<Item = ZoneId> {
        self.zones.from(request.node).filter(move |&zone| match request.want {
            Want::At { zone: only, .. } => zone == only,
            _ => self.may_serve(zone, request.node, request.flags),
        })
    }

    /// Tries the zones in turn, each down to the watermark that `reserve` names.
    pub fn walk(&self, request: Request, reserve: Reserve) -> Option<Pfn> {
        match request.want {
            Want::Block(order) => self.walk_for_block(order, request.flags, reserve),
            _ => self.scan(request, reserve, &mut 0),
        }
    }

    /// Allocates a block like [`walk`](Self::walk). Where this CPU caches the order, its
    /// shelf comes first, and the store refills the front.
    pub fn walk_for_block(&self, order: Order, flags: Flags, reserve: Reserve) -> Option<Pfn> {
        let here = self.here();
        let rules = flags.rules(reserve);
        let zones = self.zones_for(self.node_of(here), flags);
        zones.filter(|&zone| self.has_memory(zone)).find_map(|zone| match here {
            Some(here) => self.share(here.cpu, zone).alloc(here, order, rules),
            None => self.alloc_direct(None, zone, order, rules),
        })
    }

    /// Searches the store alone: a refill would take a whole magazine for a request that needs one
    /// block. Adds to `own_moves` the moves that this search itself counts in the in-flight words.
    pub fn scan(&self, request: Request, reserve: Reserve, own_moves: &mut u64) -> Option<Pfn> {
        let (here, rules) = (self.here(), request.flags.rules(reserve));
        self.zones_of(request).find_map(|zone| {
            if !self.may_give(zone, request.pages(), reserve) {
                return None;
            }
            *own_moves += 1;
            match request.want {
                Want::Block(order) => self.direct(here, zone).take(order, rules),
                Want::Run { frames, align } => self.take_run(here, zone, frames, align, rules),
                Want::At { start, frames, .. } => {
                    let tag = Tag::new(zone, rules.kind);
                    self.take_at(here, tag, start, frames)
                }
            }
        })
    }

    /// Takes back what callbacks freed into this CPU's own caches. A request for a block pops from
    /// there; for a range the caches are drained to the store first. Interrupts no other CPU.
    pub fn regain(&self, request: Request) -> Option<Pfn> {
        let Want::Block(order) = request.want else {
            let here = self.here()?;
            for zone in self.zones_of(request) {
                self.drain(Scope::cpu(here.cpu).in_zone(zone), Mode::Full);
            }
            return None;
        };
        let order = order.cached()?;
        self.zones_of(request).find_map(|zone| {
            let word = WordOffset::new(zone, order, request.flags.kind());
            self.pop(word).map(Pfn::new)
        })
    }

    /// Takes a run of frames from the store of a zone. Ends one move on this CPU.
    fn take_run(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        frames: u32,
        align: u32,
        rules: SearchRules,
    ) -> Option<Pfn> {
        let store = &self.store;
        let has_ranges = store.has_ranges();
        // First rounded up, to a block that contains the range and its alignment or to whole
        // pageblocks, because the hints lead there. The excess goes back at once.
        let block = frames.max(align).next_power_of_two();
        let is_block = block < PAGEBLOCK_FRAMES || !has_ranges;
        let grain = if is_block { block } else { PAGEBLOCK_FRAMES };
        let rounded = frames.next_multiple_of(grain);
        let is_rounded = rounded > frames || !align.is_multiple_of(grain);
        let direct = self.direct(here, zone);
        let moving = direct.begin(u64::from(rounded));
        let order = if grain < PAGEBLOCK_FRAMES { Order::BASE } else { Order::PAGEBLOCK };
        let (start, doubled) = direct.search(order, rules, |wanted| {
            let found = if is_block {
                let order = Order::new(block.trailing_zeros())?;
                store.take_at_once(wanted, order).or_else(|| store.take_block(wanted, order))
            } else {
                store.take_contiguous(wanted, rounded, align)
            };
            match found {
                Some(start) => {
                    let doubled = store.put(start.add(frames), rounded - frames);
                    store.note_doubled(doubled);
                    Some((start, doubled.frames))
                }
                None if is_rounded && has_ranges => {
                    Some((store.take_run(wanted, frames, align)?, 0))
                }
                None => None,
            }
        })?;
        drop(moving);
        direct.add_free(-i64::from(frames + doubled));
        direct.count_allocs(0, u64::from(frames));
        Some(start)
    }

    /// Takes these frames from the store, for what `tag` says. Ends one move on this CPU.
    fn take_at(&self, here: Option<Here>, tag: Tag, start: Pfn, frames: u32) -> Option<Pfn> {
        let zone = tag.zone();
        let direct = self.direct(here, zone);
        let moving = direct.begin(u64::from(frames));
        // What is isolated is for the caller that removes or empties it.
        let is_isolated = self.store.tags.is_any_near(start, frames, Tag::is_isolated);
        let is_ours = !is_isolated && self.store.claim(zone, start, frames);
        if is_ours {
            self.store.note_run(tag, start, frames);
        }
        drop(moving);
        is_ours.then(|| {
            direct.add_free(-i64::from(frames));
            direct.count_allocs(0, u64::from(frames));
            start
        })
    }
}

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub want: Want,
    pub flags: Flags,
    /// The node of its caller.
    pub node: NodeId,
}

/// Frames that satisfy a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A block of this order.
    Block(Order),
    /// Any run of frames.
    Run {
        /// Number of frames.
        frames: u32,
        /// The first frame is a multiple of this.
        align: u32,
    },
    /// A run of frames at a given address.
    At {
        /// The zone of all of them.
        zone: ZoneId,
        /// The first frame.
        start: Pfn,
        /// Number of frames.
        frames: u32,
    },
}

impl Want {
    /// Number of pages.
    pub fn pages(self) -> u64 {
        u64::from(match self {
            Want::Block(order) => order.frames(),
            Want::Run { frames, .. } | Want::At { frames, .. } => frames,
        })
    }
}

impl Request {
    pub fn pages(self) -> u64 {
        self.want.pages()
    }

    /// The lowest reserve that it may use in the end. Frames at a given address have no substitute
    /// elsewhere.
    pub fn reserve(self) -> Reserve {
        match self.want {
            Want::At { .. } => Reserve::All,
            _ if self.flags.is_atomic() => Reserve::All,
            _ => Reserve::AboveMin,
        }
    }
}
