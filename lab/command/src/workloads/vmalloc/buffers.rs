//! Large buffers, and buffers that grow, beside `mmap` and the standard library's `Vec`.
//!
//! | kind | what |
//! |---|---|
//! | made | a zeroed buffer is made, a byte of it is written, and it is dropped |
//! | by steps | a buffer grows by 1 MiB at a time, each new page is touched, and it is dropped. The depot's and `mmap`'s have reserved the addresses; `Vec` cannot |
//! | by half | as by steps, but by half of its size at a time, and without a reservation |
//! | by many | as by steps, by 16 threads at once, to 2 GiB in all. Not with `--quick` |

use std::hint::black_box;
use std::iter;
use std::ptr;
use std::thread;
use std::time::Instant;

use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap, munmap,
};

use super::memory::touch;
use super::options::{MapperKind, NAME};
use super::pairs;
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Seat, Subject};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::Report;
use pagedepot_cli::report::rows::{Metric, Params, params};
use pagedepot_cli::workloads::settings::{Effort, Settings};

const MIB: usize = 1 << 20;
/// Sizes of buffers that are made, in pages of 4 KiB: 1, 4 and 16 MiB.
const MADE_PAGES: [u32; 3] = [256, 1024, 4096];
/// Size to which buffers grow, in pages: more than `malloc` takes from its heap, so that `Vec`
/// grows by `mremap`.
const GROWN_PAGES: u32 = 16_384;
/// The threads that grow buffers at once, and the size to which each grows one, in pages.
const MANY_THREADS: usize = 16;
const MANY_PAGES: u32 = 32_768;
/// Windows of these, each of which takes a second or more.
const MANY_ROUNDS_MAX: u32 = 11;
const DESIGNS: [Design; 3] = [Design::Depot, Design::Mmap, Design::Vec];

/// The use of a buffer, and its size in pages at the end.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Made(u32),
    BySteps(u32),
    ByHalf(u32),
    ByMany(u32),
}

impl Kind {
    fn all() -> impl Iterator<Item = Kind> + Clone {
        let growing = [Kind::BySteps(GROWN_PAGES), Kind::ByHalf(GROWN_PAGES)];
        MADE_PAGES.into_iter().map(Kind::Made).chain(growing)
    }

    const fn pages(self) -> u32 {
        match self {
            Kind::Made(pages)
            | Kind::BySteps(pages)
            | Kind::ByHalf(pages)
            | Kind::ByMany(pages) => pages,
        }
    }

    const fn bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }

    const fn label(self) -> &'static str {
        match self {
            Kind::Made(_) => "made, a byte written",
            Kind::BySteps(_) => "grown by 1 MiB, a page",
            Kind::ByHalf(_) => "grown by half, a page",
            Kind::ByMany(_) => "grown by 1 MiB by 16 threads, a page",
        }
    }

    const fn metric(self) -> Metric {
        match self {
            Kind::Made(_) => ("buffer_ns", "ns"),
            Kind::BySteps(_) => ("step_growth_ns", "ns"),
            Kind::ByHalf(_) => ("half_growth_ns", "ns"),
            Kind::ByMany(_) => ("many_growth_ns", "ns"),
        }
    }

    /// Whether the buffer grows in addresses that it has reserved.
    const fn is_reserved(self) -> bool {
        matches!(self, Kind::BySteps(_) | Kind::ByMany(_))
    }

    /// The number of threads at each of so many seats.
    fn threads(self, seats: usize) -> usize {
        if matches!(self, Kind::ByMany(_)) { MANY_THREADS.div_ceil(seats) } else { 1 }
    }

    fn params(self, seats: usize) -> Params {
        let threads = seats * self.threads(seats);
        params([("pages", self.pages().into()), ("threads", threads as i64)])
    }

    /// The pages that a buffer's use touches, by which its time is divided.
    fn touched(self) -> f64 {
        if matches!(self, Kind::Made(_)) { 1.0 } else { f64::from(self.pages()) }
    }

    /// Sizes to which a buffer grows, one after the other, in bytes.
    fn sizes(self) -> impl Iterator<Item = usize> {
        let end = self.bytes();
        let next = move |&size: &usize| {
            let grown = match self {
                Kind::ByHalf(_) => (size + size / 2).next_multiple_of(PAGE_BYTES),
                _ => size + MIB,
            };
            (size < end).then(|| grown.min(end))
        };
        iter::successors(Some(MIB.min(end)), next)
    }
}

/// Whether the mapper makes any row of a design possible.
pub fn has_rows(mapper: MapperKind, design: Design) -> bool {
    mapper == MapperKind::Linux && DESIGNS.contains(&design)
}

/// Measures buffers, on one CPU and on all.
///
/// # Errors
/// When memory cannot be had.
pub fn run(mapper: MapperKind, designs: &[Design], settings: &Settings) -> Result<Report, Failure> {
    let designs: Vec<Design> =
        designs.iter().copied().filter(|&design| has_rows(mapper, design)).collect();
    let mut report = Report::default();
    if designs.is_empty() {
        return Ok(report);
    }
    let all = settings.cpus.len();
    let counts: Vec<usize> = [1, all].into_iter().take(all.min(2)).collect();
    report.say(format!("{NAME}: large buffers, and buffers that grow, ns and thread"));
    measure(&mut report, (&designs, Kind::all()), &counts, settings)?;
    if settings.effort != Effort::Quick {
        let few = Settings { rounds: settings.rounds.min(MANY_ROUNDS_MAX), ..settings.clone() };
        let many = iter::once(Kind::ByMany(MANY_PAGES));
        measure(&mut report, (&designs, many), &[all], &few)?;
    }
    Ok(report)
}

/// Measures some kinds with these numbers of CPUs.
fn measure(
    report: &mut Report,
    (designs, kinds): (&[Design], impl Iterator<Item = Kind>),
    counts: &[usize],
    settings: &Settings,
) -> Result<(), Failure> {
    let all: Vec<(Design, Kind)> =
        kinds.flat_map(|kind| designs.iter().map(move |&design| (design, kind))).collect();
    let mut by_cpus = Vec::new();
    for &cpus in counts {
        let made = all.iter().map(|&(design, kind)| contender(design, kind, cpus));
        let contenders = made.collect::<Result<Vec<_>, _>>()?;
        by_cpus.push((cpus, pairs::measure(&contenders, cpus, settings)));
    }
    for (cpus, series) in &by_cpus {
        for (series, &(design, kind)) in series.iter().zip(&all) {
            let params = kind.params(*cpus);
            report.add(NAME, design, kind.metric(), (*cpus, &params), &series.samples[0]);
        }
    }
    let rows: Vec<_> =
        all.iter().map(|&(design, kind)| (design, kind.pages(), kind.label())).collect();
    report.say(pairs::show(&by_cpus, &rows));
    Ok(())
}

fn contender(design: Design, kind: Kind, seats: usize) -> Result<Box<dyn Contender<1>>, Failure> {
    let threads = kind.threads(seats);
    Ok(match design {
        Design::Depot => {
            let space = space(kind, seats * threads)?;
            Box::new(Buffers { design, kind, threads, user: move || in_space(&space, kind) })
        }
        Design::Mmap => Box::new(Buffers { design, kind, threads, user: move || in_mapping(kind) }),
        _ => Box::new(Buffers { design, kind, threads, user: move || in_vec(kind) }),
    })
}

/// An address space over a depot of twice the memory that so many buffers have at the end.
fn space(kind: Kind, buffers: usize) -> Result<Vmalloc, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("buffers: {error}"));
    let bytes = 2 * buffers * kind.bytes() + 64 * MIB;
    let depot = Depot::builder(bytes).memory(MemoryKind::Memfd).build().map_err(|e| failed(&e))?;
    Vmalloc::new(&depot).map_err(|e| failed(&e))
}

/// A design's buffers, of which each call of `user` uses one.
struct Buffers<U> {
    design: Design,
    kind: Kind,
    /// The threads of a seat, which use buffers at once, each its own.
    threads: usize,
    user: U,
}

impl<U: Fn() + Sync> Contender<1> for Buffers<U> {
    fn subject(&self) -> &dyn Subject {
        &self.design
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let user = &self.user;
        let start = Instant::now();
        (0..units).for_each(|_| match self.threads {
            1 => user(),
            // They run where the seat does.
            threads => thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(user)))),
        });
        let uses = units as f64 * self.threads as f64;
        [start.elapsed().as_nanos() as f64 / uses / self.kind.touched()]
    }
}

/// Uses a buffer of the depot.
fn in_space(space: &Vmalloc, kind: Kind) {
    let bytes = kind.bytes();
    if let Kind::Made(_) = kind {
        let mut buf = space.buf(bytes).expect("there is memory");
        buf[bytes / 2] = 1;
        return drop(black_box(buf));
    }
    let reserved = || space.reserve(bytes).expect("there is room");
    let mut buf = if kind.is_reserved() { reserved() } else { space.empty() };
    for size in kind.sizes() {
        let old = buf.len();
        buf.grow(size).expect("there is memory");
        buf[old..].chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
    }
    drop(black_box(buf));
}

/// Uses a vector of the standard library.
fn in_vec(kind: Kind) {
    if let Kind::Made(_) = kind {
        let mut vec = vec![0_u8; kind.bytes()];
        vec[kind.bytes() / 2] = 1;
        return drop(black_box(vec));
    }
    let (mut vec, mut old) = (Vec::<u8>::new(), 0);
    for size in kind.sizes() {
        vec.reserve_exact(size);
        let new = &mut vec.spare_capacity_mut()[old..size];
        new.iter_mut().step_by(PAGE_BYTES).for_each(|byte| _ = byte.write(1));
        old = size;
    }
    drop(black_box(vec));
}

/// Uses a mapping of the operating system.
fn in_mapping(kind: Kind) {
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let bytes = kind.bytes();
    let map = |bytes: usize, access: ProtFlags| {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever there is room.
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }
            .expect("there is memory")
            .cast::<u8>()
    };
    let first = kind.sizes().next().unwrap_or(bytes);
    let mut memory = match kind {
        Kind::Made(_) => map(bytes, writable),
        _ if kind.is_reserved() => map(bytes, ProtFlags::empty()),
        _ => map(first, writable),
    };
    if let Kind::Made(_) = kind {
        // SAFETY: mapped above, writable.
        unsafe { memory.add(bytes / 2).write_volatile(1) };
    } else {
        let mut old = 0;
        for size in kind.sizes() {
            // SAFETY: in the mapping made above, or all of it: it is this thread's.
            unsafe {
                if kind.is_reserved() {
                    let access = MprotectFlags::READ | MprotectFlags::WRITE;
                    mprotect(memory.add(old).cast(), size - old, access).expect("it is mapped");
                } else if old > 0 {
                    let moves = MremapFlags::MAYMOVE;
                    memory =
                        mremap(memory.cast(), old, size, moves).expect("there is memory").cast();
                }
                touch(memory.add(old), ((size - old) / PAGE_BYTES) as u32);
            }
            old = size;
        }
    }
    // SAFETY: the mapping above; nothing of it is kept.
    unsafe { munmap(memory.cast(), bytes) }.expect("it was mapped");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_are_spread_over_the_seats() {
        let threads = |seats: usize| seats * Kind::ByMany(MANY_PAGES).threads(seats);
        assert_eq!([1, 2, 4, 16, 64].map(threads), [16, 16, 16, 16, 64]);
        assert_eq!(u64::from(MANY_PAGES) * PAGE_BYTES as u64 * 16, 2 << 30);
    }

    #[test]
    fn every_design_uses_buffers_of_every_kind() {
        let small = [Kind::Made(512), Kind::BySteps(512), Kind::ByHalf(700), Kind::ByMany(300)];
        let seat = Seat { index: 0, cpu: pagedepot::CpuId::new(0) };
        for (design, kind) in
            DESIGNS.into_iter().flat_map(|design| small.map(|kind| (design, kind)))
        {
            let contender = contender(design, kind, 8).unwrap();
            assert_eq!(contender.subject().design(), design);
            assert!(contender.window(seat, 2)[0] > 0.0, "{design}, {kind:?}");
        }
    }
}
