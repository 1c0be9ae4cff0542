//! The cost of the depot's own metadata: bytes of memory per GiB managed, and time to set them up.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use pagedepot::cpus::implement::{BlockArray, WordOffset};
use pagedepot::cpus::{Change, Cpus, Environment, FenceError, Here};
use pagedepot::{
    Allocator, Backing, BackingRequest, Block, Config, ConfigError, CpuId, DoubleFree, FrameRange,
    Pfn, ZoneId,
};

use crate::design::variant::Store;
use crate::design::zone;
use crate::failure::Failure;
use crate::harness::stop;
use crate::names::Design;
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};
use crate::workloads::settings::Settings;

const NAME: &str = "pagealloc";
const METADATA: Metric = ("metadata_bytes_per_gib", "bytes");
const INIT: Metric = ("init_ns", "ns");

/// Memory managed.
const GIB: u32 = 64;
/// 4 KiB frames in a GiB.
const FRAMES_PER_GIB: u32 = 1 << 18;

/// CPUs on which no code runs: the metadata is set up, and no request follows.
struct NoCpus;

// SAFETY: no function touches a front, so each excludes all others.
unsafe impl Cpus for NoCpus {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    fn here(&self) -> Option<Here> {
        None
    }

    fn pop(&self, _blocks: &BlockArray, _word: WordOffset) -> Option<u32> {
        None
    }

    fn push(&self, _blocks: &BlockArray, _word: WordOffset, _rounds_max: u32, _frame: u32) -> bool {
        false
    }

    fn commit(&self, _blocks: &BlockArray, _here: Here, _change: Change<'_>) -> bool {
        false
    }

    fn fence(&self, _blocks: &BlockArray, _cpu: CpuId) -> Result<(), FenceError> {
        Err(FenceError::Refused)
    }
}

impl Environment for NoCpus {}

/// A store whose own metadata is not measured.
struct NoStore;

// SAFETY: it hands out nothing.
unsafe impl Backing for NoStore {
    fn take(&self, _: BackingRequest, _: &mut [Block]) -> usize {
        0
    }

    fn put(&self, _: ZoneId, _: &[Block]) -> DoubleFree {
        DoubleFree::NONE
    }

    fn free_pages(&self, _: ZoneId) -> u64 {
        0
    }

    fn is_free(&self, _: Pfn) -> bool {
        false
    }
}

/// Measures both, if the depot is among the designs.
pub fn run(settings: &Settings, designs: &[Design]) -> Result<Report, Failure> {
    let mut report = Report::default();
    if !designs.contains(&Design::Depot) {
        return Ok(report);
    }
    let step =
        settings.progress.task(&format!("{NAME}, setting up {GIB} GiB"), settings.rounds.into());
    let ranges = [FrameRange::new(Pfn::new(0), GIB * FRAMES_PER_GIB)];
    let zones = [zone::normal(&ranges, None)];
    let config = Config::new(settings.cpus.len() as u32, &zones);
    let store = settings.variant.store_of(Design::Depot);
    let backing: Option<&dyn Backing> = match store {
        Store::Bitmap => None,
        Store::Buddy => Some(&NoStore),
    };
    let builder = || Allocator::builder(&config).backing(backing);
    let bytes = builder().metadata_bytes().map_err(unusable)?;
    // Written once, so that page faults are not part of it.
    let mut memory = vec![MaybeUninit::new(1u8); bytes];
    let mut samples = Vec::new();
    for _ in 0..settings.rounds {
        if stop::is_asked() {
            break;
        }
        let start = Instant::now();
        let made = builder().build(&mut memory, NoCpus);
        black_box(made.map_err(unusable)?);
        samples.push(start.elapsed().as_nanos() as f64);
        step.tick();
    }
    let params = params([("gib", GIB.into()), ("store", store as i64)]);
    let per_gib = [bytes as f64 / f64::from(GIB)];
    report.add(NAME, Design::Depot, METADATA, (1, &params), &per_gib);
    report.add(NAME, Design::Depot, INIT, (1, &params), &samples);
    let us: Vec<f64> = samples.iter().map(|ns| ns / 1e3).collect();
    report.say(format!(
        "{NAME}: the depot's metadata for {GIB} GiB: {:.1} KB per GiB, set up in {} us \
         (quartiles {}), on pre-faulted memory",
        per_gib[0] / 1e3,
        table::median(&us),
        table::quartiles(&us)
    ));
    Ok(report)
}

fn unusable(error: ConfigError) -> Failure {
    Failure::Run(format!("{}: {error}", Design::Depot))
}
