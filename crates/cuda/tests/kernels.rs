//! Every kernel file compiles for the oldest and the newest architecture that is looked after, wherever NVRTC is there.
//! What is for Hopper's tensor cores is compiled for 90a alone, the only architecture with their instructions.

#[test]
fn every_kernel_compiles() {
    for architecture in ["80", "90", "90a"] {
        match vit_cuda::compile_every_kernel(architecture) {
            Ok(failures) => assert!(failures.is_empty(), "sm_{architecture}: {}", failures.join("\n")),
            Err(reason) => eprintln!("skipped: {reason}"),
        }
    }
}
