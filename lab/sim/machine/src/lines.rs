//! The model of cache lines.
//!
//! A line is *untouched* (no cache has it), *owned* (one CPU may read and write it) or *shared*
//! (some CPUs may read it): MESI with E and M in one, as no access costs differently in them.
//!
//! | access | line | costs |
//! |---|---|---|
//! | any | owned by this CPU; a load also of a line shared by it | a hit |
//! | any | untouched | a fetch from memory |
//! | load | owned by another | a transfer from there; both share it |
//! | load, if lines are [migratory](Costs::is_migratory) | owned and changed by another | a transfer from there; owned by this CPU |
//! | load | shared by others | a transfer from the nearest |
//! | store, read-modify-write | owned by another | a transfer from there; owned by this CPU |
//! | store, read-modify-write | shared | a transfer from the farthest sharer, whose copy must be invalidated |
//! | store | shared, fetched by a load of this CPU not `window_ps` ago | a hit: the line was fetched to write |
//!
//! **Transfers.** A CPU has its line until the request of another has come, which is in the middle
//! of a transfer, give or take a quarter (`LEAVES`): how far a request goes until it finds the
//! line is different each time. What is read is what the line held when it left. So whether a CPU
//! that waits for a lock sees it free between two holds of another one is chance, as on machines.
//! `docs/decisions/0013-when-lines-move.md` has what was measured.
//!
//! **Queueing.** Accesses that need a transfer of a line get it in the order in which they asked.
//! Each transfer begins when the line has arrived where the last one took it. Copies of a shared
//! line follow each other faster (`read_queue_ps`), because several caches can answer.
//!
//! **Stores** wait in a store buffer, and the CPU goes on until that is full. They become visible
//! in order, so those after one that waits for its line wait, too. A read-modify-write and a
//! barrier wait until the buffer is empty (x86's TSO).
//!
//! Caches have no size: a line stays where it is until another CPU wants it.

use std::ops::RangeInclusive;
use std::panic::Location;

use fastrand::Rng;

use crate::costs::{CPUS_MAX, Costs, STORES_MAX};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A plain store.
    Store,
    /// An atomic read-modify-write.
    Rmw,
    /// A hint to fetch a line, to write it later.
    Prefetch,
}

/// Bytes of a line, as a shift.
const LINE_SHIFT: u32 = 6;
/// The moment at which a line leaves the CPU that has it, in percent of the transfer.
const LEAVES: RangeInclusive<u64> = 25..=75;
/// Time for which a line that moved counts as fought over, in multiples of `ahead_ps`.
const FIGHT: u64 = 16;
const NO_CPU: u16 = u16::MAX;
const WORDS: usize = CPUS_MAX / 64;

type Set = [u64; WORDS];

/// A line's state.
struct Line {
    /// Address divided by the line size, plus 1; 0: no line.
    key: u64,
    /// Time at which its last transfer ends.
    arrives: u64,
    /// Time of its last move.
    moved: u64,
    /// Time of the last access: no conflicting access is earlier, even if its CPU was behind.
    last: u64,
    /// Time at which the next transfer may begin: those asked for before are over.
    free: u64,
    /// The owner, or [`NO_CPU`].
    owner: u16,
    /// The CPU that asked last.
    asked: u16,
    /// Whether the last transfer that was asked for is for a load, so that others can follow soon.
    is_read: bool,
    /// Whether the owner has changed it since it came.
    is_changed: bool,
    /// Whether the owner asked for it ahead of use, so that it waits until it arrives.
    fetched_ahead: bool,
    /// Sharers: a place in `sets`, 0: none yet.
    set: u32,
}

/// The number and total time of waits for lines at a place in the code.
#[derive(Clone, Copy, Debug)]
pub struct LineWaits {
    /// The line's number (address divided by 64).
    pub line: u64,
    /// The access that waited.
    pub site: &'static Location<'static>,
    /// Transfers.
    pub transfers: u64,
    /// Total time of the waits, queueing included.
    pub wait_ps: u64,
}

/// All lines that were touched, in a hash table with linear probing.
pub(crate) struct Lines {
    table: Vec<Line>,
    used: usize,
    sets: Vec<Set>,
    complex: Vec<Set>,
    socket: Vec<Set>,
    fought: std::collections::HashMap<(u64, usize), LineWaits>,
    rng: Rng,
}

/// A transfer that a CPU has asked for.
#[derive(Clone, Copy)]
pub(crate) struct TransferRequest {
    /// Time at which it asked.
    at: u64,
    /// Time at which the line leaves its place.
    pub leaves: u64,
    /// Time at which the line arrives.
    arrives: u64,
}

/// The clocks of the CPU that accesses.
#[derive(Clone, Copy)]
pub(crate) struct Clocks {
    pub now: u64,
    /// Time at which the last store in the buffer is visible.
    pub stored: u64,
    /// Whether the CPU is in a sequence, where there is little between accesses.
    pub in_sequence: bool,
    /// Times at which each of the last stores is visible.
    buffer: [u64; STORES_MAX],
    /// The place of the oldest of these.
    oldest: u32,
}

impl Clocks {
    /// Makes the clocks of a CPU that has stored nothing yet.
    pub fn at(now: u64) -> Self {
        Clocks { now, stored: 0, in_sequence: false, buffer: [0; STORES_MAX], oldest: 0 }
    }

    /// Puts a store whose line is there at `arrives` into the buffer. If that is full, the CPU
    /// waits for the oldest store.
    #[inline]
    fn store(&mut self, arrives: u64, costs: &Costs) {
        self.stored = self.stored.max(arrives);
        self.buffer[self.oldest as usize] = self.stored;
        self.oldest += 1;
        if self.oldest >= costs.store_buffer {
            self.oldest = 0;
        }
        self.now = self.now.max(self.buffer[self.oldest as usize]);
    }
}

fn empty() -> Line {
    Line {
        key: 0,
        arrives: 0,
        moved: 0,
        last: 0,
        free: 0,
        owner: NO_CPU,
        asked: NO_CPU,
        is_read: false,
        is_changed: false,
        fetched_ahead: false,
        set: 0,
    }
}

fn has(set: &Set, cpu: usize) -> bool {
    set[cpu / 64] >> (cpu % 64) & 1 == 1
}

fn add(set: &mut Set, cpu: usize) {
    set[cpu / 64] |= 1 << (cpu % 64);
}

fn groups(cpus: usize, size: u32) -> Vec<Set> {
    let size = size as usize;
    (0..cpus)
        .map(|cpu| {
            let mut set = [0; WORDS];
            let first = cpu / size * size;
            (first..(first + size).min(CPUS_MAX)).for_each(|other| add(&mut set, other));
            set
        })
        .collect()
}

impl Lines {
    pub fn new(costs: &Costs, cpus: usize, seed: u64) -> Self {
        Lines {
            table: (0..1 << 14).map(|_| empty()).collect(),
            used: 0,
            // Place 0 stands for "none".
            sets: vec![[0; WORDS]],
            complex: groups(cpus, costs.complex_cpus),
            socket: groups(cpus, costs.socket_cpus),
            fought: std::collections::HashMap::new(),
            rng: Rng::with_seed(seed),
        }
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - self.table.len().trailing_zeros())) as usize
    }

    /// The place of the line at an address; made if it is new.
    #[inline]
    pub fn find(&mut self, address: usize) -> usize {
        let key = (address >> LINE_SHIFT) as u64 + 1;
        let mut at = self.slot(key);
        loop {
            match self.table[at].key {
                found if found == key => return at,
                0 => return self.insert(key, at),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    #[cold]
    fn insert(&mut self, key: u64, at: usize) -> usize {
        if self.used * 2 < self.table.len() {
            self.used += 1;
            self.table[at].key = key;
            return at;
        }
        let larger = (0..self.table.len() * 4).map(|_| empty()).collect();
        for line in std::mem::replace(&mut self.table, larger) {
            if line.key != 0 {
                let mut at = self.slot(line.key);
                while self.table[at].key != 0 {
                    at = (at + 1) & (self.table.len() - 1);
                }
                self.table[at] = line;
            }
        }
        self.find(((key - 1) << LINE_SHIFT) as usize)
    }

    /// Whether CPUs fight over a line: it moved not long ago. Accesses to it are made in the order
    /// of clocks.
    #[inline]
    pub fn is_fought_over(&self, at: usize, now: u64, costs: &Costs) -> bool {
        now < self.table[at].moved + FIGHT * costs.ahead_ps
    }

    /// Accounts for an access that hits the CPU's cache; `false`, and nothing changed, if it does
    /// not.
    #[inline]
    pub fn hit(
        &mut self,
        at: usize,
        access: Access,
        cpu: usize,
        clocks: &mut Clocks,
        costs: &Costs,
    ) -> bool {
        if access == Access::Store && self.is_fetched_to_write(at, cpu, clocks.now, costs) {
            self.own(at, access, cpu);
        }
        let line = &mut self.table[at];
        if line.owner != cpu as u16 {
            let is_shared = line.owner == NO_CPU && line.set != 0;
            if access != Access::Load || !is_shared || !has(&self.sets[line.set as usize], cpu) {
                return false;
            }
        } else if line.fetched_ahead && access != Access::Prefetch {
            clocks.now = clocks.now.max(line.arrives);
            line.fetched_ahead = false;
        }
        line.is_changed |= matches!(access, Access::Store | Access::Rmw);
        match access {
            Access::Load if clocks.in_sequence => clocks.now += costs.sequence_ps,
            Access::Load => clocks.now += costs.load_ps,
            Access::Store => {
                let cost = if clocks.in_sequence { costs.sequence_ps } else { costs.store_ps };
                clocks.now += cost;
                clocks.store(clocks.now, costs);
            }
            Access::Rmw => clocks.now = clocks.now.max(clocks.stored) + costs.rmw_ps,
            Access::Prefetch => {}
        }
        line.last = line.last.max(clocks.now);
        true
    }

    /// Whether the CPU shares a line that a load of it fetched so lately that the store was in
    /// sight then. No CPU has asked for the line since.
    fn is_fetched_to_write(&self, at: usize, cpu: usize, now: u64, costs: &Costs) -> bool {
        let line = &self.table[at];
        line.owner == NO_CPU
            && line.asked == cpu as u16
            && now <= line.arrives + costs.window_ps
            && has(&self.sets[line.set as usize], cpu)
    }

    /// Asks for a line.
    pub fn ask(
        &mut self,
        at: usize,
        access: Access,
        cpu: usize,
        now: u64,
        costs: &Costs,
    ) -> TransferRequest {
        let moving = self.move_cost(at, access, cpu, costs);
        let line = &mut self.table[at];
        let is_read = access == Access::Load;
        let waits = line.free > now;
        // As the line will be when those that asked before have had it.
        let moving = if waits && line.asked != NO_CPU {
            costs.transfer(line.asked as usize, cpu)
        } else {
            moving
        };
        let has_owner = line.owner != NO_CPU || waits;
        // A copy takes nothing from those that share the line.
        let before_it_leaves =
            if is_read && !has_owner { 0 } else { moving * self.rng.u64(LEAVES) / 100 };
        let start = now.max(line.free).max(line.last.saturating_sub(before_it_leaves));
        let is_shared = line.is_read || line.owner == NO_CPU;
        let is_copied = is_read && is_shared && line.asked != NO_CPU;
        line.free = start + if is_copied { costs.read_queue_ps } else { moving };
        (line.asked, line.is_read) = (cpu as u16, is_read);
        TransferRequest { at: now, leaves: start + before_it_leaves, arrives: start + moving }
    }

    /// Moves a line to the CPU that asked for it, once it leaves where it was. The caller is the
    /// earliest CPU.
    #[allow(clippy::too_many_arguments, reason = "an access, by whom, when, at which costs")]
    pub fn miss(
        &mut self,
        at: usize,
        access: Access,
        cpu: usize,
        clocks: &mut Clocks,
        costs: &Costs,
        asked: TransferRequest,
        site: &'static Location<'static>,
    ) {
        let line = &mut self.table[at];
        let mut end = asked.arrives;
        match access {
            Access::Load => clocks.now = end + costs.load_ps,
            Access::Rmw => {
                end = end.max(clocks.stored);
                clocks.now = end + costs.rmw_ps;
            }
            Access::Store => {
                end = end.max(clocks.stored);
                clocks.now += costs.store_ps;
                clocks.store(end, costs);
            }
            Access::Prefetch => line.fetched_ahead = true,
        }
        line.arrives = end;
        (line.last, line.moved) = (end, end);
        let key = line.key - 1;
        let is_from_writer = line.owner != NO_CPU && line.is_changed;
        if access == Access::Load && !(costs.is_migratory && is_from_writer) {
            self.share(at, cpu);
        } else {
            self.own(at, access, cpu);
        }
        let fought = self.fought.entry((key, site as *const _ as usize)).or_insert(LineWaits {
            line: key,
            site,
            transfers: 0,
            wait_ps: 0,
        });
        fought.transfers += 1;
        fought.wait_ps += clocks.now - asked.at;
    }

    /// Moves a line at no cost, for explorations.
    pub fn take(&mut self, at: usize, access: Access, cpu: usize) {
        match access {
            Access::Load => self.share(at, cpu),
            Access::Store | Access::Rmw | Access::Prefetch => self.own(at, access, cpu),
        }
    }

    /// Makes the CPU the owner.
    fn own(&mut self, at: usize, access: Access, cpu: usize) {
        let line = &mut self.table[at];
        line.owner = cpu as u16;
        line.is_changed = matches!(access, Access::Store | Access::Rmw);
        if line.set != 0 {
            self.sets[line.set as usize] = [0; WORDS];
        }
    }

    /// The time that it takes to move a line.
    fn move_cost(&self, at: usize, access: Access, cpu: usize, costs: &Costs) -> u64 {
        let line = &self.table[at];
        if line.owner != NO_CPU {
            return costs.transfer(line.owner as usize, cpu);
        }
        let sharers = &self.sets[line.set as usize];
        let mut others = *sharers;
        others[cpu / 64] &= !(1 << (cpu % 64));
        if others == [0; WORDS] {
            return if has(sharers, cpu) { 0 } else { costs.memory_ps };
        }
        let within = |group: &Set| others.iter().zip(group).any(|(a, b)| a & b != 0);
        let beyond = |group: &Set| others.iter().zip(group).any(|(a, b)| a & !b != 0);
        let (complex, socket) = (&self.complex[cpu], &self.socket[cpu]);
        if access == Access::Load {
            let nearest = if within(complex) {
                0
            } else if within(socket) {
                1
            } else {
                2
            };
            return costs.transfer_ps[nearest];
        }
        let farthest = if beyond(socket) {
            2
        } else if beyond(complex) {
            1
        } else {
            0
        };
        costs.transfer_ps[farthest]
    }

    /// Adds a sharer; an owner becomes one, too.
    fn share(&mut self, at: usize, cpu: usize) {
        let line = &mut self.table[at];
        let is_new = line.owner == NO_CPU && line.set == 0;
        if is_new {
            line.owner = cpu as u16;
            return;
        }
        if line.set == 0 {
            line.set = self.sets.len() as u32;
            self.sets.push([0; WORDS]);
        }
        let set = &mut self.sets[line.set as usize];
        if line.owner != NO_CPU {
            add(set, line.owner as usize);
            line.owner = NO_CPU;
        }
        add(set, cpu);
    }

    /// Forgets what was fought over so far.
    pub fn forget_fights(&mut self) {
        self.fought.clear();
    }

    /// The waits for lines by place in the code: the sum over its lines, most time first.
    pub fn fights(&self) -> Vec<LineWaits> {
        let mut by_site = std::collections::BTreeMap::<(&str, u32, u32), LineWaits>::new();
        let mut keys: Vec<_> = self.fought.values().collect();
        keys.sort_by_key(|one| (one.line, one.site.line(), one.site.column()));
        for one in keys {
            let place = (one.site.file(), one.site.line(), one.site.column());
            let sum =
                by_site.entry(place).or_insert(LineWaits { transfers: 0, wait_ps: 0, ..*one });
            sum.transfers += one.transfers;
            sum.wait_ps += one.wait_ps;
        }
        let mut fights: Vec<LineWaits> = by_site.into_values().collect();
        fights.sort_by_key(|one| std::cmp::Reverse(one.wait_ps));
        fights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs { complex_cpus: 2, socket_cpus: 4, is_migratory: false, ..Costs::default() }
    }

    /// A transfer, waited for in the queue.
    #[track_caller]
    fn fetch(
        lines: &mut Lines,
        at: usize,
        access: Access,
        cpu: usize,
        clocks: &mut Clocks,
        costs: &Costs,
    ) {
        let asked = lines.ask(at, access, cpu, clocks.now, costs);
        lines.miss(at, access, cpu, clocks, costs, asked, Location::caller());
    }

    /// Time that an access takes from time 1 ms on, when nothing is queued.
    struct Model(Lines, Costs, u64);

    impl Model {
        fn new(costs: Costs) -> Self {
            Model(Lines::new(&costs, 8, 1), costs, 1_000_000_000)
        }

        #[track_caller]
        fn takes(&mut self, cpu: usize, access: Access) -> u64 {
            self.2 += 1_000_000_000;
            self.takes_at(cpu, access)
        }

        /// Runs an access at the time of the one before it.
        #[track_caller]
        fn takes_at_once(&mut self, cpu: usize, access: Access) -> u64 {
            let line = self.0.find(0x1000);
            self.2 = self.0.table[line].last;
            self.takes_at(cpu, access)
        }

        #[track_caller]
        fn takes_at(&mut self, cpu: usize, access: Access) -> u64 {
            let mut clocks = Clocks::at(self.2);
            let at = self.0.find(0x1000);
            if !self.0.hit(at, access, cpu, &mut clocks, &self.1) {
                fetch(&mut self.0, at, access, cpu, &mut clocks, &self.1);
            }
            clocks.now - self.2
        }
    }

    #[test]
    fn accesses_cost_what_the_table_says() {
        let (mut model, costs) = (Model::new(costs()), costs());
        let [near, socket, far] = costs.transfer_ps;
        assert_eq!(model.takes(0, Access::Load), costs.memory_ps + costs.load_ps);
        assert_eq!(model.takes(0, Access::Rmw), costs.rmw_ps);
        assert_eq!(model.takes(1, Access::Load), near + costs.load_ps);
        assert_eq!(model.takes(0, Access::Load), costs.load_ps, "still shared");
        assert_eq!(model.takes(5, Access::Load), far + costs.load_ps);
        assert_eq!(model.takes(4, Access::Load), near + costs.load_ps, "from CPU 5");
        assert_eq!(model.takes(2, Access::Load), socket + costs.load_ps);
        assert_eq!(model.takes(2, Access::Rmw), far + costs.rmw_ps, "the farthest sharer");
        assert_eq!(model.takes(2, Access::Rmw), costs.rmw_ps);
        assert_eq!(model.takes(3, Access::Rmw), near + costs.rmw_ps);
        assert_eq!(model.takes(0, Access::Store), costs.store_ps, "the store buffer hides it");
    }

    #[test]
    fn only_what_needs_a_prefetched_line_waits_for_it() {
        let (mut model, costs) = (Model::new(costs()), costs());
        model.takes(0, Access::Rmw);
        assert_eq!(model.takes(1, Access::Prefetch), 0);
        assert_eq!(model.takes_at(1, Access::Prefetch), 0, "a hint does not wait");
        assert_eq!(model.takes_at(1, Access::Load), costs.transfer_ps[0] + costs.load_ps);
    }

    #[test]
    fn a_load_takes_a_changed_line_where_lines_are_migratory() {
        let costs = Costs { is_migratory: true, ..costs() };
        let near = costs.transfer_ps[0];
        let mut model = Model::new(costs.clone());
        model.takes(0, Access::Rmw);
        assert_eq!(model.takes(1, Access::Load), near + costs.load_ps);
        assert_eq!(model.takes(1, Access::Rmw), costs.rmw_ps, "it owns the line");
        assert_eq!(model.takes(0, Access::Load), near + costs.load_ps, "and takes it back");
        assert_eq!(model.takes(1, Access::Load), near + costs.load_ps, "unchanged: both share it");
        assert_eq!(model.takes(0, Access::Load), costs.load_ps);
        assert_eq!(model.takes(1, Access::Load), costs.load_ps);
        assert_eq!(model.takes(0, Access::Rmw), near + costs.rmw_ps, "the other has a copy");
    }

    #[test]
    fn a_store_soon_after_the_load_that_fetched_its_line_hits() {
        let costs = costs();
        let near = costs.transfer_ps[0];
        let mut model = Model::new(costs.clone());
        let shared = |model: &mut Model| {
            model.takes(0, Access::Rmw);
            model.takes(1, Access::Load);
        };
        shared(&mut model);
        assert_eq!(model.takes_at_once(1, Access::Store), costs.store_ps);
        assert_eq!(model.takes(1, Access::Rmw), costs.rmw_ps, "the store made it its own");
        shared(&mut model);
        assert_eq!(model.takes_at_once(1, Access::Rmw), near + costs.rmw_ps, "no plain store");
        shared(&mut model);
        model.takes(1, Access::Store);
        let line = model.0.find(0x1000);
        assert_eq!(model.0.table[line].arrives - model.2, near, "too late");
        shared(&mut model);
        let waits = model.takes_at_once(0, Access::Rmw);
        assert_eq!(waits, near + costs.rmw_ps, "the other fetched it");
    }

    #[test]
    fn a_line_leaves_in_the_middle_of_its_transfer_give_or_take_a_quarter() {
        let costs = costs();
        let mut lines = Lines::new(&costs, 8, 1);
        let at = lines.find(0x40);
        let mut shares = std::collections::BTreeSet::new();
        for turn in 1..=1000 {
            let mut clocks = Clocks::at(turn * 1_000_000);
            let asked = lines.ask(at, Access::Rmw, (turn % 2) as usize, clocks.now, &costs);
            if turn > 1 {
                assert_eq!(asked.arrives - asked.at, costs.transfer_ps[0]);
                shares.insert((asked.leaves - asked.at) * 100 / costs.transfer_ps[0]);
            }
            let site = Location::caller();
            lines.miss(at, Access::Rmw, (turn % 2) as usize, &mut clocks, &costs, asked, site);
        }
        assert_eq!(shares, LEAVES.collect());
    }

    #[test]
    fn transfers_of_one_line_queue() {
        let (mut lines, costs) = (Lines::new(&costs(), 8, 1), costs());
        let at = lines.find(0x40);
        let mut ends = Vec::new();
        for cpu in [0, 2, 0, 2] {
            let mut clocks = Clocks::at(1000);
            fetch(&mut lines, at, Access::Rmw, cpu, &mut clocks, &costs);
            ends.push(clocks.now);
        }
        let step = costs.transfer_ps[1];
        let steps: Vec<u64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(steps, [step, step, step]);
    }

    #[test]
    fn stores_are_visible_in_order_and_barriers_wait_for_them() {
        let (mut lines, costs) = (Lines::new(&costs(), 8, 1), costs());
        let (a, b) = (lines.find(0), lines.find(64));
        let mut other = Clocks::at(0);
        for at in [a, b] {
            fetch(&mut lines, at, Access::Rmw, 1, &mut other, &costs);
        }
        let mut clocks = Clocks::at(1_000_000);
        for at in [a, b] {
            fetch(&mut lines, at, Access::Store, 0, &mut clocks, &costs);
        }
        assert_eq!(clocks.now, 1_000_000 + 2 * costs.store_ps);
        let visible = 1_000_000 + costs.store_ps + costs.transfer_ps[0];
        assert_eq!(clocks.stored, visible, "both are fetched at once");
        assert!(lines.hit(a, Access::Rmw, 0, &mut clocks, &costs));
        assert_eq!(clocks.now, visible + costs.rmw_ps);
    }

    #[test]
    fn a_full_store_buffer_waits_for_its_oldest_store() {
        let costs = Costs { store_buffer: 3, ..costs() };
        let mut lines = Lines::new(&costs, 8, 1);
        let (far, own) = (lines.find(0), lines.find(64));
        fetch(&mut lines, far, Access::Rmw, 4, &mut Clocks::at(0), &costs);
        let mut clocks = Clocks::at(1_000_000);
        fetch(&mut lines, own, Access::Rmw, 0, &mut clocks, &costs);
        let begin = clocks.now;
        fetch(&mut lines, far, Access::Store, 0, &mut clocks, &costs);
        assert!(lines.hit(own, Access::Store, 0, &mut clocks, &costs));
        assert_eq!(clocks.now, begin + 2 * costs.store_ps, "two of three places are taken");
        assert!(lines.hit(own, Access::Store, 0, &mut clocks, &costs));
        assert_eq!(clocks.now, begin + costs.transfer_ps[2], "until the first has its line");
        assert!(lines.hit(own, Access::Store, 0, &mut clocks, &costs));
        assert_eq!(clocks.now, begin + costs.transfer_ps[2] + costs.store_ps);
    }

    #[test]
    fn the_table_grows_and_keeps_lines() {
        let (mut lines, costs) = (Lines::new(&costs(), 8, 1), costs());
        let mut clocks = Clocks::at(0);
        for number in 0..100_000usize {
            let at = lines.find(number << LINE_SHIFT);
            fetch(&mut lines, at, Access::Rmw, number % 8, &mut clocks, &costs);
        }
        for number in 0..100_000usize {
            let at = lines.find(number << LINE_SHIFT);
            assert!(lines.hit(at, Access::Rmw, number % 8, &mut clocks, &costs), "{number}");
        }
    }
}
