//! Every kernel compiles for the oldest and the newest supported architecture; skipped without NVRTC. Kernels with
//! wgmma are compiled for 90a alone, the only architecture with that instruction.

#[test]
fn every_kernel_compiles() {
    for architecture in ["80", "90", "90a"] {
        match vit_cuda::compile_every_kernel(architecture) {
            Ok(failures) => assert!(failures.is_empty(), "sm_{architecture}: {}", failures.join("\n")),
            Err(reason) => eprintln!("skipped: {reason}"),
        }
    }
}
