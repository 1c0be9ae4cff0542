//! The partly used pageblocks that a [search](super::search) takes from first.
//!
//! # The densest
//! What is dense already becomes whole last. So a search takes from the densest of the next few.
//!
//! # The best fit
//! A buddy allocator has a list per order, and splits a larger block only when the smaller ones are
//! gone. A bitmap sees free frames. Taken as they come, single frames come out of blocks that
//! larger requests then lack, and those break up whole pageblocks although enough is free. So while
//! pageblocks evacuate, which says that whole ones are short, a search for less than a block of
//! order [`COSTLY`] first takes what lies in no free block of the next order, then what lies in no
//! free one of `COSTLY`. A search that has an eighth of what it wants by then leaves larger blocks
//! alone. Where all requests are for single frames there is nothing to spare, and none of this is
//! done: searches for larger blocks note themselves, and hands forget it after each turn. Decision
//! 0012 has what was tried.
//!
//! Each of the two looks at [`PARTIAL_LOOKS_MAX`] pageblocks at most, so such a search reads at
//! most 64 lines more.

use core::ops::ControlFlow;

use super::bits::{WORD_ORDER_MAX, WordBlocks};
use super::passes::{Harvest, PARTIAL_LOOKS_MAX, PartialKind, Pass};
use super::search::Search;
use super::section::Section;
use crate::frame::Order;
use crate::frame::pageblock::PageblockIndex;
use crate::sync::model::IS_LOOM;
use crate::sync::prim::Ordering;

/// Partly used pageblocks of which the densest is taken from first.
const DENSEST_OF: u32 = 4;
/// Comparisons of a search. Afterwards it takes from the first candidate that it meets, so it reads
/// at most 32 lines more.
const DENSEST_ROUNDS: u32 = 8;
/// Up to this order requests should not fail (`PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY: Order = Order::new(3).unwrap();
const _: () = assert!(COSTLY.get() <= WORD_ORDER_MAX);

impl Search<'_, '_> {
    /// Takes blocks of partly used pageblocks that lie in no larger free block, while whole
    /// pageblocks are short.
    pub(super) fn take_fitting(&self, taken: &mut Harvest<impl FnMut(WordBlocks)>) {
        let (tags, zone) = (&self.bitmap.tags, self.wanted.zone);
        // To a model each look would be one more place to switch, and this is a policy.
        if IS_LOOM || tags.evacuating(zone) == 0 {
            return;
        }
        if self.order > Order::BASE {
            tags.note_larger(zone);
        }
        let next = Order::new(self.order.get() + 1).filter(|&next| next <= COSTLY);
        let Some(next) = next.filter(|_| tags.has_larger(zone)) else { return };
        let is_any = self.take_sparing(next, taken);
        if is_any && next < COSTLY && !taken.is_an_eighth() {
            self.take_sparing(COSTLY, taken);
        }
    }

    /// Takes blocks that lie in no free block of the order `spared`, from the next few pageblocks.
    /// Returns whether there was one.
    fn take_sparing(&self, spared: Order, taken: &mut Harvest<impl FnMut(WordBlocks)>) -> bool {
        let settled = Pass::Partial { which: PartialKind::Settled, looks_max: PARTIAL_LOOKS_MAX };
        let mut looks = 0;
        self.visit_words(settled, |section, base, candidates| {
            self.visit_each(settled, base, candidates, &mut looks, |pageblock| {
                if self.take_in(section, pageblock, Some(spared), taken) > 0 {
                    self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
                }
                taken.flow()
            })
        });
        looks > 0
    }

    /// Takes blocks from partly used pageblocks, each time from the densest of the next few.
    /// Returns whether there was any such pageblock at the last look.
    pub(super) fn take_densest(
        &self,
        which: PartialKind,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) -> bool {
        let mut is_any = false;
        for _ in 0..DENSEST_ROUNDS {
            let mut densest: Option<(u32, &Section<'_>, PageblockIndex)> = None;
            is_any = false;
            let (pass, mut looks) = (Pass::Partial { which, looks_max: DENSEST_OF }, 0);
            self.visit_words(pass, |section, base, candidates| {
                self.visit_each(pass, base, candidates, &mut looks, |pageblock| {
                    is_any = true;
                    let free = section.count_in_words(pageblock.in_section());
                    if free > 0 && densest.is_none_or(|(least, ..)| free < least) {
                        densest = Some((free, section, pageblock));
                    }
                    ControlFlow::Continue(())
                })
            });
            let Some((_, section, pageblock)) = densest else { break };
            if which == PartialKind::Evacuating {
                self.bitmap.settle(section, pageblock);
            }
            let got = self.take_in(section, pageblock, None, taken);
            if got > 0 {
                self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
            }
            if taken.is_done() || got == 0 {
                break;
            }
        }
        is_any
    }
}
