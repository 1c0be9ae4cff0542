//! The marks that tell the lines of a plot apart, and the names beside them: a legend over the plot
//! would hide some of its points.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::data::Line;
use super::style::{Drawing, INK, LINES, WIDTH};

const FONT: (&str, u32) = ("sans-serif", 15);
/// Length of the piece of a line beside its name, and the space around it, in pixels.
const PIECE: i32 = 26;
const SPACE: i32 = 6;
const ROW: i32 = 22;
const WIDTH_MAX: u32 = WIDTH / 2;

/// The look of the nth line. Every second line has squares for points; those that have the colour
/// of an earlier one are dashed.
#[derive(Clone, Copy)]
pub struct Look(pub usize);

impl Look {
    pub fn colour(self) -> RGBColor {
        LINES[self.0 % LINES.len()]
    }

    pub fn stroke(self) -> ShapeStyle {
        self.colour().stroke_width(2)
    }

    pub fn is_dashed(self) -> bool {
        self.0 >= LINES.len()
    }

    pub fn has_squares(self) -> bool {
        self.0 % 2 == 1
    }
}

/// Pixels from the legend's left to the plot's right edge.
pub fn width(lines: &[Line]) -> u32 {
    let font = FONT.into_font();
    let widths = lines.iter().map(|line| font.box_size(&line.name).map_or(0, |(width, _)| width));
    (widths.max().unwrap_or(0) + (PIECE + 3 * SPACE) as u32).min(WIDTH_MAX)
}

/// Draws the names, one below the other.
pub fn draw<B>(area: &DrawingArea<B, Shift>, lines: &[Line]) -> Drawing
where
    B: DrawingBackend,
    B::ErrorType: 'static,
{
    let text = FONT.into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (nth, line) in lines.iter().enumerate() {
        let look = Look(nth);
        let y = ROW * (nth as i32 + 1);
        let ends = [(SPACE, y), (SPACE + PIECE, y)];
        if look.is_dashed() {
            area.draw(&DashedPathElement::new(ends, 6, 4, look.stroke()))?;
        } else {
            area.draw(&PathElement::new(ends, look.stroke()))?;
        }
        let (x, filled) = (SPACE + PIECE / 2, look.colour().filled());
        if look.has_squares() {
            area.draw(&Rectangle::new([(x - 3, y - 3), (x + 3, y + 3)], filled))?;
        } else {
            area.draw(&Circle::new((x, y), 4, filled))?;
        }
        area.draw(&Text::new(line.name.as_str(), (2 * SPACE + PIECE, y), text.clone()))?;
    }
    Ok(())
}
