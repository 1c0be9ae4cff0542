//! The command `compare`.

use crate::design::Lab;
use std::io::{self, Write};

use crate::compare::{self, Measurement};
use pagedepot_cli::commands::finish::{finish, settled, show, write_out};
use pagedepot_cli::commands::given;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::block::wrapped;
use pagedepot_cli::report::json::ExtraOptions;
use pagedepot_cli::report::printable;
use pagedepot_cli::report::terminal::{WARNING, fitted_to_stderr, width};
use pagedepot_cli::workloads::{Effort, Settings};

/// Measures designs and compares them.
///
/// # Errors
/// When a design cannot take part, or results cannot be compared.
pub fn designs(options: &compare::CompareOptions) -> Result<(), Failure> {
    let plan = Measurement::new(options)?;
    let bench = plan.bench(options);
    let effort = if bench.quick { Effort::Quick } else { Effort::Full };
    let measuring = &options.measuring;
    let (clients, variant) = (measuring.clients.clone(), measuring.variant);
    let settings = Settings::new(&Lab, &bench, effort)?;
    let settings = Settings { clients, variant, ..settings };
    let settings = given(settings, measuring.more.clone(), measuring.fill);
    let mut verdict = Ok(());
    let shown = finish(
        ("compare", ExtraOptions::new()),
        &bench,
        || plan.measure(&settings),
        |measured| {
            let compared = plan.compare(&measured.report, options)?;
            warn(&compared.warnings);
            verdict = compared.verdict;
            let for_people = options.format.is_for_people();
            Ok(if for_people {
                let width = width();
                let (machine, quietness) =
                    (wrapped(&measured.machine.to_string(), width), measured.quietness(width));
                format!("{machine}\n{}\n{quietness}", compared.text)
            } else {
                compared.text
            })
        },
    );
    settled(shown, verdict)
}

/// Compares result files.
///
/// # Errors
/// When a file is no result file, or they have nothing in common.
pub fn files(options: &compare::CompareOptions) -> Result<(), Failure> {
    let compared = compare::files(options)?;
    warn(&compared.warnings);
    let for_people = options.format.is_for_people();
    let shown = if for_people { show(&compared.text) } else { write_out(&compared.text) };
    settled(shown, compared.verdict)
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        // Best effort: stderr may be closed.
        let message = format!("{}{}", WARNING, printable(warning));
        let _ = writeln!(io::stderr(), "{}", fitted_to_stderr(&message));
    }
}
