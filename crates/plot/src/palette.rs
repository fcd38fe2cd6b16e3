//! The colours of all figures, on white.

#![allow(missing_docs)]

/// Red, green, blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

pub const WHITE: Colour = Colour(255, 255, 255);
pub const INK: Colour = Colour(17, 24, 39);
pub const MUTED: Colour = Colour(107, 114, 128);
pub const GRID: Colour = Colour(229, 231, 235);
pub const FRAME: Colour = Colour(156, 163, 175);
pub const PAPER: Colour = Colour(243, 244, 246);
pub const BLUE: Colour = Colour(37, 99, 235);
pub const ORANGE: Colour = Colour(217, 95, 14);
pub const RED: Colour = Colour(200, 30, 50);
pub const GREEN: Colour = Colour(21, 128, 61);
pub const PURPLE: Colour = Colour(124, 58, 237);

impl Colour {
    /// This colour mixed with another, 0 for this one and 1 for the other.
    pub fn mix(self, other: Colour, share: f32) -> Colour {
        let share = share.clamp(0.0, 1.0);
        let channel = |from: u8, to: u8| (f32::from(from) + (f32::from(to) - f32::from(from)) * share).round() as u8;
        Colour(channel(self.0, other.0), channel(self.1, other.1), channel(self.2, other.2))
    }

    /// The scale of the confusion matrix, from white for 0 to dark blue for 1.
    pub fn intensity(share: f32) -> Colour {
        const STOPS: [Colour; 5] =
            [WHITE, Colour(191, 219, 254), Colour(96, 165, 250), Colour(29, 78, 216), Colour(23, 37, 84)];
        let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
        let index = (place as usize).min(STOPS.len() - 2);
        STOPS[index].mix(STOPS[index + 1], place - index as f32)
    }
}
