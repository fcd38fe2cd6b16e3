//! Names of instruction sets, and which of them are available.

use vit_cpu::isa::Isa;

#[test]
fn names_parse_back() {
    for isa in Isa::ALL {
        assert_eq!(isa.to_string().parse(), Ok(isa));
    }
    let error = "sse9".parse::<Isa>().unwrap_err();
    assert!(error.to_string().contains("sse9"));
}

#[test]
fn the_portable_path_is_always_available() {
    let available = Isa::available();
    assert!(available.contains(&Isa::Portable));
    assert_eq!(available[0], Isa::detect());
}
