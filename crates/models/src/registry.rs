//! The registered architectures: those of this crate, and those that a program adds.

use std::sync::{PoisonError, RwLock};

use crate::architecture::{Architecture, Network};
use crate::config::Config;
use crate::variant::Variant;
use crate::weights::{Scheme, Weights};
use vit_preprocess::Preprocess;

/// The associated functions of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    pub variants: fn() -> Vec<Variant>,
    pub variant: fn(&str) -> Option<Variant>,
    pub classes: fn() -> Vec<(&'static str, Architecture, Preprocess)>,
    pub guess: fn(&Weights, Scheme) -> Option<Config>,
}

impl Registered {
    pub const fn of<N: Network>() -> Self {
        let classes = || N::classes().into_iter().map(|(name, model, usual)| (name, model.into(), usual)).collect();
        Registered { variants: N::variants, variant: N::variant, classes, guess: N::guess }
    }
}

static OF_THE_PROGRAM: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// Makes an architecture known: its variants by name, and its class in configurations that are opened from now on. Where
/// names are the same, this crate's architectures come first.
pub fn register<N: Network>() {
    OF_THE_PROGRAM.write().unwrap_or_else(PoisonError::into_inner).push(Registered::of::<N>());
}

/// All known architectures.
pub(crate) fn registered() -> Vec<Registered> {
    let others = OF_THE_PROGRAM.read().unwrap_or_else(PoisonError::into_inner);
    crate::ARCHITECTURES.iter().chain(&*others).copied().collect()
}
