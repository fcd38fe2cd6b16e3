//! The translation of each operation, by family.

mod attention;
mod elementwise;
mod image;
mod matrix;
mod movement;
mod norm;
mod windows;
