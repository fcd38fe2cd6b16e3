//! A compiled graph and its runs: launches with their arguments, stream capture, inputs, exchanges, read-back.

pub(crate) mod arguments;
mod capture;
pub(crate) mod exchange;
pub(crate) mod executable;
mod inputs;
pub(crate) mod launch;
mod read_back;
pub(crate) mod tensor_map;
mod weights;
