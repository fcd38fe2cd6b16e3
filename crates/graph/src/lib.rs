//! Vision models as static graphs of coarse operations.
//!
//! A model is a function that builds a [`Graph`] once; everything else is a function of that graph:
//! [`autodiff`] adds its gradients, [`rewrite`] transforms it, [`memory`] plans one arena for it, [`cost`] counts
//! its FLOPs, [`mod@reference`] interprets it in f64, and a [`device`] runs it fast. This crate depends on no device
//! and no model.
//!
//! ```
//! use vit_graph::{DType, Init, Tensor, reference::{self, Array}};
//!
//! let input = Tensor::input("x", DType::F32, [2, 3]);
//! let weight = input.parameter("fc.weight", [4, 3], Init::TruncatedNormal { std: 0.02 });
//! input.linear(&weight, None).gelu().output("y");
//! let graph = input.finish()?;
//!
//! let values = reference::Bindings::new()
//!     .with("x", Array::filled([2, 3], 1.0))
//!     .with("fc.weight", Array::filled([4, 3], 0.5));
//! let outputs = reference::run(&graph, &values)?;
//! assert_eq!(outputs["y"].shape(), [2, 4]);
//! # Ok::<(), vit_graph::GraphError>(())
//! ```

pub mod analysis;
pub mod autodiff;
pub mod batch_size;
pub mod cost;
pub mod device;
mod error;
pub mod exchange;
mod graph;
mod hint;
mod init;
mod inline;
pub mod memory;
pub mod ops;
mod precision;
pub mod quantise;
pub mod random;
pub mod reference;
pub mod rewrite;
mod shape;
mod tensor;

pub use error::GraphError;
pub use graph::{Graph, Node, NodeId, Phase, Value};
pub use hint::{Hint, Hints};
pub use init::Init;
pub use inline::{Inlined, Inlining};
pub use ops::Op;
pub use precision::Precision;
pub use shape::{DType, Shape, Type};
pub use tensor::{ScopeGuard, Tensor};
