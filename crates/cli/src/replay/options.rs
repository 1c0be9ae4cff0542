//! Options of the commands that replay traces.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::args::positive;
use crate::report::json::ExtraOptions;
use pagedepot_trace::ExpandLimit;

/// The recorded machine. Default: NAME.zoneinfo.before.txt and NAME.zoneinfo.after.txt beside the
/// trace
#[derive(Clone, Debug, Default, Args)]
pub struct ZoneinfoPaths {
    /// /proc/zoneinfo from before the recording: zones, watermarks, batch, high and cached pages
    #[arg(long = "zoneinfo", value_name = "BEFORE")]
    pub before: Option<PathBuf>,
    /// /proc/zoneinfo from after the recording: what the kernel's CPUs cached at its end
    #[arg(long = "zoneinfo-after", value_name = "AFTER", requires = "before")]
    pub after: Option<PathBuf>,
}

impl ZoneinfoPaths {
    /// The options given, as settings of the results.
    pub fn settings(&self) -> ExtraOptions {
        let given = [("zoneinfo", &self.before), ("zoneinfo_after", &self.after)].into_iter();
        let given = given.filter_map(|(name, path)| Some((name, path.as_ref()?)));
        given.map(|(name, path)| (name, path.display().to_string().into())).collect()
    }
}

/// The limit to which a compressed trace may expand
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Expand {
    /// Largest expanded size of a compressed trace in MiB (default: 256, or 100 times its size)
    #[arg(
        long = "expand-limit",
        value_name = "MIB",
        value_parser = positive,
        allow_negative_numbers = true,
    )]
    pub mib: Option<NonZeroU32>,
}

impl Expand {
    /// The limit in bytes.
    pub fn limit(self) -> ExpandLimit {
        ExpandLimit { bytes: self.mib.map(|mib| u64::from(mib.get()) << 20) }
    }
}
