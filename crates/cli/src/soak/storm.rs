//! A process of the storm: it joins the segment and does everything that there is to do with a
//! shared depot, in random order, until it is killed.
//!
//! Each frame that it holds begins with a stamp of its own. Two processes that had the same frame
//! would find the other's.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use fastrand::Rng;
use pagedepot_linux::shared::{Orphans, SentPage, SharedDepot, SharedOptions};
use pagedepot_linux::{Flags, Mode, Order, Page, Pages, Scope};

use super::board::{Action, Board};

/// Bytes that the segment begins with, and that it can be grown to.
pub const BYTES: usize = 48 << 20;
pub const BYTES_MAX: usize = 64 << 20;

/// Blocks that a process holds at most.
const HELD_MAX: usize = 4000;
/// Pages that a process has sent and not claimed back.
const SENT_MAX: usize = 16;
/// Bytes of a stamp.
const STAMP: usize = 16;

/// Joins the segment, and goes on until it is killed.
pub fn rage(segment: BorrowedFd<'_>, board: &Board, seat: usize, seed: u64) -> ! {
    let mut random = Rng::with_seed(seed);
    loop {
        Process::join(segment, (board, seat), &mut random).live(&mut random);
        board.add(Action::Leave, 1);
    }
}

/// A stretch of pages, and the stamp that each of its frames has.
struct Parcel<P> {
    pages: P,
    stamp: u128,
}

struct Process<'b> {
    depot: SharedDepot,
    board: &'b Board,
    /// Place on the board.
    seat: usize,
    blocks: Vec<Parcel<Page>>,
    runs: Vec<Parcel<Pages>>,
    sent: VecDeque<SentPage>,
    /// Stamps so far.
    stamps: u64,
}

impl<'b> Process<'b> {
    fn join(segment: BorrowedFd<'_>, (board, seat): (&'b Board, usize), random: &mut Rng) -> Self {
        board.begin(seat, Action::Join);
        let mut options = SharedOptions::join().answers(random.bool());
        if random.u8(..8) == 0 {
            options = options.per_cpu_locks(true);
        }
        let depot = SharedDepot::adopt(segment, &options);
        let depot = depot.unwrap_or_else(|error| panic!("a process could not join: {error}"));
        board.add(Action::Join, 1);
        Process {
            depot,
            board,
            seat,
            blocks: Vec::new(),
            runs: Vec::new(),
            sent: VecDeque::new(),
            stamps: 0,
        }
    }

    /// Works until it is time to leave.
    fn live(mut self, random: &mut Rng) {
        while random.u16(..200) != 0 {
            self.step(random);
            assert_eq!(self.depot.refused_pages(), 0, "a page came back that was not this one's");
        }
        while let Some(block) = self.blocks.pop() {
            self.free(block);
        }
        while let Some(run) = self.runs.pop() {
            self.free_run(&run);
        }
        self.begin(Action::Leave);
    }

    fn begin(&self, action: Action) {
        self.board.begin(self.seat, action);
    }

    fn step(&mut self, random: &mut Rng) {
        match random.u8(..16) {
            0..=2 => (0..random.usize(1..200)).for_each(|_| self.allocate(Order::BASE)),
            3 => {
                let order = if random.u8(..8) == 0 { random.u32(7..=10) } else { random.u32(1..7) };
                self.allocate(Order::new(order).expect("10 is the largest"));
            }
            4 => self.allocate_many(random),
            5 => self.allocate_run(random),
            6 | 7 => self.free_some(random),
            8 => self.blocks.drain(..).for_each(|block| checked(&block.pages, block.stamp)),
            9 => self.send(),
            10 => self.pass_on(random),
            11 => self.claim(random),
            12 => self.drain(random),
            13 => self.recover(random),
            14 => self.resize(random),
            _ => self.limit(random),
        }
    }

    /// A stamp that no other process makes.
    fn stamp(&mut self) -> u128 {
        self.stamps += 1;
        u128::from(std::process::id()) << 64 | u128::from(self.stamps)
    }

    fn hold(&mut self, page: Page) {
        let mut block = Parcel { pages: page, stamp: self.stamp() };
        stamp(&mut block.pages, block.stamp);
        self.blocks.push(block);
    }

    fn allocate(&mut self, order: Order) {
        self.begin(Action::Allocate);
        if self.blocks.len() >= HELD_MAX {
            return;
        }
        match self.depot.page(order) {
            Ok(page) => {
                self.board.serve(self.seat, Action::Allocate);
                self.hold(page);
            }
            Err(_) => self.board.add(Action::Short, 1),
        }
    }

    fn allocate_many(&mut self, random: &mut Rng) {
        self.begin(Action::Bulk);
        if self.blocks.len() >= HELD_MAX {
            return;
        }
        let order = Order::new(random.u32(..3)).expect("small");
        match self.depot.alloc_pages(order, random.usize(1..300)) {
            Ok(batch) => {
                self.board.serve(self.seat, Action::Bulk);
                batch.into_iter().for_each(|page| self.hold(page));
            }
            Err(_) => self.board.add(Action::Short, 1),
        }
    }

    fn allocate_run(&mut self, random: &mut Rng) {
        if self.runs.len() >= 4 {
            let run = self.runs.swap_remove(random.usize(..self.runs.len()));
            return self.free_run(&run);
        }
        self.begin(Action::Bulk);
        match self.depot.pages(random.u32(1..300), Flags::default()) {
            Ok(mut pages) => {
                self.board.serve(self.seat, Action::Bulk);
                let number = self.stamp();
                stamp(&mut pages, number);
                self.runs.push(Parcel { pages, stamp: number });
            }
            Err(_) => self.board.add(Action::Short, 1),
        }
    }

    fn free(&mut self, block: Parcel<Page>) {
        self.begin(Action::Free);
        checked(&block.pages, block.stamp);
        self.board.add(Action::Free, 1);
    }

    fn free_run(&self, run: &Parcel<Pages>) {
        self.begin(Action::Free);
        checked(&run.pages, run.stamp);
        self.board.add(Action::Free, 1);
    }

    fn free_some(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(1..200).min(self.blocks.len()) {
            let at = random.usize(..self.blocks.len());
            let block = self.blocks.swap_remove(at);
            self.free(block);
        }
    }

    fn send(&mut self) {
        self.begin(Action::Send);
        let Some(block) = self.blocks.pop() else { return };
        checked(&block.pages, block.stamp);
        let page = block.pages.into_shared(&self.depot).expect("it is this depot's");
        self.board.add(Action::Send, 1);
        self.board.post(page);
        self.sent.push_back(page);
        if self.sent.len() > SENT_MAX {
            // The receiver did not come, or the message was lost.
            let oldest = self.sent.pop_front().expect("there are some");
            self.claim_page(oldest, Action::TakeBack);
        }
    }

    /// Sends several blocks to itself, by the calls for many.
    fn pass_on(&mut self, random: &mut Rng) {
        self.begin(Action::Send);
        let first = self.blocks.len() - random.usize(0..100).min(self.blocks.len());
        let (mut sent, mut pages) = (Vec::new(), Vec::new());
        let (own, stamps): (Vec<Page>, Vec<u128>) =
            self.blocks.drain(first..).map(|block| (block.pages, block.stamp)).unzip();
        let numbers: Vec<_> = own.iter().map(Page::pfn).collect();
        assert!(self.depot.send_pages(own, &mut sent).is_empty(), "they are this depot's");
        self.board.add(Action::Send, sent.len() as u64);
        self.begin(Action::TakeBack);
        let (depot, board, mut left) = (&self.depot, self.board, Vec::new());
        depot.claim_pages(&sent, &mut pages, |place, _| left.push(sent[place]));
        board.add(Action::TakeBack, pages.len() as u64);
        // Those above the ceiling stay sent, for others to claim.
        for page in left {
            board.add(Action::TooLate, 1);
            board.post(page);
            self.sent.push_back(page);
        }
        for page in pages {
            let nth = numbers.iter().position(|&pfn| pfn == page.pfn()).expect("one of them");
            checked(&page, stamps[nth]);
            self.blocks.push(Parcel { pages: page, stamp: stamps[nth] });
        }
        while self.sent.len() > SENT_MAX {
            let oldest = self.sent.pop_front().expect("there are some");
            self.claim_page(oldest, Action::TakeBack);
        }
    }

    fn claim(&mut self, random: &mut Rng) {
        for _ in 0..random.u8(1..8) {
            let Some(page) = self.board.take() else { return };
            self.claim_page(page, Action::Claim);
        }
    }

    fn claim_page(&mut self, page: SentPage, action: Action) {
        self.begin(action);
        match self.depot.claim(page) {
            Ok(page) => {
                self.board.add(action, 1);
                // As its sender left it: no other process has had it since.
                checked(&page, first_stamp(&page));
                self.hold(page);
            }
            Err(_) => self.board.add(Action::TooLate, 1),
        }
    }

    fn drain(&mut self, random: &mut Rng) {
        self.begin(Action::Drain);
        self.board.add(Action::Drain, 1);
        match random.u8(..4) {
            0 => _ = self.depot.drain(Scope::ALL, Mode::Quiet),
            1 => _ = self.depot.drain(Scope::ALL, Mode::Full),
            2 => _ = self.depot.drain(Scope::ALL, Mode::Handover),
            _ => _ = self.depot.drain_all(Mode::Full, Duration::from_millis(1)),
        }
    }

    fn recover(&mut self, random: &mut Rng) {
        self.begin(Action::Recover);
        let orphans = if random.bool() { Orphans::Stay } else { Orphans::GoBack };
        let recovery = self.depot.recover(orphans);
        self.board.add(Action::Recover, 1);
        self.board.add(Action::Bury, recovery.processes.into());
        self.board.add(Action::Recovered, recovery.pages);
    }

    fn resize(&mut self, random: &mut Rng) {
        let bytes = random.usize(BYTES / 2..=BYTES_MAX);
        if random.bool() {
            self.begin(Action::Grow);
            self.depot.grow(bytes);
            self.board.add(Action::Grow, 1);
        } else {
            self.begin(Action::Shrink);
            self.depot.shrink(bytes);
            self.board.add(Action::Shrink, 1);
        }
    }

    fn limit(&mut self, random: &mut Rng) {
        self.begin(Action::Limit);
        self.board.add(Action::Limit, 1);
        self.depot.set_ceiling(if random.bool() { 0 } else { random.usize(1 << 20..16 << 20) });
        if random.u8(..4) == 0 {
            let _ = self.depot.trim();
        }
    }
}

/// Writes a stamp into each frame.
fn stamp(bytes: &mut [u8], stamp: u128) {
    for frame in bytes.chunks_mut(rustix::param::page_size()) {
        frame[..STAMP].copy_from_slice(&stamp.to_ne_bytes());
    }
}

fn first_stamp(bytes: &[u8]) -> u128 {
    u128::from_ne_bytes(bytes[..STAMP].try_into().expect("a stamp's length"))
}

/// Checks that each frame has the stamp that it was given.
fn checked(bytes: &[u8], stamp: u128) {
    for (nth, frame) in bytes.chunks(rustix::param::page_size()).enumerate() {
        let found = first_stamp(frame);
        assert!(
            found == stamp,
            "frame {nth} of a block was handed out twice: process {} wrote into it, not {}",
            found >> 64,
            stamp >> 64
        );
    }
}
