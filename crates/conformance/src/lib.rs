//! The device test-suite, written once for all devices: random small graphs that cover every operation, forward and
//! backward. Only tests and examples depend on this crate.
//!
//! [`cases`] and [`cases_partly_differentiated`] build the graphs, [`check`] runs one on a device and compares every output with the reference
//! interpreter. [`updates`] and [`check_updates`] do the same for graphs that update their parameters. The gradients in
//! the cases are checked against finite differences by the tests of `vit-graph`.

mod build;
mod cases;
mod check;
mod rng;
mod updates;

pub use build::Case;
pub use cases::{cases, cases_partly_differentiated};
pub use check::{check, non_finite_variants};
pub use rng::Rng;
pub use updates::{check_updates, updates};
