//! Whether a design can run on this machine, in this build.

use pagedepot_rseq::RseqMissing;
use pagedepot_rseq::membarrier::FenceMissing;

use crate::names::Design;

/// The reason why `design` cannot run here, with a remedy.
pub fn unavailable(design: Design) -> Option<String> {
    if design.is_peer() && !cfg!(feature = "peers") {
        return Some(format!(
            "design {design} is not compiled in: build with `cargo run --release --features \
             peers -- ...`"
        ));
    }
    #[cfg(feature = "peers")]
    if design == Design::MimallocPprof {
        return super::mimalloc_pprof::unavailable();
    }
    if Design::WITH_RSEQ.contains(&design)
        && let Some(why) = RseqMissing::find()
    {
        return Some(format!(
            "design {design} needs restartable sequences, but {why}; or leave it out"
        ));
    }
    if Design::WITH_FENCES.contains(&design) {
        return FenceMissing::find().map(|why| {
            format!("design {design} needs to fence sequences, but {why}; or leave it out")
        });
    }
    None
}
