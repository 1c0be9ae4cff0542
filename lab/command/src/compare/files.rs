//! Comparing result files.

use super::columns::{self, NamedDocument};
use super::options::CompareOptions;
use super::table::Comparison;
use super::write::written;
use super::{noise, summary, threads, unlike};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::document::Document;
use pagedepot_cli::report::{baseline, printable};

/// Files compared.
#[derive(Debug)]
pub struct ComparisonText {
    /// Text for stdout.
    pub text: String,
    /// Text for stderr: differences of the files besides their figures, and reasons to doubt them.
    pub warnings: Vec<String>,
    /// The verdict of `--fail-above`, with which the command ends.
    pub verdict: Result<(), Failure>,
}

/// Compares result files.
///
/// # Errors
/// When a file is no result file, or they have nothing in common that could be compared.
pub fn files(options: &CompareOptions) -> Result<ComparisonText, Failure> {
    options.measuring.refuse_for_files()?;
    let mut files =
        options.threads.iter().map(|name| threads::load(name)).collect::<Result<Vec<_>, _>>()?;
    if let Some(name) = &options.baseline {
        files.push(baseline_file(name)?);
    }
    for path in &options.files {
        files.push(NamedDocument { document: Document::load(path)?, path: path.clone() });
    }
    let mut warnings = warnings(&files, options.force)?;
    let sources = sources(&files);
    let mut columns = columns::of_files(&files);
    columns::keep(&mut columns, "design", &options.designs, |row| &row.design)?;
    columns::keep(&mut columns, "workload", &options.workloads, |row| &row.workload)?;
    columns::keep(&mut columns, "metric", &options.metrics, |row| &row.metric)?;
    if let Some(param) = &options.by {
        columns = columns::split(columns, param)?;
    }
    if columns.len() < 2 && options.threads.is_empty() {
        return Err(Failure::Usage(
            "there is one design in one file: nothing to compare; give another file".to_owned(),
        ));
    }
    let comparison = Comparison::new(&columns, options.base.as_deref(), options.rule)?;
    let verdict = summary::gate(&comparison, options.fail_above, &mut warnings);
    Ok(ComparisonText { text: written(&comparison, &sources, options)?, warnings, verdict })
}

/// Differences of files besides their figures, and reasons to doubt them.
///
/// # Errors
/// When there are differences, without `force`.
pub fn warnings(files: &[NamedDocument], force: bool) -> Result<Vec<String>, Failure> {
    let mut warnings = unlike::differences(files);
    if !force && !warnings.is_empty() {
        return Err(Failure::Usage(refusal(&warnings)));
    }
    warnings.extend(noise::doubts(files));
    Ok(warnings)
}

/// The results of a baseline, called by its name.
///
/// # Errors
/// When there is none.
pub fn baseline_file(name: &str) -> Result<NamedDocument, Failure> {
    let document = Document::load(&baseline::saved(name)?)?;
    Ok(NamedDocument { path: name.into(), document })
}

/// One line, however much differs.
fn refusal(differences: &[String]) -> String {
    let more = match differences.len() {
        1 => String::new(),
        n => format!(" (and {} more differences)", n - 1),
    };
    format!("unlike results: {}{more}; give --force to compare them all the same", differences[0])
}

/// The sources of printed figures.
fn sources(files: &[NamedDocument]) -> String {
    let named =
        files.iter().filter_map(|file| Some((file.path.display(), file.document.source.as_ref()?)));
    named.map(|(path, source)| format!("{path}: {}\n", printable(source))).collect()
}
