//! What a Vision Transformer attends to and what it learned: the measurements behind the paper's figures, computed from a
//! graph's intermediates (taps), and the figures and pages that show them.
//!
//! ```
//! use vit_insight::{Attention, rollout};
//!
//! // One layer, one head, two tokens that attend to each other alike.
//! let layer = Attention::new(1, 2, &[0.5, 0.5, 0.5, 0.5])?;
//! assert_eq!(rollout(&[layer])?, [0.75, 0.25, 0.25, 0.75]);
//! # Ok::<(), vit_insight::InsightError>(())
//! ```

mod attention;
mod components;
mod distance;
mod error;
mod explain;
mod inspect;
mod layers;
mod map;
mod page;
mod patches;
mod rollout;
mod runner;
mod sheet;
mod similarity;

pub use attention::Attention;
pub use components::{Components, principal_components};
pub use distance::attention_distance;
pub use error::InsightError;
pub use explain::{ExplainOptions, Explainer, Explanation, Method, Subject, suitable_methods};
pub use inspect::{Figure, FigureData, Inspection, Inspector, Missing, Sample, card, report};
pub use layers::{Layer, Tokens, attention_layers, covered};
pub use map::Map;
pub use page::{Page, PageEntry, STYLE as PAGE_STYLE};
pub use patches::patches;
pub use rollout::{relevance_of, rollout, rollout_of};
pub use sheet::{explanation_sheet, side_by_side, side_by_side_png};
pub use similarity::cosine_similarity;
