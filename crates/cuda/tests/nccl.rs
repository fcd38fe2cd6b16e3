//! NCCL where it is installed, with one rank where there is a GPU. It has one rank per GPU, so one machine with one GPU cannot
//! test more.

use vit_cuda::nccl::{self, NcclCommunicator, UniqueId};
use vit_cuda::{Cuda, Precision, Unavailable};

#[test]
fn a_library_that_is_missing_is_named() {
    match nccl::version() {
        Ok(version) => assert!(version.starts_with("2."), "{version}"),
        Err(reason) => {
            assert_eq!(reason, Unavailable::NoNccl);
            println!("{reason}");
        }
    }
}

#[test]
fn one_rank_joins() {
    // The context of the device is current in this thread afterwards.
    let (Ok(_device), Ok(_)) = (Cuda::new(0, Precision::F32), nccl::version()) else {
        println!("no GPU or no NCCL: nothing is tested");
        return;
    };
    let id = UniqueId::new().unwrap();
    // SAFETY: the context is current, and this test is the only rank.
    let communicator = unsafe { NcclCommunicator::join(id, 0, 1) }.unwrap();
    assert_eq!((communicator.rank(), communicator.size()), (0, 1));
    // SAFETY: no memory and the default stream.
    unsafe { communicator.all_reduce(0, 0, std::ptr::null_mut()) }.unwrap();
    communicator.failure().unwrap();
}
