//! Trains a model on a dataset:
//! `cargo run --release -p vit --features train --example train -- photos runs/photos 'length=20 epochs'`.

use vit::Trainer;

fn main() -> Result<(), vit::Error> {
    let mut arguments = std::env::args().skip(1);
    let (Some(data), Some(folder)) = (arguments.next(), arguments.next()) else {
        panic!("give a dataset, a folder for the run, and settings of the recipe such as `batch=64`");
    };
    let run = arguments.fold(Trainer::new(data), Trainer::set).train(&folder)?;
    println!("{folder}: {} steps", run.finished.position.step);
    if let Some(best) = run.best() {
        println!("best {}: {:.1}%", best.metric, 100.0 * best.value);
    }
    Ok(())
}
