//! `madvise`: ways to give free memory back to the system, compared. `MADV_DONTNEED`, which a depot
//! uses, takes pages away at once. `MADV_FREE` lets the kernel take them when it runs short, and
//! `MADV_COLD` has it look at them first.
//!
//! One thread touches the base pages of a mapping, gives them back in pieces of a pageblock, as a
//! trim does, and touches them again. Then it gives them back once more, and has the kernel reclaim
//! them as it would under pressure (`MADV_PAGEOUT`).
//!
//! | metric | params | what |
//! |---|---|---|
//! | `give_back_ns` | `advice` | giving back a page |
//! | `touch_ns` | `advice` | the first write to a page afterwards |
//! | `present_share` | `advice`, `reclaimed` | pages that are present after the advice (0), and after reclaim (1) |
//!
//! The param `advice` is the number that the system call takes; 0 leaves the memory alone.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::design::pool::Pool;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::stop;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::settings::{Effort, Settings};
use pagedepot_cli::workloads::workload::Workload;

const NAME: &str = "madvise";

/// The workload `madvise`.
pub const WORKLOAD: Workload =
    Workload { drains: true, varies: false, ..Workload::new(NAME, &[Design::Kernel], run) };

const GIVE_BACK: Metric = ("give_back_ns", "ns");
const TOUCH: Metric = ("touch_ns", "ns");
const PRESENT: Metric = ("present_share", "1");

/// The advice that is compared.
const ADVICE: [(c_int, &str); 4] = [
    (libc::MADV_NORMAL, "left alone"),
    (libc::MADV_DONTNEED, "MADV_DONTNEED"),
    (libc::MADV_FREE, "MADV_FREE"),
    (libc::MADV_COLD, "MADV_COLD"),
];
/// Bytes of a pageblock, of which there is a whole number.
const PIECE_BYTES: usize = 2 << 20;

/// Figures of one round; those in nanoseconds are of a page.
#[derive(Clone, Copy, Debug)]
struct Round {
    give_back_ns: f64,
    touch_ns: f64,
    present_share: f64,
    /// `None`: this kernel has no `MADV_PAGEOUT`.
    reclaimed_share: Option<f64>,
}

fn run(settings: &Settings) -> Result<Report, Failure> {
    let designs = settings.designs(NAME, WORKLOAD.designs)?;
    let bytes = if settings.effort == Effort::Full { 64 << 20 } else { 4 << 20 };
    let memory = Mapping::new(bytes)?;
    let mut found = ADVICE.map(|(advice, name)| (advice, name, Vec::new()));
    let step = settings.progress.task(NAME, u64::from(settings.rounds));
    for _ in 0..settings.rounds {
        if stop::is_asked() {
            break;
        }
        for (advice, name, rounds) in &mut found {
            rounds
                .extend(round(&memory, *advice).map_err(|error| {
                    Failure::Run(format!("the system refused {name}: {error}"))
                })?);
        }
        step.tick();
    }
    drop(step);
    let mut report = Report::default();
    for design in designs {
        for (advice, _, rounds) in &found {
            let mut add = |metric: Metric, reclaimed: Option<bool>, of: &dyn Fn(&Round) -> f64| {
                let mut params = params([("advice", i64::from(*advice))]);
                params.extend(reclaimed.map(|reclaimed| ("reclaimed", reclaimed.into())));
                let samples: Vec<f64> = rounds.iter().map(of).collect();
                report.add(NAME, design, metric, (1, &params), &samples);
            };
            if *advice != libc::MADV_NORMAL {
                add(GIVE_BACK, None, &|round| round.give_back_ns);
            }
            add(TOUCH, None, &|round| round.touch_ns);
            add(PRESENT, Some(false), &|round| round.present_share);
            add(PRESENT, Some(true), &|round| round.reclaimed_share.unwrap_or(f64::NAN));
        }
    }
    report.say(format!(
        "{NAME}: {} MiB of base pages given back: ns for a page, and for the first write to it \
         afterwards;\n% that are present until then, and after the kernel has reclaimed",
        bytes >> 20
    ));
    report.say(shown(&found));
    Ok(report)
}

/// One round; `None`: this kernel does not know the advice.
fn round(memory: &Mapping, advice: c_int) -> io::Result<Option<Round>> {
    let per_page = |began: Instant| began.elapsed().as_nanos() as f64 / memory.pages() as f64;
    memory.touch();
    let began = Instant::now();
    if !memory.advise(advice)? {
        return Ok(None);
    }
    let give_back_ns = per_page(began);
    let present_share = memory.present_share()?;
    let began = Instant::now();
    memory.touch();
    let touch_ns = per_page(began);
    memory.advise(advice)?;
    let is_reclaimed = memory.advise(libc::MADV_PAGEOUT)?;
    let reclaimed_share = is_reclaimed.then(|| memory.present_share()).transpose()?;
    Ok(Some(Round { give_back_ns, touch_ns, present_share, reclaimed_share }))
}

/// Base pages of this process, which one thread uses.
struct Mapping(Pool);

impl Mapping {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let pool = Pool::new(bytes, PIECE_BYTES)?;
        pool.use_base_pages();
        Ok(Mapping(pool))
    }

    fn pages(&self) -> usize {
        self.0.bytes() / PAGE_BYTES
    }

    /// Writes to each page.
    fn touch(&self) {
        for at in (0..self.0.bytes()).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping, which one thread uses.
            unsafe { self.0.at(at).write_volatile(1) };
        }
    }

    /// Gives advice about all of it, piece by piece. `false`: this kernel does not know it.
    fn advise(&self, advice: c_int) -> io::Result<bool> {
        for at in (0..self.0.bytes()).step_by(PIECE_BYTES) {
            let piece = self.0.at(at).as_ptr();
            // SAFETY: inside the mapping, whose contents no code needs.
            if unsafe { libc::madvise(piece.cast(), PIECE_BYTES, advice) } != 0 {
                let error = io::Error::last_os_error();
                let is_unknown = error.raw_os_error() == Some(libc::EINVAL);
                return if is_unknown { Ok(false) } else { Err(error) };
            }
        }
        Ok(true)
    }

    fn present_share(&self) -> io::Result<f64> {
        let mut states = vec![0u8; self.pages()];
        let (start, bytes) = (self.0.at(0).as_ptr(), self.0.bytes());
        // SAFETY: one byte per page of the mapping is written.
        if unsafe { libc::mincore(start.cast(), bytes, states.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let present = states.iter().filter(|&&state| state & 1 != 0).count();
        Ok(present as f64 / self.pages() as f64)
    }
}

fn shown(found: &[(c_int, &str, Vec<Round>)]) -> comfy_table::Table {
    let mut table = table::new(["advice", "give back", "next touch", "present", "reclaimed"]);
    for (_, name, rounds) in found {
        let median =
            |of: &dyn Fn(&Round) -> f64| table::median(&rounds.iter().map(of).collect::<Vec<_>>());
        table.add_row([
            (*name).to_owned(),
            median(&|round| round.give_back_ns),
            median(&|round| round.touch_ns),
            median(&|round| 100.0 * round.present_share),
            median(&|round| 100.0 * round.reclaimed_share.unwrap_or(f64::NAN)),
        ]);
    }
    table::align(table, 1)
}
