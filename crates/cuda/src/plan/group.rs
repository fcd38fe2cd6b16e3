//! A group of nodes that runs as one: its operands, its lowering, its name.

use vit_graph::ops::{Activation, BatchNorm, Dropout, LayerNorm, LayerNormGrad, Op};
use vit_graph::{Graph, NodeId, Value};

use crate::lower::{self, Emitter, NormGradFusion};

/// Several nodes that are computed by the same kernels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FusionGroup {
    /// Updates of several parameters that share launches.
    Updates(Vec<NodeId>),
    /// A layer norm of the sum of `other` and a branch with stochastic depth.
    DroppedAddNorm {
        op: LayerNorm,
        norm: NodeId,
        dropout: Dropout,
        drop: NodeId,
        other: Value,
    },
    LayerNormGrad(LayerNormGradGroup),
    /// The gradient of an activation, and its column sums.
    ActivationGrad {
        activation: Activation,
        grad: NodeId,
        sums: NodeId,
    },
    /// relu(batch_norm(x)), or relu(batch_norm(x) + residual).
    BatchNormRelu {
        op: BatchNorm,
        norm: NodeId,
        relu: NodeId,
        residual: Option<Value>,
    },
    /// The gradient of `BatchNormRelu`, with or without the residual, by the nodes of the two gradients.
    BatchNormReluGrad {
        relu: NodeId,
        norm: NodeId,
        derivative: ReluDerivative,
    },
}

/// A layer norm's gradient and the operations that are fused with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerNormGradGroup {
    pub op: LayerNormGrad,
    pub norm: NodeId,
    /// The sum of `dx` and another gradient, with the latter.
    pub residual: Option<(NodeId, Value)>,
    /// The gradient of stochastic depth, applied to that sum, or to `dx` without one.
    pub drop: Option<(NodeId, Dropout)>,
    /// The column sums of the last value that the group computes.
    pub sums: Option<NodeId>,
}

impl LayerNormGradGroup {
    /// The sum with the residual, which is written instead of `dx`, or else `dx`.
    pub fn result(&self) -> Value {
        Value { node: self.residual.map_or(self.norm, |(sum, _)| sum), output: 0 }
    }
}

/// The value from which the gradient of a relu computes its derivative.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReluDerivative {
    /// From the input of the batch norm before the relu, with the norm's `beta`.
    OfNorm { beta: Value },
    /// From the relu's result, whose gradient is the sum of one or two `gradients`.
    OfResult { result: Value, gradients: Vec<Value> },
}

impl FusionGroup {
    /// The inputs and outputs of the fused kernels, where `id` is the group's leader.
    pub fn operands(&self, graph: &Graph, id: NodeId) -> (Vec<Value>, Vec<Value>) {
        let inputs = |node: NodeId| graph.node(node).inputs.clone();
        match self {
            FusionGroup::Updates(nodes) => (
                nodes.iter().flat_map(|&node| inputs(node)).collect(),
                nodes.iter().flat_map(|&node| outputs(graph, node)).collect(),
            ),
            FusionGroup::LayerNormGrad(group) => {
                let residual = group.residual.map(|(_, other)| other);
                let seed = group.drop.map(|(drop, _)| graph.node(drop).inputs[1]);
                let [dgamma, dbeta] = [1, 2].map(|output| Value { node: group.norm, output });
                let fused = [group.drop.map(|(drop, _)| drop), group.sums];
                let fused = fused.into_iter().flatten().map(|node| Value { node, output: 0 });
                (
                    inputs(group.norm).into_iter().chain(residual).chain(seed).collect(),
                    [group.result(), dgamma, dbeta].into_iter().chain(fused).collect(),
                )
            }
            FusionGroup::DroppedAddNorm { norm, drop, other, .. } => {
                let drop = &graph.node(*drop).inputs;
                let inputs = [&[*other, drop[0]], &graph.node(*norm).inputs[2..], &[drop[1]]].concat();
                (inputs, outputs(graph, id).collect())
            }
            FusionGroup::ActivationGrad { grad, sums, .. } => {
                (inputs(id), [*grad, *sums].map(|node| Value { node, output: 0 }).to_vec())
            }
            FusionGroup::BatchNormRelu { norm, relu, residual, .. } => (
                inputs(*norm).into_iter().chain(*residual).collect(),
                outputs(graph, *relu).chain(outputs(graph, *norm).skip(1)).collect(),
            ),
            FusionGroup::BatchNormReluGrad { relu, norm, derivative } => {
                let mut inputs = inputs(*norm);
                match derivative {
                    ReluDerivative::OfNorm { beta } => {
                        inputs[0] = graph.node(*relu).inputs[1];
                        inputs.push(*beta);
                    }
                    ReluDerivative::OfResult { result, gradients } => {
                        inputs[0] = gradients[0];
                        inputs.extend([*result].into_iter().chain(gradients.get(1).copied()));
                    }
                }
                (inputs, outputs(graph, *norm).chain(outputs(graph, *relu)).collect())
            }
        }
    }

    /// Emits the fused kernels.
    pub fn lower(&self, graph: &Graph, emitter: &mut Emitter) {
        match self {
            FusionGroup::Updates(nodes) => {
                let ops: Vec<&Op> = nodes.iter().map(|&node| &graph.node(node).op).collect();
                lower::updates(&ops, emitter);
            }
            FusionGroup::LayerNormGrad(LayerNormGradGroup { op, residual, drop, sums, .. }) => {
                let drop = drop.map(|(_, dropout)| dropout);
                let fused = NormGradFusion { residual: residual.is_some(), drop, sums: sums.is_some() };
                lower::norm_grad(*op, fused, emitter);
            }
            FusionGroup::DroppedAddNorm { op, dropout, .. } => lower::dropped_add_norm(op, *dropout, emitter),
            FusionGroup::ActivationGrad { activation, .. } => lower::activation_grad_and_sums(*activation, emitter),
            FusionGroup::BatchNormRelu { op, .. } => lower::batch_norm_relu(op, emitter),
            FusionGroup::BatchNormReluGrad { derivative, .. } => match derivative {
                ReluDerivative::OfNorm { .. } => lower::batch_norm_relu_grad(emitter),
                ReluDerivative::OfResult { .. } => lower::batch_norm_add_relu_grad(emitter),
            },
        }
    }

    /// The name of the fused operation, where `op` is that of the leader.
    pub fn name(&self, op: String) -> String {
        match self {
            FusionGroup::Updates(_) => op,
            FusionGroup::LayerNormGrad(group) => {
                let mut name = "layer_norm_grad".to_string();
                name.extend(group.residual.map(|_| "+add"));
                name.extend(group.drop.map(|_| "+drop_path"));
                name.extend(group.sums.map(|_| "+sums"));
                name
            }
            FusionGroup::DroppedAddNorm { .. } => "drop_path+add_layer_norm".into(),
            FusionGroup::ActivationGrad { .. } => op + "+sums",
            FusionGroup::BatchNormRelu { residual: Some(_), .. } => "batch_norm+add+relu".into(),
            FusionGroup::BatchNormRelu { residual: None, .. } => "batch_norm+relu".into(),
            FusionGroup::BatchNormReluGrad { .. } => "relu_grad+batch_norm_grad".into(),
        }
    }
}

fn outputs(graph: &Graph, node: NodeId) -> impl Iterator<Item = Value> {
    (0..graph.node(node).outputs.len()).map(move |output| Value { node, output })
}
