//! Chores of `cargo xtask`, and the parts that they and those of the lab are made of.

#![allow(missing_docs, reason = "public items exist for the lab's chores alone")]

pub mod archive;
pub mod boot;
pub mod console;
mod cpio;
pub mod guest;
pub mod install;
pub mod kernel;
pub mod machine;
#[path = "../../cli/src/report/output.rs"]
pub mod output;
pub mod pressure;
pub mod results;
pub mod source;
pub mod tools;

use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use crate::archive::Unavailable;

/// Exit code of a chore that failed.
const EXIT_FAILED: u8 = 1;
/// Exit code for bad input, as of most Unix tools.
const EXIT_USAGE: u8 = 2;
/// Exit code where Debian's archive cannot be had: nothing was done, and nothing is wrong here.
const EXIT_UNAVAILABLE: u8 = 3;

/// Runs the chore that this process's arguments name.
pub fn main<C: Parser>(run: impl FnOnce(&C) -> Result<()>) -> ExitCode {
    let chore = match C::try_parse() {
        Ok(chore) => chore,
        Err(error) if error.use_stderr() => {
            eprintln!("error: {}", one_line(&error));
            return ExitCode::from(EXIT_USAGE);
        }
        // Prints help or the version, and exits.
        Err(error) => error.exit(),
    };
    match run(&chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &Error) -> u8 {
    match error.downcast_ref::<Unavailable>() {
        Some(_) => EXIT_UNAVAILABLE,
        None => EXIT_FAILED,
    }
}

/// clap's message without its advice in further paragraphs.
pub fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "which chore? see `cargo xtask --help`".to_owned();
    }
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
    match error.get(ContextKind::ValidValue).map(ToString::to_string) {
        Some(values) if !values.is_empty() => format!("{what}; there are {values}"),
        _ => format!("{what}; see `cargo xtask --help`, and each chore's"),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_archive_that_cannot_be_had_has_an_exit_code_of_its_own() {
        let failed = || Err::<(), _>(anyhow::anyhow!("apt-get ended with 100"));
        let of_archive = failed().context(Unavailable("no network".to_owned()));
        let error = of_archive.context("no kernel").unwrap_err();
        assert_eq!(exit_code(&error), EXIT_UNAVAILABLE);
        let error = failed().context("no kernel").unwrap_err();
        assert_eq!(exit_code(&error), EXIT_FAILED);
    }
}

/// The README's program.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
