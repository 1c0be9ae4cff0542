//! Sizes and colours of plots, and the style sheet of the page.

use std::error::Error;

use plotters::style::RGBColor;

/// The result of drawing.
pub type Drawing = Result<(), Box<dyn Error + Send + Sync>>;

/// Width of a plot of lines, in pixels.
pub const WIDTH: u32 = 760;

/// Lines and text of plots: replaced by variables in the page, so that they follow its scheme.
pub const INK: RGBColor = RGBColor(1, 1, 1);
pub const PAPER: RGBColor = RGBColor(254, 254, 254);
pub const RULE: RGBColor = RGBColor(217, 217, 218);

/// Colours of lines, told apart by people who see fewer colours, too (Okabe and Ito 2008), and
/// readable on white and on black.
pub const LINES: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(140, 140, 140),
    RGBColor(170, 150, 20),
];

/// An SVG for the page: neutral colours become the page's, and it scales.
pub fn for_page(svg: &str) -> String {
    let (paper, ink, rule) = ("#FEFEFE", "#010101", "#D9D9DA");
    svg.replace(paper, "var(--paper)").replace(ink, "var(--ink)").replace(rule, "var(--rule)")
}

/// The style sheet.
pub const CSS: &str = "
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --soft: #555; --rule: #d5d5d8;
  --better: #0a6b2d; --worse: #a3261b; --warn: #7a5200; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e9e9ea; --soft: #b0b2b8;
  --rule: #3c4048; --better: #6fd08c; --worse: #ff9389; --warn: #f0c060; --link: #8ec1ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2rem; } h3 { font-size: 1.05rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible, [tabindex]:focus-visible {
  outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; } .skip:focus { left: 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; list-style: none; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
  gap: 1.5rem; }
figure { margin: 0; break-inside: avoid; min-width: 0; }
figure svg { width: 100%; height: auto; display: block; border: 1px solid var(--rule); }
figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; } th[scope=row], th:first-child { text-align: left; }
.better { color: var(--better); } .worse { color: var(--worse); } .warning { color: var(--warn); }
summary { cursor: pointer; padding: .4rem 0; } code { font-size: .9em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dd { margin: 0; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-left: 1rem; } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #333; --rule: #bbb; --better: #000;
  --worse: #000; --warn: #000; --link: #000; } nav, .skip, .save { display: none; }
  body { max-width: none; font-size: 10pt; } .wide { overflow: visible; }
  td, th { white-space: normal; } }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neutral_colours_become_the_pages() {
        let hex = |RGBColor(r, g, b): RGBColor| format!("#{r:02X}{g:02X}{b:02X}");
        let svg = format!("{} {} {} #0072B2", hex(PAPER), hex(INK), hex(RULE));
        assert_eq!(for_page(&svg), "var(--paper) var(--ink) var(--rule) #0072B2");
    }
}
