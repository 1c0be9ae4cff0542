//! Reasons to doubt a file's figures.

use super::columns::NamedDocument;
use pagedepot_cli::harness::samples::{ROUNDS_TO_JUDGE, quartiles};
use pagedepot_cli::report::document::ResultRow;

/// Interquartile ranges beyond the quartiles from which on a sample is an outlier (Tukey's far
/// out).
const FAR_OUT: f64 = 3.0;
/// Share of outliers that is warned of.
const OUTLIERS_PERCENT: f64 = 5.0;

/// Reasons to doubt each file, a line each.
pub fn doubts(files: &[NamedDocument]) -> Vec<String> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &NamedDocument) -> Vec<String> {
    let name = file.path.display();
    let document = &file.document;
    let mut doubts: Vec<String> =
        document.noise.iter().flat_map(|noise| noise.warnings()).collect();
    if document.stopped {
        doubts.push("it was stopped before all was measured".to_owned());
    }
    doubts.extend(of_samples(&document.results));
    doubts.into_iter().map(|doubt| format!("{name}: {doubt}")).collect()
}

/// Too few samples, and outliers.
pub fn of_samples(rows: &[ResultRow]) -> Vec<String> {
    let mut doubts = Vec::new();
    // Counts have one sample, and need no more.
    let sampled = || rows.iter().map(|row| &row.samples).filter(|samples| samples.len() > 1);
    if let Some(few) = sampled().map(Vec::len).min().filter(|&few| few < ROUNDS_TO_JUDGE) {
        doubts.push(format!("{few} samples of a figure are few: take {ROUNDS_TO_JUDGE} (--runs)"));
    }
    let (all, out) = sampled()
        .fold((0, 0), |(all, out), samples| (all + samples.len(), out + outliers(samples)));
    let percent = 100.0 * out as f64 / all.max(1) as f64;
    if percent >= OUTLIERS_PERCENT {
        doubts.push(format!(
            "{percent:.0} % of the samples are far from the others of their figure: was the \
             machine busy?"
        ));
    }
    doubts
}

fn outliers(samples: &[f64]) -> usize {
    let Some((low, high)) = quartiles(samples) else { return 0 };
    let range = FAR_OUT * (high - low);
    samples.iter().filter(|&&sample| sample < low - range || sample > high + range).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_and_outliers_are_named() {
        let row = |samples: Vec<f64>| ResultRow { samples, ..ResultRow::default() };
        let calm: Vec<f64> = (0..31).map(|n| 10.0 + f64::from(n % 5)).collect();
        assert!(of_samples(&[row(calm.clone()), row(vec![1.0])]).is_empty());
        assert!(of_samples(&[row(vec![1.0, 2.0])])[0].contains("2 samples of a figure are few"));
        let mut wild = calm;
        wild[3] = 1e3;
        wild[9] = 2e3;
        assert!(of_samples(&[row(wild)])[0].starts_with("6 % of the samples are far"));
    }
}
