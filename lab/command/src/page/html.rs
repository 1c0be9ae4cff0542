//! The page's markup.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::chart::ChartImage;
use super::data::{Form, Plot};
use super::style::{CSS, for_page};
use crate::compare::{
    Comparison, Finding, NamedDocument, Stat, TableLine, changed, differences, span,
};
use pagedepot_cli::conclusion;
use pagedepot_cli::harness::samples::quartiles;
use pagedepot_cli::report::document::{Document, ResultRow};
use pagedepot_cli::report::table::figure;
use pagedepot_cli::report::{counted, printable};

/// The columns of a table of figures.
const FIGURES: [&str; 7] = ["design", "metric", "CPUs", "params", "median", "quartiles", "n"];

/// The whole page.
pub fn page(
    files: &[NamedDocument],
    plots: &[(&Plot, &ChartImage)],
    comparison: Option<&Comparison>,
) -> String {
    let title = "pagedepot: results";
    let comparison = comparison.filter(|comparison| !compared_columns(comparison).is_empty());
    let stylesheet = PreEscaped(CSS);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="data:,";
                style { (stylesheet) }
            }
            body {
                a.skip href="#main" { "Skip to the results" }
                header {
                    h1 { (title) }
                    nav aria-label="Sections" { ul {
                        li { a href="#short" { "In short" } }
                        @if comparison.is_some() { li { a href="#compared" { "Compared" } } }
                        @if !plots.is_empty() { li { a href="#plots" { "Plots" } } }
                        li { a href="#tables" { "Tables" } }
                        li { a href="#made" { "How it was measured" } }
                    } }
                }
                main id="main" {
                    (in_short(files))
                    @if let Some(comparison) = comparison { (compared(comparison, files)) }
                    @if !plots.is_empty() { (figures(plots)) }
                    section id="tables" {
                        h2 { "Tables" }
                        @for file in files {
                            @if files.len() > 1 { h3 { (title_of(file)) } }
                            (tables(file))
                        }
                    }
                    section id="made" {
                        h2 { "How it was measured" }
                        @for file in files { (made(file)) }
                    }
                }
            }
        }
    };
    markup.into_string()
}

/// The contents of a file, and the file's name, which tells it from another of the same.
fn title_of(file: &NamedDocument) -> String {
    let command = printable(&file.document.command);
    let name = printable(&file.stem());
    if command.is_empty() { name } else { format!("{command} ({name})") }
}

fn in_short(files: &[NamedDocument]) -> Markup {
    html! {
        section id="short" {
            h2 { "In short" }
            @for file in files {
                @if files.len() > 1 { h3 { (title_of(file)) } }
                ul {
                    @for sentence in conclusion::sentences(&file.document.results) {
                        li { (sentence) }
                    }
                    @for warning in file.document.noise.iter().flat_map(|noise| noise.warnings()) {
                        li.warning { strong { "Warning: " } (warning) }
                    }
                    @if file.document.stopped {
                        li.warning { strong { "Warning: " } "stopped before all was measured" }
                    }
                }
            }
            p { "floor-tls, floor-rseq and floor-spin are bounds, not allocators: an array per \
                CPU, without a store and limits." }
        }
    }
}

/// The columns that have a figure in common with their base.
fn compared_columns(comparison: &Comparison) -> Vec<usize> {
    // Results of different workloads have no figure in common.
    let is_said = |column: usize| {
        let has_verdict = |line: &TableLine| {
            line.cells[column].as_ref().is_some_and(|cell| cell.verdict.is_some())
        };
        comparison.is_compared(column) && comparison.lines.iter().any(has_verdict)
    };
    (0..comparison.columns.len()).filter(|&at| is_said(at)).collect()
}

fn compared(comparison: &Comparison, files: &[NamedDocument]) -> Markup {
    let columns = compared_columns(comparison);
    let unlike = differences(files);
    html! {
        section id="compared" {
            h2 { "Compared" }
            p { "Medians. Positive is better; a difference counts when p < 0.05 by Mann-Whitney's \
                 rank test after Holm's correction within the metric, and when the 95 % interval \
                 of the medians' change does not contain 0; between files, when it is beyond what \
                 two runs of one program differ by (3 %, or what the bounds differ by)." }
            @if !unlike.is_empty() {
                ul {
                    @for difference in &unlike {
                        li.warning { strong { "Warning: " } "unlike results: " (difference) }
                    }
                }
            }
            @for &column in &columns {
                @let base = &comparison.columns[comparison.bases[column]];
                details {
                    summary { strong { (comparison.columns[column]) } " beside " (base) }
                    div.wide tabindex="0" role="region" aria-label="Comparison" { table {
                        thead { tr {
                            th scope="col" { "figure" } th scope="col" { (base) }
                            th scope="col" { (comparison.columns[column]) }
                            th scope="col" { "change" } th scope="col" { "95 % interval" }
                            th scope="col" { "finding" }
                        } }
                        tbody {
                            @for line in &comparison.lines {
                                (difference(comparison, line, column))
                            }
                        }
                    } }
                }
            }
        }
    }
}

fn difference(comparison: &Comparison, line: &TableLine, column: usize) -> Markup {
    let of = |at: usize| {
        let cell = line.cells[at].as_ref()?;
        cell.figures.get(Stat::Median).map(figure)
    };
    let verdict = line.cells[column].as_ref().and_then(|cell| cell.verdict.as_ref());
    let (Some(new), Some(base), Some(verdict)) =
        (of(column), of(comparison.bases[column]), verdict)
    else {
        return html! {};
    };
    let finding = Finding::of(verdict);
    let class = match finding {
        Some(Finding::Better) => "better",
        Some(Finding::Worse) => "worse",
        _ => "",
    };
    let percent = comparison.percent(line, column, Stat::Median);
    html! {
        tr {
            th scope="row" { (line.key.workload) " " (line.label) }
            td { (base) } td { (new) }
            td { @if let Some(percent) = percent { (changed(percent)) } @else { "-" } }
            td {
                @if let Some((low, high)) = verdict.interval_percent {
                    (span((low, high)))
                } @else { "-" }
            }
            td class=(class) { (finding.map_or("-", Finding::words)) }
        }
    }
}

fn figures(plots: &[(&Plot, &ChartImage)]) -> Markup {
    html! {
        section id="plots" {
            h2 { "Plots" }
            div.plots {
                @for (nth, (plot, drawn)) in plots.iter().enumerate() {
                    @let id = format!("plot-{nth}");
                    figure id=(id) {
                        h3 { (plot.title) }
                        div role="img" aria-label=(format!("{}. {}", plot.title, plot.says)) {
                            (PreEscaped(for_page(&drawn.svg)))
                        }
                        figcaption {
                            (plot.says)
                            span.save {
                                " Save as "
                                (download(&id, "SVG", &uri("image/svg+xml", drawn.svg.as_bytes())))
                                " or "
                                (download(&id, "PNG", &uri("image/png", &drawn.png)))
                                "."
                            }
                            @if let Form::Lines { x, lines, .. } = &plot.form { (points(x, lines)) }
                        }
                    }
                }
            }
        }
    }
}

/// A link that saves a plot as a file of this kind.
fn download(id: &str, kind: &str, uri: &str) -> Markup {
    html! { a download=(format!("{id}.{}", kind.to_lowercase())) href=(uri) { (kind) } }
}

/// The figures of a plot, for readers that do not see it.
fn points(x: &str, lines: &[super::data::Line]) -> Markup {
    // A curve of hundreds of points says nothing as a table.
    let lines: Vec<_> = lines.iter().filter(|line| line.points.len() <= 40).collect();
    html! {
        @if !lines.is_empty() {
            details {
                summary { "Its figures" }
                div.wide tabindex="0" role="region" aria-label="Figures of the plot" { table {
                    thead { tr {
                        th scope="col" { (x) }
                        @for line in &lines { th scope="col" { (line.name) } }
                    } }
                    tbody { @for at in positions(&lines) { tr {
                        th scope="row" { (at) }
                        @for line in &lines {
                            @let point = line.points.iter().find(|p| p.x == at);
                            td { (point.map_or("-".to_owned(), |p| figure(p.y))) }
                        }
                    } } }
                } }
            }
        }
    }
}

fn positions(lines: &[&super::data::Line]) -> Vec<f64> {
    let mut all: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|p| p.x).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

fn uri(kind: &str, bytes: &[u8]) -> String {
    use base64::Engine;
    format!("data:{kind};base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn tables(file: &NamedDocument) -> Markup {
    let mut workloads: Vec<&str> = Vec::new();
    for row in &file.document.results {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    html! {
        @for workload in workloads {
            @let rows: Vec<&ResultRow> =
                file.document.results.iter().filter(|row| row.workload == workload).collect();
            details {
                summary { (workload) " (" (counted(rows.len(), "figure")) ")" }
                div.wide tabindex="0" role="region" aria-label=(workload) { table {
                    thead { tr {
                        @for heading in FIGURES {
                            th scope="col" { (heading) }
                        }
                    } }
                    tbody { @for row in rows { (table_row(row)) } }
                } }
            }
        }
    }
}

fn table_row(row: &ResultRow) -> Markup {
    let params: Vec<String> =
        row.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let median = pagedepot_cli::harness::samples::median(&row.samples)
        .or_else(|| row.printed.as_ref()?.mean)
        .map_or("-".to_owned(), figure);
    let spread = quartiles(&row.samples)
        .map_or("-".to_owned(), |(low, high)| format!("{} .. {}", figure(low), figure(high)));
    html! {
        tr {
            th scope="row" { (row.design) }
            td { (row.metric) } td { (row.cpus) } td { (params.join(", ")) }
            td { (median) " " (row.unit) } td { (spread) } td { (row.samples.len()) }
        }
    }
}

fn made(file: &NamedDocument) -> Markup {
    let Document { machine, command, seed, settings, source, noise, .. } = &file.document;
    html! {
        h3 { (printable(&file.path.display().to_string())) }
        dl {
            dt { "command" } dd { code { (program(command)) (printable(command)) } }
            @if let Some(seed) = seed { dt { "seed" } dd { (seed) } }
            @if let Some(settings) = settings {
                dt { "settings" } dd { code { (printable(&settings.to_string())) } }
            }
            (of_machine(machine))
            @if let Some(source) = source { dt { "source" } dd { (printable(source)) } }
            @if let Some(noise) = noise { dt { "quietness" } dd { (noise.summary()) } }
        }
    }
}

/// The program that has a command; of a printed table or a chore that is in the command.
fn program(command: &str) -> &'static str {
    match command.split(' ').next() {
        Some("bench" | "replay") => "pagedepot ",
        Some("compare" | "simulate" | "soak" | "vmalloc") => "pagedepot-lab ",
        _ => "",
    }
}

fn of_machine(machine: &BTreeMap<String, Value>) -> Markup {
    html! {
        @for (name, value) in machine {
            dt { (printable(name)) }
            dd { (printable(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> NamedDocument {
        NamedDocument { path: "x.json".into(), document: Document::parse(text, "x").unwrap() }
    }

    #[test]
    fn names_cannot_become_markup() {
        let text = r#"{"schema":1,"command":"<script>alert(1)</script>","results":
            [{"workload":"<img src=x>","design":"depot","metric":"m","cpus":1,"samples":[1,2]}]}"#;
        let page = page(&[file(text)], &[], None);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(page.contains("&lt;img src=x&gt;"));
    }

    #[test]
    fn sections_are_named_after_what_they_hold() {
        let text = |design: &str, workload: &str| {
            format!(
                r#"{{"schema":1,"command":"bench {workload}","results":[{{"workload":"{workload}",
                    "design":"{design}","metric":"m_ns","unit":"ns","cpus":1,"samples":[1,2]}}]}}"#
            )
        };
        let compared = |files: &[NamedDocument]| {
            Comparison::new(&crate::compare::columns_of(files), None, crate::compare::Rule::Ours)
                .ok()
        };
        let alone = [file(&text("depot", "hot"))];
        let of = |files: &[NamedDocument]| page(files, &[], compared(files).as_ref());
        let one = of(&alone);
        assert!(compared(&alone).is_some() && !one.contains("Compared"), "{one}");
        assert!(one.contains("<summary>hot (1 figure)"), "{one}");
        let both = [file(&text("depot", "hot")), file(&text("depot", "touch"))];
        let two = of(&both);
        assert!(two.contains("bench touch (x)") && !two.contains("Compared"), "{two}");
    }

    #[test]
    fn the_page_loads_nothing() {
        let text = r#"{"schema":1,"results":
            [{"workload":"w","design":"depot","metric":"m_ns","unit":"ns","cpus":1,
              "samples":[1,2]},
             {"workload":"w","design":"depot","metric":"m_ns","unit":"ns","cpus":2,
              "samples":[2,3]}]}"#;
        let files = [file(text)];
        let plots = super::super::data::plots(&files);
        let drawn: Vec<ChartImage> =
            plots.iter().map(|plot| super::super::chart::draw(plot).unwrap()).collect();
        let page = page(&files, &plots.iter().zip(&drawn).collect::<Vec<_>>(), None);
        for outside in ["src=\"http", "href=\"http", "url(", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("<svg") && page.contains("data:image/png;base64,"));
    }
}
