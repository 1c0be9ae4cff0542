//! `soak --shared`: processes that share a depot are killed at random instructions, for as long as
//! it takes. No page may be lost, and none may be handed out twice.
//!
//! | file | what |
//! |---|---|
//! | `storm` | a process of the storm: everything that it does with the depot until it is killed |
//! | `board` | what the processes share beside the segment: counts, and messages |
//! | `keeper` | kills, forks, and looks at the segment while all processes are stopped |
//! | `census` | the checks |

mod board;
mod census;
mod keeper;
mod options;
mod storm;

pub use self::options::SoakOptions;
use crate::failure::Failure;

/// Runs a storm. Returns what there is to print.
///
/// # Errors
/// When a page was lost or handed out twice, or the system refuses what a storm needs.
pub fn run(options: &SoakOptions) -> Result<String, Failure> {
    if !options.shared {
        return Err(Failure::Usage(
            "`soak` kills processes that share a depot: add --shared; the soak of every design \
             is the lab's: `cargo run --release --manifest-path lab/Cargo.toml -- soak`"
                .to_owned(),
        ));
    }
    keeper::run(options)
}
