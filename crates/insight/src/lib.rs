//! What a Vision Transformer attends to and what it learned: the measurements behind the paper's figures, on arrays
//! that any graph gives when its intermediates are asked for.
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
mod rollout;
mod similarity;

pub use attention::{Attention, InsightError};
pub use components::{Components, principal_components};
pub use distance::attention_distance;
pub use rollout::rollout;
pub use similarity::cosine_similarity;
