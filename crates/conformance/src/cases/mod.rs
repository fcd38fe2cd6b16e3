//! The cases, one file per family of operations. Each file opens with its table; the functions below it build the
//! graphs.

mod arithmetic;
mod attention;
mod convolution;
mod exchange;
mod linear;
mod loss;
mod movement;
mod norm;
mod optimise;
mod rotary;
mod tokens;

use vit_graph::GraphError;
use vit_graph::ops::Activation;

use crate::build::{Case, Differentiated, Table};

/// Cases for every operation, with other shapes and values for every seed.
pub fn cases(seed: u32) -> Result<Vec<Case>, GraphError> {
    fill(Table::new(seed, Differentiated::All))
}

/// As [`cases`], but only some of the inputs and parameters are differentiated, as where a model is partly frozen.
pub fn cases_partly_differentiated(seed: u32) -> Result<Vec<Case>, GraphError> {
    fill(Table::new(seed, Differentiated::Some))
}

fn fill(mut table: Table) -> Result<Vec<Case>, GraphError> {
    linear::table(&mut table);
    convolution::table(&mut table);
    attention::table(&mut table);
    rotary::table(&mut table);
    norm::table(&mut table);
    arithmetic::table(&mut table);
    movement::table(&mut table);
    tokens::table(&mut table);
    loss::table(&mut table);
    optimise::table(&mut table);
    exchange::table(&mut table);
    table.finish()
}

const ACTIVATIONS: [Activation; 7] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::QuickGelu,
];
