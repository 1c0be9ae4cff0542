//! The places of frames' pages while no client has them. Holds `unsafe`: memory of its own.
//!
//! # Vocabulary
//! * *home*: the one page that a frame has here. It moves to where a fault was, and back.
//! * *stripe*: one of [`STRIPES`] mappings that the homes are dealt over.
//!
//! # Why not in the design's memory
//! To move a page, the kernel locks the page table and the `anon_vma` that have it. No kernel pays
//! that for a fault: its free frames are in no process's page table. In one mapping for each
//! design, two CPUs whose frames are neighbours wait for one page table of 2 MiB, and two CPUs that
//! own a pageblock each never do. So the figures would say which frames a design hands out, by a
//! cost that no kernel has.
//!
//! Here each stripe has page tables and an `anon_vma` of its own, and a frame's number says nothing
//! about the stripe of its home: whichever frames a design hands out, their homes are spread alike.

use std::ptr::NonNull;

use rustix::mm::{MprotectFlags, mprotect};

use super::uffd::Userfaultfd;
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::design::pool::Pool;
use pagedepot_cli::failure::Failure;

/// Bytes that one page table maps.
pub const PAGE_TABLE_REACH_BYTES: usize = 512 * PAGE_BYTES;

const STRIPES: usize = 256;

/// Memory with a home for each frame.
pub struct Homes {
    memory: Pool,
    deal: Deal,
    /// Frames that have a home.
    frames: u64,
}

impl Homes {
    /// A home for each of so many frames. Homes are there until they are moved.
    ///
    /// # Errors
    /// Without memory, or when the kernel refuses to watch it.
    pub fn new(frames: u64, uffd: &Userfaultfd) -> Result<Self, Failure> {
        let deal = Deal::of(frames.max(STRIPES as u64));
        let memory = Pool::new(STRIPES * deal.stride_bytes(), PAGE_TABLE_REACH_BYTES)?;
        memory.use_base_pages();
        let homes = Homes { memory, deal, frames };
        // Before the first touch, which would give neighbours one `anon_vma`.
        homes.separate_stripes()?;
        for frame in 0..frames {
            // SAFETY: inside the memory, in a stripe.
            unsafe { homes.of(frame).write_volatile(0) };
        }
        for stripe in 0..STRIPES {
            uffd.watch(homes.memory.at(stripe * deal.stride_bytes()), deal.stripe_pages())?;
        }
        Ok(homes)
    }

    /// Whether so many frames have a home.
    pub fn are_enough(&self, frames: u64) -> bool {
        frames <= self.frames
    }

    /// Address of the home of this frame, by the frame's number.
    #[inline]
    pub fn of(&self, frame: u64) -> NonNull<u8> {
        debug_assert!(frame < self.frames);
        self.memory.at(self.deal.offset(frame))
    }

    /// Forbids access between stripes, so that they are different mappings.
    fn separate_stripes(&self) -> Result<(), Failure> {
        for stripe in 0..STRIPES {
            let gap = self.memory.at(stripe * self.deal.stride_bytes() + self.deal.gap_offset());
            // SAFETY: a part of the memory that no home is in.
            let gap = unsafe {
                mprotect(gap.as_ptr().cast(), PAGE_TABLE_REACH_BYTES, MprotectFlags::empty())
            };
            gap.map_err(|errno| {
                let hint = "free some mappings, or raise `sysctl vm.max_map_count`";
                Failure::Run(format!("cannot separate mappings: {errno}; {hint}"))
            })?;
        }
        Ok(())
    }
}

/// The deal of stripes' pages to frames: of 2^bits frames no two get the same.
#[derive(Clone, Copy)]
struct Deal {
    bits: u32,
}

impl Deal {
    /// Rounds of [`mixed`](Self::mixed) by these odd numbers.
    const FACTORS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93];

    fn of(frames: u64) -> Self {
        Deal { bits: frames.next_power_of_two().ilog2() }
    }

    fn stripe_pages(self) -> usize {
        (1 << self.bits) / STRIPES
    }

    /// Bytes from the start of a stripe to its gap: the page tables of a stripe map nothing else.
    fn gap_offset(self) -> usize {
        (self.stripe_pages() * PAGE_BYTES).next_multiple_of(PAGE_TABLE_REACH_BYTES)
    }

    /// Bytes from the start of a stripe to the next.
    fn stride_bytes(self) -> usize {
        self.gap_offset() + PAGE_TABLE_REACH_BYTES
    }

    #[inline]
    fn offset(self, frame: u64) -> usize {
        let mixed = self.mixed(frame) as usize;
        let (stripe, page) = (mixed % STRIPES, mixed / STRIPES);
        stripe * self.stride_bytes() + page * PAGE_BYTES
    }

    /// A bijection below 2^bits: an odd factor has an inverse modulo a power of two, and a shift
    /// that is exclusive-or'ed is undone from the highest bit down.
    #[inline]
    fn mixed(self, frame: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        Self::FACTORS.into_iter().fold(frame, |number, factor| {
            let product = number.wrapping_mul(factor) & mask;
            product ^ product >> (self.bits / 2)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_frames_share_a_home() {
        for bits in [8, 9, 13, 16] {
            let deal = Deal { bits };
            let offsets: HashSet<_> = (0..1 << bits).map(|frame| deal.offset(frame)).collect();
            assert_eq!(offsets.len(), 1 << bits);
            for offset in offsets {
                assert_eq!(offset % PAGE_BYTES, 0);
                let in_stripe = offset % deal.stride_bytes();
                assert!(in_stripe < deal.stripe_pages() * PAGE_BYTES, "{offset} is in a gap");
                assert!(offset / deal.stride_bytes() < STRIPES);
            }
        }
    }

    #[test]
    fn neighbours_are_dealt_over_the_stripes() {
        let deal = Deal { bits: 13 };
        // A pageblock, and each second page of two, as pairs of CPUs might have them.
        for (from, step) in [(0, 1), (512, 1), (512, 2), (0, 16)] {
            let mut homes = [0; STRIPES];
            for frame in (from..).step_by(step).take(512) {
                homes[deal.offset(frame) / deal.stride_bytes()] += 1;
            }
            let most = homes.into_iter().max().unwrap();
            let used = homes.into_iter().filter(|&homes| homes > 0).count();
            assert!(most <= 16 && used >= STRIPES / 2, "{from} by {step}: {most}, {used} stripes");
        }
    }
}
