//! Drawing a plot, as SVG and as PNG, by plotters.

use std::error::Error;
use std::io::Cursor;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::axis::{Axis, FOLLOWED_MAX, short};
use super::data::{Form, Line, Plot, Point};
use super::legend::{self, Look};
use super::style::{Drawing, INK, LINES, PAPER, RULE, WIDTH};

/// A plot, drawn.
#[derive(Clone, Debug)]
pub struct ChartImage {
    pub svg: String,
    pub png: Vec<u8>,
}

/// Height of a plot of lines, in pixels.
const HEIGHT: u32 = 440;
/// Squares of a map beside each other, and the side of one in pixels.
const MAP_COLUMNS: usize = 64;
const SQUARE: u32 = 11;

/// Draws it both ways.
///
/// # Errors
/// What plotters says.
pub fn draw(plot: &Plot) -> Result<ChartImage, String> {
    fonts();
    let size = match &plot.form {
        Form::Lines { .. } => (WIDTH, HEIGHT),
        Form::Map { free_percent } => {
            let rows = free_percent.len().div_ceil(MAP_COLUMNS).max(1) as u32;
            (MAP_COLUMNS as u32 * SQUARE + 28, rows * SQUARE + 28)
        }
    };
    let mut svg = String::new();
    let failed = |e: Box<dyn Error + Send + Sync>| e.to_string();
    draw_on(SVGBackend::with_string(&mut svg, size).into_drawing_area(), plot).map_err(failed)?;
    let mut pixels = vec![0; 3 * size.0 as usize * size.1 as usize];
    draw_on(BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), plot)
        .map_err(failed)?;
    let mut png = Cursor::new(Vec::new());
    image::write_buffer_with_format(
        &mut png,
        &pixels,
        size.0,
        size.1,
        image::ColorType::Rgb8,
        image::ImageOutputFormat::Png,
    )
    .map_err(|e| e.to_string())?;
    Ok(ChartImage { svg, png: png.into_inner() })
}

/// The font is the command's own: plots look alike wherever they are drawn.
fn fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let known = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
        assert!(known.is_ok(), "the font is a font");
    });
}

fn draw_on<B>(area: DrawingArea<B, Shift>, plot: &Plot) -> Drawing
where
    B: DrawingBackend,
    B::ErrorType: 'static,
{
    area.fill(&PAPER)?;
    match &plot.form {
        Form::Map { free_percent } => map(&area, free_percent)?,
        Form::Lines { x, y, is_log, lines } => {
            let ((x0, x1), (y0, y1)) = ranges(lines, *is_log);
            let (area, beside) = area.split_horizontally(WIDTH - legend::width(lines));
            legend::draw(&beside, lines)?;
            let mut builder = ChartBuilder::on(&area);
            builder.margin(12).x_label_area_size(44).y_label_area_size(72);
            let places = lines.iter().flat_map(|line| &line.points).map(|point| point.x);
            let xs = Axis::new((x0, x1), places);
            if *is_log {
                let chart = builder.build_cartesian_2d(xs, (y0..y1).log_scale())?;
                series(chart, x, y, lines)?;
            } else {
                series(builder.build_cartesian_2d(xs, y0..y1)?, x, y, lines)?;
            }
        }
    }
    area.present()?;
    Ok(())
}

type Range = (f64, f64);

/// Both axes, a little wider than the points.
fn ranges(lines: &[Line], is_log: bool) -> (Range, Range) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = |of: &dyn Fn(&Point) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: &dyn Fn(&Point) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (x0, x1) = (least(&|p| p.x), most(&|p| p.x));
    let (low, high) = (least(&|p| p.low.min(p.y)), most(&|p| p.high.max(p.y)));
    // Points at one place need a width that numbers of their size can tell apart.
    let beside = ((x1 - x0) * 0.03).max(x0.abs().max(x1.abs()) * 1e-6).max(1e-9);
    let y = if is_log {
        (low / 1.3, high * 1.6)
    } else {
        let (low, high) = (low.min(0.0), high.max(0.0));
        (low, high + ((high - low) * 0.15).max(1e-9))
    };
    ((x0 - beside, x1 + beside), y)
}

fn series<'a, B, Y>(
    mut chart: ChartContext<'a, B, Cartesian2d<Axis, Y>>,
    x: &str,
    y: &str,
    lines: &[Line],
) -> Drawing
where
    B: DrawingBackend + 'a,
    B::ErrorType: 'static,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = ("sans-serif", 15).into_font().color(&INK);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    for (nth, line) in lines.iter().enumerate() {
        let look = Look(nth);
        let path = line.points.iter().map(|point| (point.x, point.y));
        if look.is_dashed() {
            chart.draw_series(DashedLineSeries::new(path.clone(), 8, 5, look.stroke()))?;
        } else {
            chart.draw_series(LineSeries::new(path.clone(), look.stroke()))?;
        }
        let spread = line.points.iter().filter(|point| point.low < point.high);
        chart.draw_series(spread.map(|point| {
            ErrorBar::new_vertical(point.x, point.low, point.y, point.high, look.stroke(), 7)
        }))?;
        let filled = look.colour().filled();
        if line.points.len() > FOLLOWED_MAX {
            continue;
        }
        if look.has_squares() {
            chart.draw_series(
                path.map(|at| EmptyElement::at(at) + Rectangle::new([(-3, -3), (3, 3)], filled)),
            )?;
        } else {
            chart.draw_series(path.map(|at| Circle::new(at, 4, filled)))?;
        }
    }
    Ok(())
}

fn map<B>(area: &DrawingArea<B, Shift>, free_percent: &[u8]) -> Drawing
where
    B: DrawingBackend,
    B::ErrorType: 'static,
{
    for (nth, &free) in free_percent.iter().enumerate() {
        let (row, column) = ((nth / MAP_COLUMNS) as i32, (nth % MAP_COLUMNS) as i32);
        let (x, y) = (14 + column * SQUARE as i32, 14 + row * SQUARE as i32);
        let side = SQUARE as i32 - 1;
        let corners = [(x, y), (x + side, y + side)];
        let used = f64::from(100 - free.min(100)) / 100.0;
        area.draw(&Rectangle::new(corners, LINES[0].mix(used).filled()))?;
        area.draw(&Rectangle::new(corners, RULE.stroke_width(1)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(form: Form) -> Plot {
        Plot { title: "t".into(), says: "s".into(), form }
    }

    fn lines(is_log: bool) -> Form {
        let point = |x: f64| Point { x, low: x, y: x * 2.0, high: x * 3.0 };
        let line = |name: &str| Line { name: name.into(), points: vec![point(1.0), point(2.0)] };
        Form::Lines { x: "CPUs".into(), y: "ns".into(), is_log, lines: vec![line("a"), line("b")] }
    }

    #[test]
    fn each_form_is_drawn_both_ways() {
        for form in [lines(true), lines(false), Form::Map { free_percent: vec![0, 50, 100] }] {
            let drawn = draw(&plot(form)).unwrap();
            assert!(drawn.svg.starts_with("<svg") && drawn.svg.trim_end().ends_with("</svg>"));
            assert!(drawn.png.starts_with(b"\x89PNG"));
        }
        assert!(draw(&plot(lines(true))).unwrap().svg.contains("CPUs"));
    }

    #[test]
    fn lines_that_are_flat_or_zero_can_be_drawn() {
        let point = |x: f64| Point { x, low: 0.0, y: 0.0, high: 0.0 };
        let line = Line { name: "z".into(), points: vec![point(0.0), point(0.0)] };
        let form = Form::Lines { x: "x".into(), y: "y".into(), is_log: false, lines: vec![line] };
        draw(&plot(form)).unwrap();
    }

    /// The extremes of what result files may have, and points that are hardly apart.
    #[test]
    fn all_figures_can_be_drawn() {
        let drawn = |is_log, points: &[(f64, f64)]| {
            let points = points.iter().map(|&(x, y)| Point { x, low: y, y, high: y }).collect();
            let line = Line { name: "z".into(), points };
            let form = Form::Lines { x: "x".into(), y: "y".into(), is_log, lines: vec![line] };
            draw(&plot(form)).unwrap();
        };
        drawn(true, &[(1.0, 1e-18), (2.0, 1e18)]);
        drawn(false, &[(1.0, -1e18), (2.0, 1e18)]);
        drawn(false, &[(1.0, 1e-18), (2.0, 1e-18)]);
        drawn(false, &[(-1e18, 1.0), (1e18, 2.0)]);
        drawn(false, &[(1e18, 1.0), (1e18, 2.0)]);
        let near = 1_000_000.5_f64;
        drawn(false, &[(near, 1.0), (near.next_up(), 2.0)]);
        drawn(false, &(0..50).map(|_| (1e18, 1.0)).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_beside_the_lines() {
        let Form::Lines { lines, .. } = lines(false) else { unreachable!() };
        fonts();
        let width = legend::width(&lines);
        assert!((30..100).contains(&width), "{width}");
        let long = Line { name: "depot ".repeat(40), points: Vec::new() };
        assert_eq!(legend::width(&[long]), WIDTH / 2);
    }
}
