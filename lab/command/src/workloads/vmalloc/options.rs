//! Parameters and presets of `test_vmalloc`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use pagedepot_cli::args;
use pagedepot_cli::replay::options::Expand;
use pagedepot_cli::report::json::ExtraOptions;

/// The name of the workload.
pub const NAME: &str = "vmalloc";

/// Options of `vmalloc` besides those of every measurement.
#[derive(Clone, Debug, Default, Args)]
pub struct VmallocOptions {
    /// Parameters as test_vmalloc.sh has them (default: one worker, 10000 loops)
    #[arg(long, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// Map memory by the operating system, or keep the metadata only
    #[arg(long, value_name = "WHICH", default_value = "none")]
    pub mapper: MapperKind,
    /// Tests to run, a sum of 1, 2, 4 ... 64, 1024 and 4096; the others are skipped
    #[arg(long, value_name = "N", default_value_t = i32::MAX as u32, allow_negative_numbers = true,
          value_parser = args::whole::<{ i32::MAX as u32 }>)]
    pub run_test_mask: u32,
    /// Workers, each with an order of its own
    #[arg(
        long,
        value_name = "N",
        value_parser = args::whole::<WORKERS_MAX>,
        allow_negative_numbers = true,
    )]
    pub nr_threads: Option<u32>,
    /// Loops of each test
    #[arg(
        long,
        value_name = "N",
        value_parser = args::whole::<{ u32::MAX }>,
        allow_negative_numbers = true,
    )]
    pub test_loop_count: Option<u32>,
    /// Repetitions of each test
    #[arg(
        long,
        value_name = "N",
        value_parser = args::whole::<{ u32::MAX }>,
        allow_negative_numbers = true,
    )]
    pub test_repeat_count: Option<u32>,
    /// Pages of fix_size_alloc_test and vm_map_ram_test
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = args::whole::<65536>)]
    pub nr_pages: u32,
    /// Every worker runs the tests in their order
    #[arg(long)]
    pub sequential: bool,
    /// Run the suite so many times over the same designs: do page tables grow?
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = args::whole::<1000>)]
    pub passes: u32,
    /// Run the suite only, without the pairs
    #[arg(long)]
    pub suite_only: bool,
    /// Instead, replay the vmalloc events of this trace
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "preset", "mapper", "run_test_mask", "nr_threads", "test_loop_count", "test_repeat_count",
        "nr_pages", "sequential", "passes", "suite_only",
    ])]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub expand: Expand,
}

/// `--preset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// One worker, 10000 loops, 10 times
    Smoke,
    /// One worker, in order, a million loops, 3 times
    Performance,
    /// A worker per CPU, a million loops, 20 times
    Stress,
}

/// `--mapper`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MapperKind {
    /// Metadata only
    #[default]
    None,
    /// A memory file
    Linux,
}

impl MapperKind {
    /// The value of the param `mapper`.
    pub const fn param(self) -> i64 {
        matches!(self, MapperKind::Linux) as i64
    }
}

/// The kernel's maximum of workers: `USHRT_MAX`.
const WORKERS_MAX: u32 = 65535;

/// Parameters of a run, by the names they have in `lib/test_vmalloc.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub run_test_mask: u32,
    pub nr_threads: u32,
    pub test_loop_count: u32,
    pub test_repeat_count: u32,
    pub nr_pages: u32,
    pub sequential: bool,
}

impl VmallocOptions {
    /// The parameters of the preset, unless others are given; with `--quick` a hundredth of the
    /// loops, once.
    pub fn parameters(&self, cpus: usize, quick: bool) -> Parameters {
        let (nr_threads, loops, repeat) = match self.preset {
            None => (1, 10_000, 1),
            Some(Preset::Smoke) => (1, 10_000, 10),
            Some(Preset::Performance) => (1, 1_000_000, 3),
            Some(Preset::Stress) => (cpus as u32, 1_000_000, 20),
        };
        let (loops, repeat) = if quick { (loops / 100, 1) } else { (loops, repeat) };
        Parameters {
            run_test_mask: self.run_test_mask,
            nr_threads: self.nr_threads.unwrap_or(nr_threads),
            test_loop_count: self.test_loop_count.unwrap_or(loops),
            test_repeat_count: self.test_repeat_count.unwrap_or(repeat),
            nr_pages: self.nr_pages,
            sequential: self.sequential || self.preset == Some(Preset::Performance),
        }
    }

    /// Settings that figures depend on besides their params.
    pub fn settings(&self, cpus: usize, quick: bool) -> ExtraOptions {
        if let Some(trace) = &self.trace {
            return ExtraOptions::from([("trace", trace.display().to_string().into())]);
        }
        let parameters = self.parameters(cpus, quick);
        ExtraOptions::from([
            ("mapper", self.mapper.param().into()),
            ("run_test_mask", parameters.run_test_mask.into()),
            ("test_loop_count", parameters.test_loop_count.into()),
            ("test_repeat_count", parameters.test_repeat_count.into()),
            ("nr_pages", parameters.nr_pages.into()),
            ("sequential", parameters.sequential.into()),
            ("passes", self.passes.into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_those_of_the_script_and_what_is_given_wins() {
        let of =
            |preset| VmallocOptions { preset, nr_pages: 1, run_test_mask: 7, ..Default::default() };
        let show = |options: VmallocOptions, quick| {
            let p = options.parameters(8, quick);
            (p.nr_threads, p.test_loop_count, p.test_repeat_count, p.sequential)
        };
        assert_eq!(show(of(Some(Preset::Smoke)), false), (1, 10_000, 10, false));
        assert_eq!(show(of(Some(Preset::Performance)), false), (1, 1_000_000, 3, true));
        assert_eq!(show(of(Some(Preset::Stress)), false), (8, 1_000_000, 20, false));
        assert_eq!(show(of(None), true), (1, 100, 1, false));
        let given = VmallocOptions {
            nr_threads: Some(64),
            test_repeat_count: Some(2),
            ..of(Some(Preset::Smoke))
        };
        assert_eq!(show(given, false), (64, 10_000, 2, false));
    }
}
