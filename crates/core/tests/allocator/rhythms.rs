//! The cost of rhythms of allocations and frees: the number of exchanges of a front's two
//! magazines.
//!
//! 1. A rhythm of up to half a magazine exchanges them a few times, however long it goes on, and
//!    wherever in the magazines it began.
//! 2. No rhythm exchanges them more than four times in as many operations as a magazine has
//!    rounds: neither batches of any size, nor random walks of geometric lengths, nor a walk that
//!    turns wherever that costs most.
//! 3. A rhythm of batches that a front does not hold divides nothing. Of its magazines that come
//!    from the shelf most come in pairs, for which the front exchanges its two once.
//! 4. Blocks that are divided between two magazines are popped in the order in which an exchange
//!    would have left them.

use crate::common::rng::Rng;
use crate::common::{Single, metadata, open_zone, range, single};
use pagedepot::{Config, Counts, CpuId, Flags, HighPolicy, Mode, Order, Pfn, Scope, ZoneId};

/// Rounds of a magazine of order 0.
const ROUNDS: u64 = 63;

fn with_depot(test: impl FnOnce(&mut Player<'_, '_>)) {
    let ranges = [range(512, 1 << 16)];
    let zones = [open_zone("Normal", &ranges)];
    let config = Config { high: HighPolicy::Fixed(1 << 13), ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let mut player = Player { depot: &depot, order: Order::BASE, held: Vec::new(), operations: 0 };
    test(&mut player);
    let held = core::mem::take(&mut player.held);
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, 1 << 16);
}

/// A program of one thread, and the blocks it holds.
struct Player<'d, 'm> {
    depot: &'d Single<'m>,
    order: Order,
    held: Vec<Pfn>,
    operations: u64,
}

impl Player<'_, '_> {
    fn alloc(&mut self, count: u64) {
        for _ in 0..count {
            self.held.push(self.depot.alloc(self.order, Flags::default()).unwrap());
            self.operations += 1;
        }
    }

    fn free(&mut self, count: u64) {
        for _ in 0..count {
            let Some(pfn) = self.held.pop() else { return };
            self.depot.free(pfn, self.order).unwrap();
            self.operations += 1;
        }
    }

    fn counts(&self) -> Counts {
        self.depot.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap().counts
    }

    fn exchanges(&self) -> u64 {
        self.counts().exchanges
    }

    /// Calls `play`; returns its operations and exchanges.
    fn counted(&mut self, play: impl FnOnce(&mut Self)) -> (u64, u64) {
        let before = (self.operations, self.exchanges());
        play(self);
        (self.operations - before.0, self.exchanges() - before.1)
    }
}

/// Checks that there are at most four exchanges in `ROUNDS` operations, and a few at the beginning.
fn check((operations, exchanges): (u64, u64), what: &str) {
    assert!(
        exchanges <= 4 * operations / ROUNDS + 4,
        "{what}: {exchanges} exchanges in {operations} operations"
    );
}

#[test]
fn small_batches_settle() {
    for batch in 1..=ROUNDS / 2 {
        for begin in 0..=2 * ROUNDS + 2 {
            with_depot(|player| {
                // Both magazines are full, and then as many blocks less.
                player.alloc(4 * ROUNDS);
                player.free(4 * ROUNDS);
                player.alloc(begin);
                let (_, exchanges) = player.counted(|player| {
                    for _ in 0..40 {
                        player.alloc(batch);
                        player.free(batch);
                    }
                });
                assert!(exchanges <= 6, "batches of {batch} from {begin}: {exchanges} exchanges");
            });
        }
    }
}

#[test]
fn batches_of_any_size() {
    for batch in 1..=3 * ROUNDS {
        with_depot(|player| {
            let played = player.counted(|player| {
                for _ in 0..200 {
                    player.alloc(batch);
                    player.free(batch);
                }
            });
            check(played, &format!("batches of {batch}"));
        });
    }
}

#[test]
fn long_batches_divide_nothing_and_move_pairs() {
    const TIMES: u64 = 200;
    for batch in [2 * ROUNDS + 1, 200, 256, 400, 512, 700, 1024, 4000] {
        with_depot(|player| {
            let shelf_hits = player.counts().shelf_hits;
            let (_, exchanges) = player.counted(|player| {
                for _ in 0..TIMES {
                    player.alloc(batch);
                    player.free(batch);
                }
            });
            let shelf_hits = player.counts().shelf_hits - shelf_hits;
            // One in each direction beside those for pairs, of which as many come as go.
            let pairs = batch / (2 * ROUNDS);
            let what = format!("batches of {batch}: {exchanges} exchanges, {shelf_hits} loads");
            assert!(exchanges <= 2 * (pairs + 1) * TIMES + 4, "{what}");
            // Two more where a batch begins or ends within a pair; the first batch moves none.
            assert!(shelf_hits <= (pairs + 2) * TIMES + batch / ROUNDS, "{what}");
        });
    }
}

#[test]
fn random_walks() {
    let mut rng = Rng::new(0x7265_7374);
    for mean in [1, 2, 3, 5, 8, 13, 21, 34, 55] {
        with_depot(|player| {
            player.alloc(2000);
            let played = player.counted(|player| {
                for _ in 0..20_000 / mean {
                    let length = |rng: &mut Rng| (1..).find(|_| rng.one_in(mean)).unwrap();
                    player.alloc(length(&mut rng));
                    player.free(length(&mut rng));
                }
            });
            check(played, &format!("a walk with steps of {mean}"));
        });
    }
}

/// Goes on until there is an exchange, and then turns; `idle` operations more come before each
/// second turn.
#[test]
fn a_walk_that_turns_at_each_exchange() {
    for idle in 0..=2 * ROUNDS {
        with_depot(|player| {
            player.alloc(4000);
            player.free(2000);
            let played = player.counted(|player| {
                for turn in 0..400 {
                    let before = player.exchanges();
                    while player.exchanges() == before {
                        if turn % 2 == 0 { player.alloc(1) } else { player.free(1) }
                    }
                    for _ in 0..if turn % 4 == 1 { idle } else { 0 } {
                        player.free(1);
                        player.alloc(1);
                    }
                    if player.held.len() < 200 || player.held.len() > 6000 {
                        break;
                    }
                }
            });
            check(played, &format!("a walk that turns, {idle} idle"));
        });
    }
}

#[test]
fn divided_blocks_come_in_their_order() {
    with_depot(|player| {
        player.alloc(1);
        // At the boundary, restlessly, until the magazine is divided.
        for _ in 0..4 {
            player.alloc(2);
            player.free(2);
        }
        let (_, exchanges) = player.counted(|player| {
            player.alloc(2);
            player.free(2);
        });
        assert_eq!(exchanges, 0, "they are divided");
        // What was freed last comes first, over both magazines.
        player.alloc(40);
        let freed: Vec<Pfn> = player.held.iter().rev().copied().collect();
        player.free(41);
        player.alloc(41);
        let again: Vec<Pfn> = player.held.clone();
        assert!(again.iter().eq(freed.iter().rev()), "{again:?} after {freed:?}");
    });
}
