//! `report`: one self-contained page of saved results: tables, plots and how they were made.
//!
//! The page has no script and loads nothing. Plots are drawn twice from one description: as SVG,
//! which takes the page's colours, and as PNG; both can be saved from the page or written to a
//! folder. Tables stand behind `<details>`, so a phone shows plots first.

mod axis;
mod chart;
mod data;
mod html;
mod legend;
mod style;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use self::chart::ChartImage;
use self::data::Plot;
use crate::compare::{Comparison, NamedDocument, columns_of};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::counted;
use pagedepot_cli::report::document::Document;
use pagedepot_cli::report::json::{opened, written};

/// Options of `report`.
#[derive(Clone, Debug, Args)]
pub struct PageOptions {
    /// Result files, as --json writes them
    #[arg(value_name = "RESULTS", required = true)]
    pub files: Vec<PathBuf>,
    /// The page to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write each plot to DIR, as SVG and as PNG
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// Writes the page; returns a line that says what was written.
///
/// # Errors
/// When a file is no result file, or the page or a plot cannot be written.
pub fn write(options: &PageOptions) -> Result<String, Failure> {
    let files: Vec<NamedDocument> = options
        .files
        .iter()
        .map(|path| Ok(NamedDocument { path: path.clone(), document: Document::load(path)? }))
        .collect::<Result<_, Failure>>()?;
    let page = opened(&options.output, "give a path that you may write to")?;
    let plots = data::plots(&files);
    let mut drawn = Vec::new();
    for (nth, plot) in plots.iter().enumerate() {
        let drawing = chart::draw(plot).map_err(|why| {
            Failure::Run(format!("cannot draw {}: {why}; please report it", plot.title))
        })?;
        if let Some(folder) = &options.plots {
            save(folder, &name(nth, plot), &drawing)?;
        }
        drawn.push(drawing);
    }
    // What files have in common, side by side; one file alone has its designs.
    let comparison = Comparison::new(&columns_of(&files), None, crate::compare::Rule::Ours).ok();
    let pairs: Vec<(&Plot, &ChartImage)> = plots.iter().zip(&drawn).collect();
    let text = html::page(&files, &pairs, comparison.as_ref());
    written(page, text.as_bytes())?;
    let kib = text.len().div_ceil(1024);
    let output = options.output.display();
    let (plots, files) = (counted(plots.len(), "plot"), counted(files.len(), "file"));
    Ok(format!("{output}: {plots} of {files}, {kib} KiB\n"))
}

/// The plot's file name without its ending.
fn name(nth: usize, plot: &Plot) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let title: String = plot.title.chars().map(safe).take(60).collect();
    format!("{:02}-{}", nth + 1, title.trim_matches('-'))
}

fn save(folder: &Path, name: &str, drawn: &ChartImage) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|e| unwritten(folder, &e))?;
    for (ending, contents) in [("svg", drawn.svg.as_bytes()), ("png", &drawn.png[..])] {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, contents).map_err(|e| unwritten(&path, &e))?;
    }
    Ok(())
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    Failure::Usage(format!("cannot write {path}: {error}; give a path that you may write to"))
}
