//! The plots that the results are worth: read off their rows, series and maps.

use std::collections::{BTreeMap, BTreeSet};

use crate::compare::NamedDocument;
use pagedepot_cli::harness::samples::{median, quartiles};
use pagedepot_cli::report::better::{Better, better};
use pagedepot_cli::report::document::ResultRow;
use pagedepot_cli::report::rows::BlockMap;

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub title: String,
    /// The plot in a sentence: for readers that do not see it.
    pub says: String,
    pub form: Form,
}

/// The form of a plot.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Lines over a number, with the quartiles of the samples as bars.
    Lines { x: String, y: String, is_log: bool, lines: Vec<Line> },
    /// A square per pageblock, darker where more frames are in use.
    Map { free_percent: Vec<u8> },
}

/// A line, called by its design.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<Point>,
}

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub low: f64,
    pub y: f64,
    pub high: f64,
}

impl Point {
    fn bare((x, y): (f64, f64)) -> Self {
        Point { x, low: y, y, high: y }
    }
}

/// The possible x axes of a plot, by the param that tells its points apart; CPUs come first where
/// there are several.
const SCALES: [(&str, &str); 6] = [
    ("clients", "clients"),
    ("threads", "threads"),
    ("batch", "blocks per batch"),
    ("streams", "streams"),
    ("drains_per_s", "drains per second"),
    ("order", "order"),
];

/// Most lines of a plot: more cannot be told apart.
const LINES_MAX: usize = 10;

/// All plots of the files, in the order of their rows.
pub fn plots(files: &[NamedDocument]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for file in files {
        let prefix = if files.len() > 1 { format!("{}: ", file.stem()) } else { String::new() };
        let document = &file.document;
        for rows in by_metric(&document.results) {
            plots.extend(
                of_metric(&rows)
                    .into_iter()
                    .map(|plot| Plot { title: format!("{prefix}{}", plot.title), ..plot }),
            );
        }
        plots.extend(
            over_time(file)
                .into_iter()
                .map(|plot| Plot { title: format!("{prefix}{}", plot.title), ..plot }),
        );
        plots.extend(document.maps.iter().map(|map| {
            let Plot { title, says, form } = of_map(map);
            Plot { title: format!("{prefix}{title}"), says, form }
        }));
    }
    plots
}

/// Most squares of a map; a file may have a map of any size.
const SQUARES_MAX: usize = 1 << 16;

fn of_map(map: &BlockMap) -> Plot {
    let pageblocks = map.free_percent.len();
    let each = pageblocks.div_ceil(SQUARES_MAX).max(1);
    let mean =
        |of: &[u8]| (of.iter().map(|&free| usize::from(free)).sum::<usize>() / of.len()) as u8;
    let square = match each {
        1 => "a pageblock".to_owned(),
        each => format!("the mean of {each} pageblocks"),
    };
    let free = map.free_percent.iter().filter(|&&free| free == 100).count();
    Plot {
        title: format!("{} {}: memory in use", map.workload, map.design),
        says: format!(
            "Each square is {square} of 512 frames, by address; the darker, the more of its \
             frames are in use. {free} of {pageblocks} are completely free."
        ),
        form: Form::Map { free_percent: map.free_percent.chunks(each).map(mean).collect() },
    }
}

/// The rows of each metric of a workload, in the order in which metrics come up.
fn by_metric(rows: &[ResultRow]) -> Vec<Vec<&ResultRow>> {
    let (mut places, mut metrics) = (BTreeMap::new(), Vec::<Vec<&ResultRow>>::new());
    for row in rows {
        let place = *places.entry((&row.workload, &row.metric)).or_insert(metrics.len());
        if place == metrics.len() {
            metrics.push(Vec::new());
        }
        metrics[place].push(row);
    }
    metrics
}

/// A plot for each set of params besides the one on the x axis; none where a line would be a point.
fn of_metric(rows: &[&ResultRow]) -> Option<Plot> {
    let first = rows.first()?;
    let values = |of: &dyn Fn(&ResultRow) -> Option<i64>| {
        let mut values: Vec<i64> = rows.iter().filter_map(|row| of(row)).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    // Rows without the param of the axis have no place on it.
    type PlaceOf = Box<dyn Fn(&ResultRow) -> Option<i64>>;
    let param = |name: &'static str| -> PlaceOf {
        Box::new(move |row: &ResultRow| row.params.get(name).copied())
    };
    let by_cpus = || -> PlaceOf { Box::new(|row| Some(row.cpus.into())) };
    let scale = SCALES.into_iter().find(|(name, _)| values(&param(name)) > 1);
    let (x_of, x) = match scale {
        Some((name, title)) => (param(name), title),
        None if values(&by_cpus()) > 1 => (by_cpus(), "CPUs"),
        None => return None,
    };
    let rows: Vec<&ResultRow> = rows.iter().copied().filter(|row| x_of(row).is_some()).collect();
    // Params that are neither the axis nor a matter of the design tell lines apart.
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.params.keys()).collect();
    let varying: Vec<&String> = names
        .into_iter()
        .filter(|name| scale.is_none_or(|(scale, _)| scale != *name))
        .filter(|name| varies_within_a_design(&rows, name))
        .collect();
    let cpus_vary = x != "CPUs" && x != "clients" && values(&by_cpus()) > 1;
    let mut lines: BTreeMap<usize, Line> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    for row in &rows {
        let Some(x) = x_of(row) else { continue };
        let mut name = row.design.clone();
        for param in &varying {
            let value = row.params.get(*param).copied().unwrap_or(0);
            name += &format!(" {param} {value}");
        }
        if cpus_vary {
            name += &format!(" {} CPUs", row.cpus);
        }
        let at = names.iter().position(|other| *other == name).unwrap_or_else(|| {
            names.push(name.clone());
            names.len() - 1
        });
        let x = x as f64;
        let Some(y) = median(&row.samples).or_else(|| row.printed.as_ref()?.mean) else { continue };
        let (low, high) = quartiles(&row.samples).unwrap_or((y, y));
        let line = lines.entry(at).or_insert_with(|| Line { name, points: Vec::new() });
        // Drains back to back have -1: no place on an axis of rates.
        if x >= 0.0 {
            line.points.push(Point { x, low, y, high });
        }
    }
    let mut lines: Vec<Line> = lines.into_values().filter(|line| line.points.len() > 1).collect();
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    let left_out = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if lines.is_empty() {
        return None;
    }
    let is_latency = first.unit == "ns" || first.unit == "s";
    let least = lines.iter().flat_map(|line| &line.points).map(|p| p.low.min(p.y));
    let is_log = is_latency && least.fold(f64::INFINITY, f64::min) > 0.0;
    let better = match better(first) {
        Better::Lower => "Less is better.",
        Better::Higher => "More is better.",
        Better::Neither => "Neither more nor less is better.",
    };
    let more = if left_out > 0 {
        format!(" {left_out} more lines are in the table.")
    } else {
        String::new()
    };
    let unit = if first.unit == "1" { "" } else { &first.unit };
    let y =
        if unit.is_empty() { first.metric.clone() } else { format!("{}, {unit}", first.metric) };
    Some(Plot {
        title: format!("{} {} by {x}", first.workload, first.metric),
        says: format!(
            "Medians of {y} by {x}; bars span the quartiles{}. {better}{more}",
            if is_log { "; logarithmic scale" } else { "" }
        ),
        form: Form::Lines { x: x.to_owned(), y, is_log, lines },
    })
}

fn varies_within_a_design(rows: &[&ResultRow], param: &str) -> bool {
    let mut of_design = BTreeMap::new();
    rows.iter().any(|row| {
        let value = row.params.get(param);
        *of_design.entry(&row.design).or_insert(value) != value
    })
}

/// A plot for each metric that the file has over time, a line per design.
fn over_time(file: &NamedDocument) -> Vec<Plot> {
    let mut plots: Vec<Plot> = Vec::new();
    for series in &file.document.series {
        let title = format!("{} {} over {}", series.workload, series.metric, series.over);
        let points = series.points.iter().copied().map(Point::bare).collect();
        let line = Line { name: series.design.clone(), points };
        let found = plots.iter_mut().find(|plot| plot.title == title);
        if let Some(Plot { form: Form::Lines { lines, .. }, .. }) = found {
            lines.push(line);
            continue;
        }
        let (x, y) = (series.over.clone(), series.metric.clone());
        let says = format!("{y} over {x}, as the run went on.");
        let form = Form::Lines { x, y, is_log: false, lines: vec![line] };
        plots.push(Plot { title, says, form });
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagedepot_cli::report::document::Document;

    fn named(results: &str, more: &str) -> Vec<NamedDocument> {
        let text = format!(r#"{{"schema":1,"results":[{results}]{more}}}"#);
        vec![NamedDocument {
            path: "a.json".into(),
            document: Document::parse(&text, "a").unwrap(),
        }]
    }

    fn row(design: &str, unit: &str, cpus: u32, params: &str, samples: &str) -> String {
        format!(
            r#"{{"workload":"w","design":"{design}","metric":"m","unit":"{unit}","cpus":{cpus},
                "params":{{{params}}},"samples":[{samples}]}}"#
        )
    }

    #[test]
    fn what_grows_is_on_the_axis_and_latencies_are_logarithmic() {
        let rows = [
            row("a", "ns", 1, "", "1,2,3"),
            row("a", "ns", 4, "", "4,5,6"),
            row("b", "ns", 1, "", "7"),
            row("b", "ns", 4, "", "8"),
        ];
        let plots = plots(&named(&rows.join(","), ""));
        let Form::Lines { x, is_log, lines, .. } = &plots[0].form else { panic!("{plots:?}") };
        assert_eq!((x.as_str(), *is_log, lines.len()), ("CPUs", true, 2));
        assert_eq!((lines[0].points[1].x, lines[0].points[1].y), (4.0, 5.0));
    }

    #[test]
    fn params_that_vary_make_lines_and_single_points_none() {
        let rows = [
            row("a", "1/s", 1, r#""clients":1,"k":0"#, "1"),
            row("a", "1/s", 2, r#""clients":2,"k":0"#, "2"),
            row("a", "1/s", 1, r#""clients":1,"k":1"#, "1"),
            row("a", "1/s", 2, r#""clients":2,"k":1"#, "2"),
        ];
        let found = plots(&named(&rows.join(","), ""));
        let Form::Lines { x, is_log, lines, .. } = &found[0].form else { panic!("{found:?}") };
        assert_eq!((x.as_str(), *is_log), ("clients", false));
        assert_eq!(lines.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["a k 0", "a k 1"]);
        assert!(plots(&named(&row("a", "ns", 1, "", "1"), "")).is_empty());
    }

    #[test]
    fn params_that_come_with_the_design_are_not_in_its_name() {
        let rows = [
            row("a", "1/s", 1, r#""store":0"#, "1"),
            row("a", "1/s", 2, r#""store":0"#, "2"),
            row("b", "1/s", 1, r#""store":1"#, "1"),
            row("b", "1/s", 2, r#""store":1"#, "2"),
        ];
        let found = plots(&named(&rows.join(","), ""));
        let Form::Lines { lines, .. } = &found[0].form else { panic!("{found:?}") };
        assert_eq!(lines.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    /// The random rhythm of `pagealloc` has no batch.
    #[test]
    fn rows_without_the_param_of_the_axis_are_left_out() {
        let rows = [
            row("a", "ns", 1, r#""order":0,"rhythm":1"#, "9"),
            row("a", "ns", 1, r#""order":0,"batch":1"#, "1"),
            row("a", "ns", 1, r#""order":0,"batch":2"#, "2"),
            row("a", "ns", 1, r#""order":3,"batch":1"#, "3"),
            row("a", "ns", 1, r#""order":3,"batch":2"#, "4"),
        ];
        let found = plots(&named(&rows.join(","), ""));
        let Form::Lines { lines, .. } = &found[0].form else { panic!("{found:?}") };
        let xs: Vec<Vec<f64>> =
            lines.iter().map(|line| line.points.iter().map(|point| point.x).collect()).collect();
        assert_eq!(xs, [[1.0, 2.0], [1.0, 2.0]]);
        assert_eq!(lines[0].name, "a order 0");
    }

    /// More squares than a plot can have: a hostile file's map would be gigabytes of pixels.
    #[test]
    fn maps_of_many_pageblocks_have_several_in_a_square() {
        let free = vec!["100"; 3 * SQUARES_MAX].join(",");
        let more = format!(r#","maps":[{{"workload":"w","design":"a","free_percent":[{free}]}}]"#);
        let found = plots(&named(&row("a", "ns", 1, "", "1"), &more));
        let Form::Map { free_percent } = &found[0].form else { panic!("a map") };
        assert!(free_percent.len() == SQUARES_MAX && free_percent.iter().all(|&free| free == 100));
        assert!(found[0].says.contains("3 pageblocks"), "{}", found[0].says);
    }

    #[test]
    fn series_and_maps_are_plots() {
        let more = r#","series":[{"workload":"w","design":"a","metric":"cached","over":"ms",
                "points":[[0,1],[5,2]]}],
            "maps":[{"workload":"w","design":"a","free_percent":[0,100,100]}]"#;
        let found = plots(&named(&row("a", "ns", 1, "", "1"), more));
        assert_eq!(found.len(), 2);
        assert!(found[1].says.contains("2 of 3 are completely free"), "{}", found[1].says);
    }
}
