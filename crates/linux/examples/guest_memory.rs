//! A pool of guests' memory. Each guest is a process with a depot in a segment of its own, which
//! the host has opened, too. Their loads have peaks at different times, and the host wants what
//! each does not use. It takes whole pageblocks that are free by the segment's shared metadata,
//! punches holes into the file there, and holds them: the guest's program does nothing for that, as
//! in HyperAlloc (EuroSys 2025). A page that a CPU of the guest caches keeps its pageblock: so once
//! more the same, by a host that asks for what guests cache when much is free that is not whole.
//! Beside both a balloon: the host asks, a thread of the guest allocates pageblocks and sends them.
//! In all of them a guest that runs short gets pageblocks back, for which its request asks the
//! host.
//!
//! `cargo run --release -p pagedepot-linux --example guest_memory [TICKS] [MIB]`: ticks of 20 ms,
//! and MiB of each guest.

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot_linux::shared::{Orphans, SentPage, SharedDepot, SharedOptions};
use pagedepot_linux::{Flags, Mode, Order, Page, Scope};
use rustix::time::ClockId;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const GUESTS: usize = 3;
const TICK: Duration = Duration::from_millis(20);
/// Whole pageblocks that a guest is left with, so that it seldom runs short at once.
const RESERVE: u64 = 2;
/// Pageblocks that a guest gets when it runs short.
const GIVEN: usize = 4;
const MIB: usize = 1 << 20;

/// The ways in which the host gets memory.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It gets none.
    None,
    Balloon,
    /// It takes pageblocks by itself.
    Takes,
    /// It takes pageblocks by itself, and asks for what the guests' CPUs cache.
    Asks,
}

const WAYS: [Way; 4] = [Way::None, Way::Balloon, Way::Takes, Way::Asks];

/// Ticks of a run, and bytes of a guest.
#[derive(Clone, Copy)]
struct Size {
    ticks: usize,
    mib: usize,
}

impl Size {
    /// MiB that a guest uses at a tick: an eighth of all, and at its peak six times as much.
    fn load_mib(self, guest: usize, tick: usize) -> usize {
        let (base, length) = (self.mib / 8, self.ticks / GUESTS);
        let begins = guest * length + length / 8;
        let ramp = (length / 4).max(1);
        let since = tick.saturating_sub(begins);
        let left = (begins + length * 3 / 4).saturating_sub(tick);
        base + base * 5 * since.min(left).min(ramp) / ramp
    }

    fn all_loads_mib(self, tick: usize) -> f64 {
        (0..GUESTS).map(|guest| self.load_mib(guest, tick)).sum::<usize>() as f64
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let size = |ticks: &str, mib: &str| -> Result<Size> {
        let (ticks, mib) = (ticks.parse()?, mib.parse()?);
        if ticks < 8 * GUESTS || mib < 16 {
            return Err("at least 24 ticks and 16 MiB, so that there are peaks".into());
        }
        Ok(Size { ticks, mib })
    };
    match arguments[..] {
        ["guest", segment, socket, number, ticks, mib] => {
            be_guest((segment.parse()?, socket.parse()?), number.parse()?, size(ticks, mib)?)
        }
        [] => compare(size("90", "96")?),
        [ticks] => compare(size(ticks, "96")?),
        [ticks, mib, ..] => compare(size(ticks, mib)?),
    }
}

fn compare(size: Size) -> Result<()> {
    let runs = WAYS.map(|way| run(way, size));
    let [none, balloon, takes, asks] = runs;
    let runs = [none?, balloon?, takes?, asks?];
    assert_eq!(runs[2].steps.wakes, 0, "the guests did nothing");
    println!("Memory of {GUESTS} guests over {} ticks, each of {} MiB:", size.ticks, size.mib);
    plot(&runs, size);
    table(&runs, size);
    Ok(())
}

/// The work of guests for the host, and their requests that ran short.
#[derive(Clone, Copy, Default)]
struct Steps {
    /// Messages of the host that woke a thread of a guest.
    wakes: u64,
    /// Pageblocks that guests have allocated for the host.
    pageblocks: u64,
    /// Time of a CPU that the guests' threads took for both.
    cpu_us: u64,
    /// Requests that failed, and were made again.
    failed: u64,
}

const STEPS_BYTES: usize = 32;

impl Steps {
    fn to_bytes(self) -> [u8; STEPS_BYTES] {
        let mut bytes = [0; STEPS_BYTES];
        let all = [self.wakes, self.pageblocks, self.cpu_us, self.failed];
        for (to, one) in bytes.chunks_exact_mut(8).zip(all) {
            to.copy_from_slice(&one.to_le_bytes());
        }
        bytes
    }

    fn add(&mut self, bytes: [u8; STEPS_BYTES]) {
        let all = [&mut self.wakes, &mut self.pageblocks, &mut self.cpu_us, &mut self.failed];
        for (from, one) in bytes.chunks_exact(8).zip(all) {
            *one += u64::from_le_bytes(from.try_into().expect("eight bytes"));
        }
    }
}

/// The course of one run.
struct Run {
    /// MiB that the guests' files have, by tick.
    mib: Vec<f64>,
    /// Pageblocks that the host has got.
    pageblocks: u64,
    /// Requests of guests that ran short, and woke the host.
    shortages: u64,
    steps: Steps,
}

/// A guest, as the host sees it.
struct Guest {
    depot: SharedDepot,
    socket: UnixStream,
    process: Child,
    /// Pageblocks without memory that the host holds.
    withheld: Arc<Mutex<Vec<Page>>>,
    /// Free pages that were not whole when the guest was asked last.
    scattered: u64,
    /// Times that it has given back what it cached.
    answers: u64,
}

fn run(way: Way, size: Size) -> Result<Run> {
    let shortages = Arc::new(AtomicU64::new(0));
    let mut guests = Vec::new();
    for number in 0..GUESTS {
        guests.push(Guest::start(number, size, shortages.clone())?);
    }
    // All have joined: their loads begin.
    for guest in &mut guests {
        guest.hear::<1>()?;
    }
    for guest in &mut guests {
        guest.socket.write_all(b"b")?;
    }
    let (began, mut mib, mut pageblocks) = (Instant::now(), Vec::new(), 0);
    for tick in 0..size.ticks {
        thread::sleep((TICK * tick as u32).saturating_sub(began.elapsed()));
        for guest in &mut guests {
            pageblocks += match way {
                Way::None => 0,
                Way::Balloon => guest.ask()?,
                Way::Takes => guest.take()?,
                Way::Asks => {
                    guest.gather();
                    guest.take()?
                }
            };
        }
        let bytes = guests.iter().map(Guest::bytes).sum::<Result<u64>>()?;
        mib.push(bytes as f64 / MIB as f64);
    }
    let mut steps = Steps::default();
    for guest in guests {
        steps.wakes += guest.answers;
        steps.add(guest.end()?);
    }
    Ok(Run { mib, pageblocks, shortages: shortages.load(Ordering::Relaxed), steps })
}

impl Guest {
    fn start(number: usize, size: Size, shortages: Arc<AtomicU64>) -> Result<Self> {
        let options = SharedOptions::new(size.mib * MIB);
        let depot = SharedDepot::create_memfd("guest", &options)?;
        let withheld: Arc<Mutex<Vec<Page>>> = Arc::default();
        let given = withheld.clone();
        depot.on_shortage(move || {
            let mut withheld = given.lock().expect("no thread panics");
            let left = withheld.len().saturating_sub(GIVEN);
            shortages.fetch_add(u64::from(left < withheld.len()), Ordering::Relaxed);
            withheld.truncate(left);
        })?;
        let (socket, theirs) = UnixStream::pair()?;
        let [segment, theirs_number] = [depot.file(), theirs.as_fd()].map(inherited);
        let process = Command::new(std::env::current_exe()?)
            .args(["guest", &segment?.to_string(), &theirs_number?.to_string()])
            .args([number, size.ticks, size.mib].map(|number| number.to_string()))
            .spawn()?;
        Ok(Guest { depot, socket, process, withheld, scattered: 0, answers: 0 })
    }

    /// Takes whole pageblocks that the guest does not use. Returns how many.
    fn take(&mut self) -> Result<u64> {
        let spare = self.depot.segment_stats().whole_pageblocks.saturating_sub(RESERVE);
        let mut taken = Vec::new();
        for _ in 0..spare {
            // A request that may not reclaim asks nothing of the guest.
            let page = self.depot.page_with(pageblock(), Flags::default().no_reclaim());
            // The guest has been faster.
            let Ok(page) = page else { break };
            taken.push(page);
        }
        self.withhold(taken)
    }

    /// Asks for what the guest's CPUs cache, if more is free in parts of pageblocks than before.
    fn gather(&mut self) {
        let scattered = || {
            let stats = self.depot.segment_stats();
            stats.free_pages.saturating_sub(stats.whole_pageblocks * 512)
        };
        let now = scattered();
        if now > self.scattered + 512 {
            let drained = self.depot.drain_all(Mode::Full, Duration::from_millis(10));
            self.answers += u64::from(drained.answered);
            self.scattered = scattered();
        } else {
            self.scattered = self.scattered.min(now);
        }
    }

    /// Asks the guest for what it does not use. Returns the pageblocks that it sent.
    fn ask(&mut self) -> Result<u64> {
        self.socket.write_all(b"g")?;
        let count = u32::from_le_bytes(self.hear()?);
        let mut taken = Vec::new();
        for _ in 0..count {
            let sent = SentPage::from_bits(u128::from_le_bytes(self.hear()?));
            taken.push(self.depot.claim(sent)?);
        }
        self.withhold(taken)
    }

    fn withhold(&mut self, mut pages: Vec<Page>) -> Result<u64> {
        for page in &mut pages {
            page.discard()?;
        }
        let count = pages.len() as u64;
        self.withheld.lock().expect("no thread panics").extend(pages);
        // What the host's CPUs cache of the guest's depot, the guest cannot have.
        self.depot.drain(Scope::ALL, Mode::Full);
        Ok(count)
    }

    /// Bytes that the guest's file has.
    fn bytes(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(self.depot.file())?.st_blocks as u64 * 512)
    }

    fn hear<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits for the guest's end, and checks that every page is there.
    fn end(mut self) -> Result<[u8; STEPS_BYTES]> {
        self.socket.write_all(b"e")?;
        let steps = self.hear()?;
        assert!(self.process.wait()?.success(), "the guest has found its pages as it left them");
        self.withheld.lock().expect("no thread panics").clear();
        self.depot.recover(Orphans::GoBack);
        self.depot.drain(Scope::ALL, Mode::Full);
        let stats = self.depot.segment_stats();
        assert_eq!((stats.free_pages, stats.lost_pages), (stats.pages_max, 0));
        Ok(steps)
    }
}

/// The order of a whole pageblock.
fn pageblock() -> Order {
    Order::new(9).expect("an order")
}

/// The main thread has a load; another does what the host asks.
fn be_guest((segment, socket): (i32, i32), number: usize, size: Size) -> Result<()> {
    // SAFETY: descriptors that the host has left open for this process.
    let (segment, socket) =
        unsafe { (OwnedFd::from_raw_fd(segment), OwnedFd::from_raw_fd(socket)) };
    let depot = SharedDepot::adopt(&segment, &SharedOptions::join())?;
    let mut socket = UnixStream::from(socket);
    socket.write_all(b"r")?;
    socket.read_exact(&mut [0])?;
    thread::scope(|scope| {
        let load = scope.spawn(|| have_load(&depot, number, size));
        let mut steps = Steps::default();
        let begun = cpu_time(ClockId::ProcessCPUTime);
        let mut message = [0];
        loop {
            socket.read_exact(&mut message)?;
            if message == *b"e" {
                let (failed, own) = load.join().expect("the load does not fail");
                let all = cpu_time(ClockId::ProcessCPUTime) - begun;
                steps.cpu_us = all.saturating_sub(own).as_micros() as u64;
                steps.failed = failed;
                socket.write_all(&steps.to_bytes())?;
                return Ok(());
            }
            let sent = give_up(&depot);
            steps.wakes += 1;
            steps.pageblocks += sent.len() as u64;
            socket.write_all(&(sent.len() as u32).to_le_bytes())?;
            for page in sent {
                socket.write_all(&page.to_bits().to_le_bytes())?;
            }
        }
    })
}

/// The balloon: allocates whole pageblocks, and sends them.
fn give_up(depot: &SharedDepot) -> Vec<SentPage> {
    let spare = depot.segment_stats().whole_pageblocks.saturating_sub(RESERVE);
    let request = |_| depot.page_with(pageblock(), Flags::default().no_reclaim()).ok();
    let pages = (0..spare).map_while(request);
    let sent = pages.map(|page| page.into_shared(depot).expect("a page of this depot")).collect();
    depot.drain(Scope::ALL, Mode::Full);
    sent
}

/// Time of CPUs that this thread or process has taken.
fn cpu_time(of: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(of);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Holds and frees pages as the load wants: some from start to end, more while it has a peak.
/// Returns the number of requests that failed, and the time of a CPU that the load took.
fn have_load(depot: &SharedDepot, number: usize, size: Size) -> (u64, Duration) {
    let (began, page_bytes, mut failed) = (Instant::now(), depot.page_size().bytes(), 0);
    let mut held: Vec<Page> = Vec::new();
    let lasting = size.load_mib(number, 0) * MIB / page_bytes;
    let mut random = number as u64 + 1;
    for tick in 0..size.ticks {
        thread::sleep((TICK * tick as u32).saturating_sub(began.elapsed()));
        let wanted = size.load_mib(number, tick) * MIB / page_bytes;
        held.drain(wanted.min(held.len())..).for_each(|page| check(&page));
        // What is there from the start lasts. Of the rest an eighth is other pages each tick.
        for _ in 0..held.len().saturating_sub(lasting) / 8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = lasting + (random >> 33) as usize % (held.len() - lasting);
            check(&held.swap_remove(at));
        }
        while held.len() < wanted {
            match depot.page(Order::BASE) {
                Ok(mut page) => {
                    let mark = page.pfn().get().to_le_bytes();
                    page[..4].copy_from_slice(&mark);
                    held.push(page);
                }
                // The host had no time to answer.
                Err(_) => failed += 1,
            }
        }
    }
    held.iter().for_each(check);
    (failed, cpu_time(ClockId::ThreadCPUTime))
}

/// Fails unless the page has its mark: a hole would have taken it.
fn check(page: &Page) {
    assert_eq!(page[..4], page.pfn().get().to_le_bytes());
}

/// Lets processes that this one makes inherit a descriptor. Returns its number.
fn inherited(fd: BorrowedFd<'_>) -> Result<i32> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    Ok(fd.as_raw_fd())
}

const COLUMNS: usize = 66;
const ROWS: usize = 11;

/// Draws the memory of all runs over time.
fn plot(runs: &[Run; 4], size: Size) {
    let most = runs.iter().flat_map(|run| &run.mib).fold(1.0, |most: f64, &mib| most.max(mib));
    // The columns, each from the top down.
    let mut columns = vec![[b' '; ROWS]; COLUMNS];
    let mut draw = |mark: u8, mib: &dyn Fn(usize) -> f64| {
        for (at, cells) in columns.iter_mut().enumerate() {
            let row = (mib(at * size.ticks / COLUMNS) / most * (ROWS - 1) as f64).round();
            let cell = &mut cells[ROWS - 1 - row as usize];
            *cell = if b"o*+@".contains(cell) { b'@' } else { mark };
        }
    };
    draw(b'-', &|tick| size.all_loads_mib(tick));
    for (run, mark) in runs.iter().zip(*b".o*+") {
        draw(mark, &|tick| run.mib[tick]);
    }
    for row in 0..ROWS {
        let mib = most * (ROWS - 1 - row) as f64 / (ROWS - 1) as f64;
        let cells: String = columns.iter().map(|cells| char::from(cells[row])).collect();
        println!("{mib:>6.0} |{}", cells.trim_end());
    }
    println!("   MiB +{} time", "-".repeat(COLUMNS - 6));
    println!("  - in use  . kept  o balloon  * taken  + taken, and asked for caches  @ several");
}

/// Prints what the runs have cost.
fn table(runs: &[Run; 4], size: Size) {
    let mean = |all: &mut dyn Iterator<Item = f64>| all.sum::<f64>() / size.ticks as f64;
    let row = |name: &str, value: &dyn Fn(&Run) -> f64| {
        let values = runs.each_ref().map(|run| format!("{:>9.0}", value(run)));
        println!("{name:<40} {}", values.join(" "));
    };
    println!("{:<40} {:>9} {:>9} {:>9} {:>9}", "", "kept", "balloon", "taken", "and asked");
    row("memory at most, MiB", &|run| run.mib.iter().fold(0.0, |most, &mib| mib.max(most)));
    let used = mean(&mut (0..size.ticks).map(|tick| size.all_loads_mib(tick)));
    row(&format!("memory on average, MiB ({used:.0} in use)"), &|run| {
        mean(&mut run.mib.iter().copied())
    });
    row("pageblocks that the host has got", &|run| run.pageblocks as f64);
    row("... of them allocated by a guest", &|run| run.steps.pageblocks as f64);
    row("times that the host woke a guest", &|run| run.steps.wakes as f64);
    row("CPU time of guests besides loads, us", &|run| run.steps.cpu_us as f64);
    row("times that a guest ran short", &|run| run.shortages as f64);
    row("requests that failed and were repeated", &|run| run.steps.failed as f64);
}
