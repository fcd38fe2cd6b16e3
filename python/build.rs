//! Leaves Python's symbols to the interpreter that loads the module, which the linker of macOS has to be told.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
