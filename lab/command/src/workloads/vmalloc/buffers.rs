//! Large buffers, and buffers that grow, beside `mmap` and the standard library's `Vec`.
//!
//! | kind | what |
//! |---|---|
//! | made | a zeroed buffer is made, a byte of it is written, and it is dropped |
//! | by steps | a buffer grows by 1 MiB at a time, each new page is touched, and it is dropped. The depot's and `mmap`'s have reserved the addresses; `Vec` cannot |
//! | by half | as by steps, but by half of its size at a time, and without a reservation |

use std::hint::black_box;
use std::iter;
use std::ptr;
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
use pagedepot_cli::workloads::settings::Settings;

const MIB: usize = 1 << 20;
/// Sizes of buffers that are made, in pages of 4 KiB: 1, 4 and 16 MiB.
const MADE_PAGES: [u32; 3] = [256, 1024, 4096];
/// Size to which buffers grow, in pages: more than `malloc` takes from its heap, so that `Vec`
/// grows by `mremap`.
const GROWN_PAGES: u32 = 16_384;
const DESIGNS: [Design; 3] = [Design::Depot, Design::Mmap, Design::Vec];

/// The use of a buffer, and its size in pages at the end.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Made(u32),
    BySteps(u32),
    ByHalf(u32),
}

impl Kind {
    fn all() -> impl Iterator<Item = Kind> + Clone {
        let growing = [Kind::BySteps(GROWN_PAGES), Kind::ByHalf(GROWN_PAGES)];
        MADE_PAGES.into_iter().map(Kind::Made).chain(growing)
    }

    const fn pages(self) -> u32 {
        match self {
            Kind::Made(pages) | Kind::BySteps(pages) | Kind::ByHalf(pages) => pages,
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
        }
    }

    const fn metric(self) -> Metric {
        match self {
            Kind::Made(_) => ("buffer_ns", "ns"),
            Kind::BySteps(_) => ("step_growth_ns", "ns"),
            Kind::ByHalf(_) => ("half_growth_ns", "ns"),
        }
    }

    fn params(self, threads: usize) -> Params {
        params([("pages", self.pages().into()), ("threads", threads as i64)])
    }

    /// The divisor of a unit's time: the pages that are touched.
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
    let designs = designs.iter().copied().filter(|&design| has_rows(mapper, design));
    let all: Vec<(Design, Kind)> =
        Kind::all().flat_map(|kind| designs.clone().map(move |design| (design, kind))).collect();
    let mut report = Report::default();
    if all.is_empty() {
        return Ok(report);
    }
    let counts = [1, settings.cpus.len()].into_iter().take(settings.cpus.len().min(2));
    let mut by_cpus = Vec::new();
    for cpus in counts {
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
    report.say(format!("{NAME}: large buffers, and buffers that grow, ns and thread"));
    report.say(pairs::show(&by_cpus, &rows));
    Ok(report)
}

fn contender(design: Design, kind: Kind, seats: usize) -> Result<Box<dyn Contender<1>>, Failure> {
    Ok(match design {
        Design::Depot => Box::new(Buffers { space: space(kind, seats)?, kind }),
        Design::Mmap => Box::new(Mmap(kind)),
        _ => Box::new(Vecs(kind)),
    })
}

/// An address space over a depot of twice the memory that the buffers have at the end.
fn space(kind: Kind, seats: usize) -> Result<Vmalloc, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("buffers: {error}"));
    let bytes = 2 * seats * kind.bytes() + 64 * MIB;
    let depot = Depot::builder(bytes).memory(MemoryKind::Memfd).build().map_err(|e| failed(&e))?;
    Vmalloc::new(&depot).map_err(|e| failed(&e))
}

/// Runs `unit` again and again; returns its time in ns, for each page that it touches.
fn timed(kind: Kind, units: u64, mut unit: impl FnMut()) -> [f64; 1] {
    let start = Instant::now();
    (0..units).for_each(|_| unit());
    [start.elapsed().as_nanos() as f64 / units as f64 / kind.touched()]
}

/// The depot's buffers.
struct Buffers {
    space: Vmalloc,
    kind: Kind,
}

impl Contender<1> for Buffers {
    fn subject(&self) -> &dyn Subject {
        &Design::Depot
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let (space, bytes) = (&self.space, self.kind.bytes());
        timed(self.kind, units, || {
            let mut buf = match self.kind {
                Kind::Made(_) => {
                    let mut buf = space.buf(bytes).expect("there is memory");
                    buf[bytes / 2] = 1;
                    return drop(black_box(buf));
                }
                Kind::BySteps(_) => space.reserve(bytes).expect("there is room"),
                Kind::ByHalf(_) => space.empty(),
            };
            for size in self.kind.sizes() {
                let old = buf.len();
                buf.grow(size).expect("there is memory");
                buf[old..].chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
            }
            drop(black_box(buf));
        })
    }
}

/// Vectors of the standard library.
struct Vecs(Kind);

impl Contender<1> for Vecs {
    fn subject(&self) -> &dyn Subject {
        &Design::Vec
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let bytes = self.0.bytes();
        timed(self.0, units, || {
            if let Kind::Made(_) = self.0 {
                let mut vec = vec![0_u8; bytes];
                vec[bytes / 2] = 1;
                return drop(black_box(vec));
            }
            let (mut vec, mut old) = (Vec::<u8>::new(), 0);
            for size in self.0.sizes() {
                vec.reserve_exact(size);
                let new = &mut vec.spare_capacity_mut()[old..size];
                new.iter_mut().step_by(PAGE_BYTES).for_each(|byte| _ = byte.write(1));
                old = size;
            }
            drop(black_box(vec));
        })
    }
}

/// The operating system's mappings.
struct Mmap(Kind);

impl Contender<1> for Mmap {
    fn subject(&self) -> &dyn Subject {
        &Design::Mmap
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = self.0.bytes();
        let map = |bytes: usize, access: ProtFlags| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping, wherever there is room.
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }
                .expect("there is memory")
                .cast::<u8>()
        };
        timed(self.0, units, || {
            let first = self.0.sizes().next().unwrap_or(bytes);
            let mut memory = match self.0 {
                Kind::Made(_) => map(bytes, writable),
                Kind::BySteps(_) => map(bytes, ProtFlags::empty()),
                Kind::ByHalf(_) => map(first, writable),
            };
            if let Kind::Made(_) = self.0 {
                // SAFETY: mapped above, writable.
                unsafe { memory.add(bytes / 2).write_volatile(1) };
            } else {
                let mut old = 0;
                for size in self.0.sizes() {
                    // SAFETY: in the mapping made above, or all of it: it is this thread's.
                    unsafe {
                        if let Kind::BySteps(_) = self.0 {
                            let access = MprotectFlags::READ | MprotectFlags::WRITE;
                            mprotect(memory.add(old).cast(), size - old, access)
                                .expect("it is mapped");
                        } else if old > 0 {
                            let moves = MremapFlags::MAYMOVE;
                            memory = mremap(memory.cast(), old, size, moves)
                                .expect("there is memory")
                                .cast();
                        }
                        touch(memory.add(old), ((size - old) / PAGE_BYTES) as u32);
                    }
                    old = size;
                }
            }
            // SAFETY: the mapping above; nothing of it is kept.
            unsafe { munmap(memory.cast(), bytes) }.expect("it was mapped");
        })
    }
}
