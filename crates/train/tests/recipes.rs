//! Recipes: named ones are complete and print as their files, changes are checked, errors are explained.

use vit_train::{ColourJitterSetting, Decay, DecayOn, OptimiserMethod, Recipe, Span};

fn error(result: Result<impl Sized, vit_train::RecipeError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn named_recipes_print_as_their_files_and_read_back() {
    for name in Recipe::names() {
        let recipe = Recipe::named(name).unwrap();
        assert_eq!(recipe.base, name);
        let text = recipe.to_toml();
        let file = format!("{}/recipes/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let plain: String =
            text.lines().map(|line| format!("{}\n", line.split(" # ").next().unwrap().trim_end())).collect();
        assert_eq!(plain, std::fs::read_to_string(file).unwrap(), "{name}");
        assert_eq!(Recipe::parse(&text).unwrap(), recipe, "{name}");
        for line in text.lines().filter(|line| line.contains(" = ")) {
            assert!(line.contains(" # "), "{name}: no comment on {line}");
        }
    }
    assert_eq!(Recipe::parse("").unwrap(), Recipe::named("small").unwrap());
}

#[test]
fn the_paper_recipes_say_what_the_paper_says() {
    let pretrain = Recipe::named("vit-pretrain").unwrap();
    let step = pretrain.step_options();
    assert_eq!(step.optimiser.method, OptimiserMethod::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 });
    assert_eq!((step.optimiser.weight_decay, step.optimiser.decay_on), (0.1, DecayOn::Everything));
    assert_eq!(pretrain.batch, 4096);
    let schedule = pretrain.schedule(1000);
    assert_eq!((schedule.steps, schedule.warmup), (7000, 10_000));
    assert!(matches!(schedule.decay, Decay::Polynomial { power: 1.0, .. }));

    let finetune = Recipe::named("vit-finetune").unwrap();
    let step = finetune.step_options();
    assert_eq!(step.optimiser.method, OptimiserMethod::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false });
    assert_eq!((step.optimiser.weight_decay, step.optimiser.clip, finetune.batch), (0.0, Some(1.0), 512));
    assert!(matches!(finetune.schedule(1).decay, Decay::Cosine { end: 0.0 }));

    let deit = Recipe::named("deit").unwrap();
    // 5e-4 for a batch of 512, and DeiT's is 1024.
    assert_eq!(deit.schedule(100).base, 1e-3);
    assert_eq!(deit.schedule(100).warmup, 500);
    assert!(deit.step_options().average && deit.step_options().optimiser.clip.is_none());
}

/// Caron et al. (2021), section 3 and appendix; their code's schedules of teacher, temperature and weight decay.
#[test]
fn self_distillation_follows_its_paper() {
    let mut dino = Recipe::named("dino").unwrap();
    let (steps, epochs) = (200 * 50, 200);
    assert_eq!((dino.steps(50), dino.length), (steps, Span::Epochs(f64::from(epochs))));
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} and {expected}");

    let average = dino.average(50).unwrap();
    // The first step copies the weights, which the teacher starts with.
    assert_eq!(average.decay_at(1), 0.0);
    for (step, decay) in [(2, 0.996), (steps / 2 + 1, 0.998), (steps + 1, 1.0)] {
        close(average.decay_at(step).into(), decay);
    }
    let decay = dino.weight_decay(50).unwrap();
    for (step, expected) in [(0, 0.04), (steps / 2, 0.22), (steps, 0.4)] {
        close(decay.at(step), expected);
    }
    let schedule = dino.distillation_schedule(50).unwrap();
    // 30 epochs.
    for (step, temperature) in [(1, 0.04), (751, 0.055), (1501, 0.07), (steps, 0.07)] {
        close(1.0 / f64::from(schedule.sharpness(step)), temperature);
    }
    assert_eq!([1, 50, 51].map(|step| schedule.last_layer(step)), [0.0, 0.0, 1.0]);
    assert_eq!(dino.data.colour_jitter, ColourJitterSetting::Each([0.4, 0.4, 0.2, 0.1]));

    dino.set_all(["average.end=0", "optimiser.weight_decay_end=0", "pretraining.teacher_warmup=0 steps"]).unwrap();
    dino.set("pretraining.freeze_last_layer=0 steps").unwrap();
    let constant = dino.average(50).unwrap();
    assert_eq!([2, steps].map(|step| constant.decay_at(step)), [0.996; 2]);
    assert_eq!(dino.weight_decay(50), None);
    let schedule = dino.distillation_schedule(50).unwrap();
    close(1.0 / f64::from(schedule.sharpness(1)), 0.07);
    assert_eq!(schedule.last_layer(1), 1.0);
    let blur = error(dino.set("pretraining.blur=[1, 2, 0]"));
    assert!(blur.starts_with("`pretraining.blur` should be three probabilities from 0 to 1"), "{blur}");
    assert_eq!(Recipe::named("mae").unwrap().distillation_schedule(50), None);
}

#[test]
fn one_setting_can_be_changed() {
    let mut recipe = Recipe::named("small").unwrap();
    for setting in [
        "schedule.rate=3e-4",
        "optimiser.clip=2",
        "optimiser.method=lamb",
        "schedule.warmup=500",
        "length = 20 epochs",
        "model.freeze=backbone",
        "objective.teacher=runs/teacher",
        "objective.distillation=hard",
        "data.crop_scale=[0.5, 1]",
        "data.colour_jitter=[0.4, 0.4, 0.2, 0.1]",
        "data.colour_jitter=0.3",
    ] {
        recipe.set(setting).unwrap_or_else(|e| panic!("{setting}: {e}"));
    }
    assert_eq!((recipe.schedule.rate, recipe.optimiser.clip), (3e-4, 2.0));
    assert_eq!((recipe.schedule.warmup, recipe.length), (Span::Steps(500), Span::Epochs(20.0)));
    assert_eq!(recipe.data.crop_scale, [0.5, 1.0]);
    assert_eq!(recipe.data.colour_jitter, ColourJitterSetting::Uniform(0.3));
    assert!(recipe.step_options().freeze.includes(&["head"], &["blocks.0.norm1.weight"])[0]);
    assert!(recipe.step_options().objective.distillation.is_some());
    assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap(), recipe);
}

#[test]
fn a_file_starts_from_its_base() {
    let recipe = Recipe::parse("base = \"deit\"\nbatch = 256\n[model]\ndrop_path = 0.3\n").unwrap();
    let deit = Recipe::named("deit").unwrap();
    assert_eq!((recipe.batch, recipe.model.drop_path), (256, 0.3));
    assert_eq!(recipe.optimiser, deit.optimiser);
}

#[test]
fn mistakes_are_explained() {
    let mut recipe = Recipe::named("small").unwrap();
    let before = recipe.clone();
    for (setting, expected) in [
        (
            "optimizer.weight_decay=1",
            "there is no recipe key `optimizer.weight_decay`; did you mean `optimiser.weight_decay`?",
        ),
        ("lr=1", "there is no recipe key `lr`; did you mean `schedule.rate`?"),
        ("zebra=1", "there is no recipe key `zebra`"),
        ("rate=1", "there is no recipe key `rate`; did you mean `schedule.rate`?"),
        ("data.colour_jiter=1", "there is no recipe key `data.colour_jiter`; did you mean `data.colour_jitter`?"),
        ("batchsize=1", "there is no recipe key `batchsize`; did you mean `batch`?"),
        ("data.mixup.alpha=1", "there is no recipe key `data.mixup.alpha`; did you mean `data.mixup`?"),
        ("optimiser=sgd", "there is no recipe key `optimiser`; did you mean `optimiser.method`?"),
        ("nonsense", "`nonsense` should be KEY=VALUE, like schedule.rate=1e-3"),
        ("model.drop_path=1", "`model.drop_path` should be at least 0 and below 1"),
        ("model.drop_path=-0.1", "`model.drop_path` should be at least 0 and below 1"),
        ("schedule.rate=nan", "`schedule.rate` should be a number that is not negative"),
        ("batch=0", "`batch` should be at least 1"),
        ("accumulate=3", "`accumulate` should be a divisor of the batch, 128"),
        ("length=3%", "`length` should be a number of epochs or steps"),
        (
            "objective.distillation=soft",
            "`objective.teacher` should be the teacher's checkpoint, since objective.distillation is not none",
        ),
    ] {
        assert_eq!(error(recipe.set(setting)), expected, "{setting}");
    }
    for (setting, part) in [
        ("optimiser.method=adagrad", "adamw"),
        ("batch=many", "expected a whole number"),
        ("schedule.warmup=5 weeks", "\"5 epochs\""),
        ("optimiser.betas=[0.9]", "`optimiser.betas` has a value of the wrong kind"),
        ("data.colour_jitter=[0.4]", "expected a number, or four for brightness, contrast, saturation and hue"),
        ("data.colour_jitter=-1", "should be a number that is not negative"),
        ("data.colour_jitter=[0.4, 0.4, 0.2, 0.6]", "of the hue, is from 0 to 0.5"),
        ("average.end=1.5", "`average.end` should be from 0 to 1"),
    ] {
        let what = error(recipe.set(setting));
        assert!(what.contains(part) && !what.contains('\n'), "{setting}: {what}");
    }
    assert_eq!(recipe, before, "a refused setting changes nothing");
    let coupled = recipe.clone().set_all(["optimiser.method=sgd", "optimiser.weight_decay_end=0.1"]);
    assert_eq!(error(coupled), "`optimiser.weight_decay_end` should be 0 unless optimiser.method is adamw or lion");
    assert!(error(Recipe::named("diet")).starts_with("there is no recipe named `diet`; there are small, strong,"));
    assert_eq!(
        error(Recipe::parse("batch = 8\n[data]\nflipp = 1")),
        "there is no recipe key `data.flipp`; did you mean `data.flip`?"
    );
    assert!(error(Recipe::parse("batch = 8\n\nx = = 1")).starts_with("line 3 is not valid TOML: "));
    assert!(error(Recipe::parse("base = \"diet\"")).contains("no recipe named"));
}
