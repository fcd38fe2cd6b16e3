//! Figures without system libraries: a [`Scene`] is a list of shapes that is written as SVG or PNG, a [`ColourMap`] is a
//! perceptually uniform colour scale, and [`embed`] puts images into HTML pages.
//!
//! The font is embedded (Inter, under the SIL Open Font License; see `src/fonts/OFL.txt`), so that figures look the same on
//! every machine.
//!
//! ```
//! use vit_plot::{Scene, Text};
//!
//! let mut scene = Scene::new(200.0, 40.0);
//! scene.text(Text::new("197 tokens", [20.0, 20.0], 14.0).bold());
//! assert!(scene.svg().contains("197 tokens"));
//! assert!(scene.png(2.0)?.starts_with(b"\x89PNG"));
//! # Ok::<(), vit_plot::PlotError>(())
//! ```

pub mod axis;
mod bitmap;
mod colour_map;
pub mod embed;
mod font;
pub mod palette;
mod scene;
mod svg;

pub use bitmap::{PlotError, png};
pub use colour_map::ColourMap;
pub use font::Weight;
pub use scene::{Anchor, Area, Scene, Text};
pub use svg::escape;
