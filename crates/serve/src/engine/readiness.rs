//! Whether the engine can answer.

/// Whether the engine can answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// Every model has a working replica.
    Ready,
    /// No new work is admitted.
    Draining,
    /// A model has no working replica left.
    Lost {
        /// The model.
        model: String,
        /// The device's error.
        reason: String,
    },
}
