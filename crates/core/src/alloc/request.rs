//! What a request wants, for the steps that requests of all kinds take before they fail.

use super::allocator::Allocator;
use super::flags::Flags;
use crate::cpus::Cpus;
use crate::frame::Class;
use crate::frame::{NodeId, Order, Pfn, ZoneId};
use crate::front::WordOffset;
use crate::pcp::{Mode, Scope};
use crate::zone::Reserve;

/// A request.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub want: Want,
    pub flags: Flags,
    /// Where it comes from.
    pub node: NodeId,
}

/// What will do.
#[derive(Clone, Copy)]
pub(super) enum Want {
    Block(Order),
    /// Any run of so many frames, the first a multiple of `align`.
    Run {
        frames: u32,
        align: u32,
    },
    /// These frames alone, all of this zone.
    At {
        zone: ZoneId,
        start: Pfn,
        frames: u32,
    },
}

impl Request {
    pub fn pages(self) -> u64 {
        u64::from(match self.want {
            Want::Block(order) => order.frames(),
            Want::Run { frames, .. } | Want::At { frames, .. } => frames,
        })
    }

    /// How far down it may go in the end. Frames at a given address have no substitute elsewhere.
    pub fn reserve(self) -> Reserve {
        match self.want {
            Want::At { .. } => Reserve::All,
            _ if self.flags.is_atomic() => Reserve::All,
            _ => Reserve::AboveMin,
        }
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// The zones it may use, the best first.
    pub(super) fn zones_of(&self, request: Request) -> impl Iterator<Item = ZoneId> {
        self.zones.from(request.node).filter(move |&zone| match request.want {
            Want::At { zone: only, .. } => zone == only,
            _ => self.may_serve(zone, request.node, request.flags),
        })
    }

    /// Tries the zones in turn, each down to the watermark that `reserve` names.
    pub(super) fn attempt(&self, request: Request, reserve: Reserve) -> Option<Pfn> {
        match request.want {
            Want::Block(order) => self.alloc_within(order, request.flags, reserve),
            _ => self.scan(request, reserve, &mut 0),
        }
    }

    /// Searches the store alone: a refill would take a magazine's worth for a request that is glad
    /// of one block. Counts in `own_moves` what this itself adds to the in-flight words.
    pub(super) fn scan(
        &self,
        request: Request,
        reserve: Reserve,
        own_moves: &mut u64,
    ) -> Option<Pfn> {
        let (here, mobility) = (self.here(), request.flags.mobility());
        self.zones_of(request).find_map(|zone| {
            if !self.caches().may_give(zone, request.pages(), reserve) {
                return None;
            }
            *own_moves += 1;
            match request.want {
                Want::Block(order) => self.caches().direct(here, zone).take(order, mobility),
                Want::Run { frames, align } => self.take_run(here, zone, frames, align, mobility),
                Want::At { start, frames, .. } => self.take_at(here, zone, start, frames),
            }
        })
    }

    /// Takes back what callbacks freed into this CPU's own caches: a block comes from there, what
    /// is to be part of a range goes to the store first. No other CPU is interrupted for it.
    pub(super) fn regain(&self, request: Request) -> Option<Pfn> {
        let Want::Block(order) = request.want else {
            let here = self.here()?;
            for zone in self.zones_of(request) {
                self.drain(Scope::cpu(here.cpu).in_zone(zone), Mode::Full);
            }
            return None;
        };
        let class = Class::of(order)?;
        self.zones_of(request).find_map(|zone| {
            let word = WordOffset::new(zone, class, request.flags.mobility());
            self.cpus.pop(self.pcps.blocks(), word).map(Pfn::new)
        })
    }
}
