//! Self-distillation with no labels, DINO (Caron et al., 2021): the head that projects an image to prototypes.

use serde_json::{Map, Value, json};
use vit_graph::{Init, Tensor};

use super::super::Vit;
use crate::config::Arguments;
use crate::config::timm::object;
use crate::layers::{Forward, linear_from, unit_length};

/// The projection head.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfDistillation {
    /// Width of the hidden layers.
    pub hidden: usize,
    /// Width of the vector that is compared with prototypes.
    pub bottleneck: usize,
    /// The number of prototypes.
    pub prototypes: usize,
}

impl Default for SelfDistillation {
    /// The head of the published models.
    fn default() -> Self {
        SelfDistillation { hidden: 2048, bottleneck: 256, prototypes: 65536 }
    }
}

impl SelfDistillation {
    pub(super) fn written(&self) -> Map<String, Value> {
        object(json!({ "hidden": self.hidden, "bottleneck": self.bottleneck, "prototypes": self.prototypes }))
    }

    pub(super) fn read(args: &Arguments) -> Result<Self, String> {
        let usual = SelfDistillation::default();
        Ok(SelfDistillation {
            hidden: args.count("hidden")?.unwrap_or(usual.hidden),
            bottleneck: args.count("bottleneck")?.unwrap_or(usual.bottleneck),
            prototypes: args.count("prototypes")?.unwrap_or(usual.prototypes),
        })
    }

    pub(super) fn contradiction(&self) -> Option<String> {
        let widths = [self.hidden, self.bottleneck, self.prototypes];
        let impossible = widths.iter().any(|width| !(1..=1 << 20).contains(width));
        impossible
            .then(|| format!("the widths {widths:?} of the head of self-distillation must be from 1 to {}", 1 << 20))
    }
}

impl Forward<'_, Vit> {
    /// An MLP of three layers, normalised to length 1, and the cosines of that to the prototypes.
    pub(super) fn self_distillation(&self, image: &Tensor, dino: &SelfDistillation) {
        let x = self.encode(image, self.embed(image));
        x.output("tokens");
        let x = self.features(&x);
        let _scope = x.scope("dino_head");
        let init = Init::TruncatedNormal { std: 0.02 };
        let x = linear_from(&x, dino.hidden, true, init, "mlp.0").gelu();
        let x = linear_from(&x, dino.hidden, true, init, "mlp.2").gelu();
        let x = linear_from(&x, dino.bottleneck, true, init, "mlp.4");
        let weight = x.parameter("last_layer.weight", [dino.prototypes, dino.bottleneck], init);
        unit_length(&x).linear(&unit_length(&weight), None).output("projection");
    }
}
