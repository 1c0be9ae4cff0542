//! The memory that is present over time, as an SVG drawing.

use std::fmt::Write as _;

use super::program::Run;
use super::rows::{label, mib};
use crate::names::Design;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 40.0;
/// Colours that can be told apart by colour-blind readers (after Okabe and Ito), on white and on
/// black.
const COLOURS: [&str; 7] =
    ["#0072B2", "#D55E00", "#009E73", "#C46F9F", "#A67500", "#3D8FC4", "#777777"];
/// Colours of paper, text and axes, which follow the reader's light or dark mode.
const STYLE: &str = "<style>.paper{fill:#ffffff}.ink{fill:#333333}.axis{stroke:#333333}\
    @media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#dddddd}\
    .axis{stroke:#dddddd}}</style>";

/// Draws the rows that were not asked, those of the first round, under a line about the machine.
pub fn drawing(machine: &str, found: &[(Design, bool, Vec<Run>)]) -> String {
    let rows: Vec<_> = found
        .iter()
        .filter(|(_, asked, _)| !asked)
        .filter_map(|(design, asked, runs)| Some((label(*design, *asked), runs.first()?)))
        .collect();
    drawn(machine, &rows)
}

fn drawn(machine: &str, rows: &[(String, &Run)]) -> String {
    let points = || rows.iter().flat_map(|(_, run)| &run.over_time);
    let seconds = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1 / mib()).fold(1.0, f64::max);
    let top = (most / 50.0).ceil() * 50.0;
    let x = |s: f64| LEFT + (WIDTH - LEFT - RIGHT) * s / seconds;
    let y = |mib: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * mib / top;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Memory present after a peak, while the program goes on working</title>\n{STYLE}\n\
         <rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, style: &str, what: &str| {
        let what = what.replace('&', "&amp;").replace('<', "&lt;");
        writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{what}</text>"
        )
        .expect("a string takes it");
    };
    const INK: &str = "class=\"ink\"";
    text(LEFT, 16.0, "start", INK, "MiB present");
    text(WIDTH - 8.0, 16.0, "end", INK, machine);
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        text(LEFT - 6.0, y(value) + 4.0, "end", INK, &format!("{value:.0}"));
        let at = seconds * f64::from(part) / 4.0;
        text(x(at), HEIGHT - BOTTOM + 18.0, "middle", INK, &format!("{at:.1} s"));
    }
    text(x(seconds / 2.0), HEIGHT - 6.0, "middle", INK, "seconds since the peak was freed");
    // Labels at the ends of lines, at least a line's height apart.
    let mut ends: Vec<(f64, usize)> = rows
        .iter()
        .enumerate()
        .filter_map(|(nth, (_, run))| Some((y(run.over_time.last()?.1 / mib()), nth)))
        .collect();
    ends.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut lowest = f64::INFINITY;
    for (end, nth) in ends {
        lowest = (end + 4.0).min(lowest - 15.0);
        let fill = format!("fill=\"{}\"", COLOURS[nth % COLOURS.len()]);
        text(x(seconds) + 8.0, lowest, "start", &fill, &rows[nth].0);
    }
    for (nth, (_, run)) in rows.iter().enumerate() {
        let line: Vec<String> = run
            .over_time
            .iter()
            .map(|&(s, bytes)| format!("{:.1},{:.1}", x(s), y(bytes / mib())))
            .collect();
        writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>",
            COLOURS[nth % COLOURS.len()],
            line.join(" ")
        )
        .expect("a string takes it");
    }
    for (to_x, to_y) in [(x(seconds), y(0.0)), (LEFT, TOP)] {
        writeln!(svg, "<path class=\"axis\" d=\"M {LEFT} {:.1} L {to_x:.1} {to_y:.1}\"/>", y(0.0))
            .expect("a string takes it");
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_line_and_a_label() {
        let run = |end: f64| Run {
            over_time: vec![(0.0, 100.0 * mib()), (10.0, end * mib())],
            ..Run::default()
        };
        let (a, b) = (run(5.0), run(6.0));
        let rows = [("depot".to_owned(), &a), ("glibc".to_owned(), &b)];
        let svg = drawn("a CPU <of> A&B", &rows);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">depot</text>") && svg.contains(">glibc</text>"), "{svg}");
        assert!(svg.contains(">a CPU &lt;of> A&amp;B</text>"), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
