//! Learning-rate schedules against recorded values of vision_transformer and big_vision.

use serde_json::Value;
use vit_train::{Decay, Schedule};

#[test]
fn curves_are_those_of_vision_transformer_and_big_vision() {
    let recorded: Value = serde_json::from_str(include_str!("schedules.json")).unwrap();
    let mut compared = 0;
    for curve in recorded["curves"].as_array().unwrap() {
        let args = &curve["args"];
        let integer = |key: &str| args[key].as_u64().unwrap_or(0);
        let list = |key: &str| args[key].as_array().unwrap().clone();
        // The two libraries have different default ends of a linear decay.
        let usual_end = if curve["library"] == "vit_jax" { 1e-5 } else { 0.0 };
        let decay = match args["decay_type"].as_str().unwrap() {
            "cosine" => Decay::Cosine { end: 0.0 },
            "linear" => Decay::Polynomial { end: args["linear_end"].as_f64().unwrap_or(usual_end), power: 1.0 },
            "rsqrt" => Decay::ReciprocalSqrt { timescale: integer("timescale") as f64, shift: 0.0 },
            "stair" => {
                let steps = list("steps").into_iter().map(|s| s.as_u64().unwrap());
                Decay::Stair(steps.zip(list("mults").into_iter().map(|m| m.as_f64().unwrap())).collect())
            }
            other => panic!("{other}"),
        };
        let scaled = args["scale_with_batchsize"] == true;
        let schedule = Schedule {
            base: args["base"].as_f64().unwrap() * if scaled { integer("batch_size") as f64 / 256.0 } else { 1.0 },
            steps: integer("total_steps"),
            warmup: integer("warmup_steps"),
            cooldown: integer("cooldown_steps"),
            decay,
        };
        let points: Vec<(u64, f64)> = curve["points"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap()))
            .collect();
        let largest = points.iter().fold(0.0f64, |m, (_, rate)| m.max(*rate));
        for (step, expected) in points {
            let found = schedule.rate(step);
            assert!((found - expected).abs() <= 1e-6 * largest, "{args} at {step}: {found} and {expected}");
            compared += 1;
        }
    }
    assert!(compared > 150, "only {compared} points were compared");
}

#[test]
fn odd_lengths_give_finite_rates() {
    let decays = [
        Decay::Constant,
        Decay::Cosine { end: 1e-5 },
        Decay::Polynomial { end: 0.0, power: 2.0 },
        Decay::ReciprocalSqrt { timescale: 1.0, shift: 3.0 },
        Decay::Stair(Vec::new()),
    ];
    for decay in decays {
        for (steps, warmup, cooldown) in [(0, 0, 0), (1, 1, 1), (5, 9, 0), (10, 0, 20)] {
            let schedule = Schedule { base: 0.1, steps, warmup, cooldown, decay: decay.clone() };
            for step in 0..30 {
                let rate = schedule.rate(step);
                assert!((0.0..=0.1).contains(&rate), "{schedule:?} at {step}: {rate}");
            }
        }
    }
}
