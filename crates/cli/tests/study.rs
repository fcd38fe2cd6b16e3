//! A study: interrupted, continued, extended; its tables and its plot.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::{command, images, vit};

const MODELS: &str = "lenet5_relu_cifar,vit_pico_patch8_32,deit_pico_distilled_patch8_32";

/// The rows of a study's `results.csv` by the names of their columns.
fn csv(out: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(out.join("results.csv")).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_string).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect()
}

/// Images in three splits, of which each class is a colour.
fn split_images(data: &Path) {
    for (split, each) in [("train", 24), ("test", 8)] {
        images(&data.join(split), &[("a", 30), ("b", 220)], each);
    }
}

/// Writes a study's file, without the indentation of its text.
fn write_study(folder: &Path, data: &Path, text: &str) -> PathBuf {
    let path = folder.join("tiny.toml");
    let text: Vec<&str> = text.lines().map(str::trim_start).collect();
    std::fs::write(&path, format!("data = {:?}\n{}", data.display().to_string(), text.join("\n"))).unwrap();
    path
}

/// A study of tiny runs.
fn study(data: &Path, out: &Path, models: &str, more: &[&str]) -> Vec<OsString> {
    let mut arguments = arguments!["study", "--data", data, "--out", out, "--models", models].to_vec();
    for argument in ["--fractions", "1,0.5", "--device", "cpu", "--set", "batch=6", "--set", "length=20 steps"] {
        arguments.push(argument.into());
    }
    arguments.extend(more.iter().map(Into::into));
    arguments
}

#[test]
fn a_study_is_carried_out_once_and_can_grow() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    images(&data, &[("a", 30), ("b", 220)], 20);
    let first = vit(study(&data, &out, MODELS, &[])).code(0);
    // Two shares of three models: the smaller share first, the teacher before its student.
    let order: Vec<&str> = first.err.lines().filter(|line| line.contains("/6  ") && line.contains(" images")).collect();
    assert_eq!(order.len(), 6, "{}", first.err);
    assert!(order[0].starts_with("1/6  lenet5_relu_cifar-0.5: 18 images"), "{order:?}");
    assert!(order[2].contains("deit_pico_distilled_patch8_32-0.5") && order[2].contains("following lenet5_relu_cifar"));
    let table: Vec<&str> = first.out.lines().collect();
    assert!(
        table[0].starts_with("model") && table[0].contains("50% (18)") && table[0].contains("100% (36)"),
        "{table:?}"
    );
    assert_eq!(table.len(), 4);
    let rows = csv(&out);
    assert_eq!(rows.len(), 6);
    for row in rows {
        // The same budget for all: 20 steps of 6 images.
        assert_eq!((row["steps"].as_str(), row["seen"].as_str()), ("20", "120"), "{row:?}");
        let score: f64 = row["score"].parse().unwrap();
        assert!((0.0..=1.0).contains(&score) && row["test_images"] == "4", "{row:?}");
        assert_eq!(row["teacher"], if row["model"].starts_with("deit") { "lenet5_relu_cifar" } else { "" });
        assert!(row["flops"].parse::<f64>().unwrap() > 1e6);
    }
    assert!(std::fs::read_to_string(out.join("results.md")).unwrap().contains("held out of training"));
    assert!(std::fs::read_to_string(out.join("results.md")).unwrap().contains("| lenet5_relu_cifar | 0.08 M |"));
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("<td>lenet5_relu_cifar</td>") && !page.contains("src="), "{page}");
    assert!(std::fs::read_to_string(out.join("results.svg")).unwrap().contains("vit_pico_patch8_32"));
    assert!(out.join("results.png").is_file());
    // A distilled run follows the teacher of its share.
    let config = std::fs::read_to_string(out.join("runs/deit_pico_distilled_patch8_32-0.5/config.toml")).unwrap();
    assert!(config.contains("runs/lenet5_relu_cifar-0.5"), "{config}");

    // Finished runs are kept, and only the new model is trained.
    let again = vit(study(&data, &out, MODELS, &[])).code(0);
    assert_eq!(again.err.matches("done before").count(), 6, "{}", again.err);
    assert_eq!(again.out, first.out);
    let more = vit(study(&data, &out, &format!("{MODELS},P/16@32"), &[])).code(0);
    assert_eq!(more.err.matches("done before").count(), 6, "{}", more.err);
    assert_eq!(more.out.lines().count(), 5);

    // Runs with other settings are refused.
    let other = vit(study(&data, &out, MODELS, &["--set", "schedule.rate=5e-4"])).code(1);
    assert!(
        other.err.contains("`rate = 0.001`, now `rate = 0.0005`") && other.err.contains("another folder"),
        "{}",
        other.err
    );
}

#[test]
fn a_study_killed_at_any_moment_ends_with_the_same_table() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 12);
    let whole = vit(study(&data, &folder.path().join("whole"), MODELS, &[])).code(0);
    let scores = |out: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split_whitespace().take(5).map(str::to_string).collect();
        out.lines().map(cells).collect()
    };
    let out = folder.path().join("killed");
    let (mut kills, mut moment) = (0, 5u64);
    loop {
        let mut child = command()
            .args(study(&data, &out, MODELS, &["--save-every", "0"]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The moment of the kill does not matter.
        moment = (moment * 29 + 17) % 211;
        std::thread::sleep(std::time::Duration::from_millis(30 + moment));
        if kills < 12 && child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        } else {
            assert!(child.wait().unwrap().success());
            break;
        }
    }
    let killed = vit(study(&data, &out, MODELS, &[])).code(0);
    assert_eq!(scores(&killed.out), scores(&whole.out), "after {kills} kills");
    let last = "runs/deit_pico_distilled_patch8_32-1/checkpoints/last/model.safetensors";
    let weights = |study: &str| std::fs::read(folder.path().join(study).join(last)).unwrap();
    assert!(weights("whole") == weights("killed"), "the weights differ after {kills} kills");
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    images(&data, &[("a", 30), ("b", 220)], 12);
    let wrong = |models: &str, more: &[&str]| vit(study(&data, &out, models, more)).code(1).err;
    assert!(wrong("resnet18_cifr", &[]).contains("no model named `resnet18_cifr`"));
    assert!(wrong("P/8@32,vit_pico_patch8_32", &[]).contains("vit_pico_patch8_32 is in the study twice"));
    assert!(wrong(MODELS, &["--set", "length=3 epochs"]).contains("same number of steps"));
    assert!(wrong(MODELS, &["--set", "P/9@36:batch=1"]).contains("P/9@36"));
    assert!(wrong(MODELS, &["--set", "seed=7"]).contains("`seeds`, a list"));
    assert!(wrong(MODELS, &["--set", "lenet5_relu_cifar:sed=1"]).contains("did you mean `seed`?"));
    assert!(wrong(MODELS, &["--teacher", "resnet18_cifar"]).contains("one of the study's models"));
    assert!(wrong("P/8@32,deit_pico_distilled_patch8_32", &[]).contains("no convolutional model"));
    assert!(!out.join("runs/lenet5_relu_cifar-0.5").exists(), "nothing began");

    let wrong = |text: &str| {
        let file = write_study(folder.path(), &data, &format!("models = [\"P/8@32\"]\n{text}"));
        vit(arguments!["study", file, "--out", &out, "--device", "cpu"]).code(1).err
    };
    assert!(wrong("[axes]\n\"optimiser.metod\" = [\"sgd\"]").contains("did you mean `optimiser.method`?"));
    assert!(wrong("[axes]\n\"options.dept\" = [1]").contains("`dept`"));
    assert!(wrong("x = \"position\"").contains("`position` is nothing that the study varies"));
    assert!(wrong("images = [100000]").contains("there are 22 training images"));
    assert!(wrong("[sweep]\n\"schedule.rate\" = [1e-3]").contains("a sweep chooses by validation images"));
    assert!(wrong("finetune = false").contains("[pretrain]"));
    assert!(wrong("seds = [1]").contains("unknown field `seds`"));
    assert!(vit(["study", "position", "--data", "x"]).code(1).err.contains("positions"));
}

#[test]
fn a_grid_from_a_file_has_every_combination_and_means_over_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    split_images(&data);
    let text = "models = [\"vit_pico_patch8_32\", \"lenet5_relu_cifar\"]
        seeds = [0, 1]
        x = \"optimiser\"
        [set]
        length = \"6 steps\"
        batch = 8
        [axes]
        optimiser = [{ label = \"SGD\", \"optimiser.method\" = \"sgd\" }, { label = \"AdamW\" }]
        [probe]
        shots = [2]
        draws = 2";
    let file = write_study(folder.path(), &data, text);
    let arguments = || arguments!["study", &file, "--out", &out, "--device", "cpu"].to_vec();
    let planned = vit([arguments(), vec!["--dry-run".into()]].concat()).code(0);
    assert!(planned.out.contains("8 runs, 0 finished; 384 images seen"), "{}", planned.out);
    assert!(planned.err.contains("memory: up to"), "{}", planned.err);
    assert!(!out.exists(), "a dry run writes nothing");

    let run = vit(arguments()).code(0);
    let table: Vec<&str> = run.out.lines().collect();
    assert!(table[0].contains("SGD") && table[0].contains("AdamW"), "{table:?}");
    assert!(table.len() == 3 && table[1].matches('±').count() == 2, "{table:?}");
    let rows = csv(&out);
    assert_eq!(rows.len(), 8);
    for row in &rows {
        // 24 of each class, of which a tenth is held out; the test split is measured.
        assert_eq!((row["images"].as_str(), row["test_images"].as_str()), ("44", "16"), "{row:?}");
        assert!((0.0..=1.0).contains(&row["few_shot_2"].parse::<f64>().unwrap()), "{row:?}");
        assert!(row["validation"].parse::<f64>().is_ok() && row["diverged"] == "false" && row["chosen"] == "true");
    }
    assert_eq!(rows.iter().filter(|row| row["optimiser"] == "SGD" && row["seed"] == "1").count(), 2);
    assert!(out.join("runs/vit_pico_patch8_32-1-optimiser=SGD-seed1/result.json").is_file());
    assert!(out.join("few-shot-2.png").is_file() && out.join("study.toml").is_file());
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("\nlength = &quot;6 steps&quot;\n"), "{page}");
    assert!(page.contains("Mean ± standard deviation of 2 seeds") && page.contains("2-shot"), "{page}");
    assert!(page.contains("4 validation images are held out of training"), "{page}");

    // It grows by another seed; the others are kept.
    let more = vit([arguments(), vec!["--seeds".into(), "0,1,2".into()]].concat()).code(0);
    assert_eq!((more.err.matches("done before").count(), csv(&out).len()), (8, 12), "{}", more.err);
    // Two processes find it finished; and they carry out one together.
    let other = folder.path().join("other");
    let shared = vit(arguments!["study", &file, "--out", &other, "--device", "cpu", "--jobs", "2"]).code(0);
    let scores = |out: &Path| csv(out).into_iter().map(|row| (row["run"].clone(), row["score"].clone()));
    let alone: BTreeMap<String, String> = scores(&out).collect();
    assert!(scores(&other).count() == 8 && scores(&other).all(|(run, score)| alone[&run] == score), "{}", shared.err);
}

#[test]
fn swept_settings_are_chosen_by_validation() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    split_images(&data);
    let text = "models = [\"vit_pico_patch8_32\"]
        recipe = \"small\"
        x = \"model\"
        set = { length = \"20 steps\", batch = 8 }
        [[model]]
        name = \"vit_pico_patch8_32\"
        label = \"shallow\"
        set = { \"options.depth\" = 2 }
        [sweep]
        \"schedule.rate\" = [1e-9, 2e-3, 1e30]";
    let file = write_study(folder.path(), &data, text);
    vit(arguments!["study", file, "--out", &out, "--device", "cpu"]).code(0);
    let rows = csv(&out);
    assert_eq!((rows.len(), rows.iter().filter(|row| row["chosen"] == "true").count()), (6, 2), "{rows:?}");
    for model in ["vit_pico_patch8_32", "shallow"] {
        let own: Vec<_> = rows.iter().filter(|row| row["model"] == model).collect();
        // A rate at which the loss is not finite is a result, and never the best.
        assert!(own.iter().any(|row| row["diverged"] == "true" && row["chosen"] == "false" && row["score"].is_empty()));
        let best = own.iter().filter_map(|row| row["validation"].parse::<f64>().ok()).fold(0.0, f64::max);
        let chosen = own.iter().find(|row| row["chosen"] == "true").unwrap();
        assert_eq!(chosen["validation"].parse::<f64>().unwrap(), best);
    }
    let parameters = |model: &str| rows.iter().find(|row| row["model"] == model).unwrap()["parameters"].clone();
    assert_ne!(parameters("shallow"), parameters("vit_pico_patch8_32"));
}

#[test]
fn pre_trained_models_are_shared_fine_tuned_and_probed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    split_images(&data);
    let text = "models = [\"vit_pico_patch8_32\"]
        recipe = \"finetune\"
        set = { length = \"4 steps\", batch = 8 }
        [axes]
        position = [{ label = \"none\", \"options.pos_embed\" = \"none\" }, { label = \"2-D\", \"options.positions\" = \"learned_2d\" }]
        \"schedule.rate\" = [1e-3, 1e-4]
        [pretrain]
        data = \"contours:4x12\"
        images = [16, 48]
        recipe = \"small\"
        set = { length = \"5 steps\", batch = 8, \"model.start\" = \"random\" }
        [probe]
        shots = [1]";
    let file = write_study(folder.path(), &data, text);
    let run = vit(arguments!["study", file, "--out", &out, "--device", "cpu"]).code(0);
    // Two position embeddings on two amounts of data are pre-trained, and each is fine-tuned with two rates.
    let pretrained = std::fs::read_dir(out.join("runs")).unwrap();
    let names: Vec<String> = pretrained.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("pretrain-")).count(), 4, "{names:?}");
    let rows = csv(&out);
    assert_eq!(rows.len(), 8, "{}", run.err);
    for row in &rows {
        assert_eq!((row["pretrain_seen"].as_str(), row["seen"].as_str()), ("40", "32"));
        assert!(["16", "48"].contains(&row["pretrain_images"].as_str()), "{row:?}");
        assert!(row["few_shot_1"].parse::<f64>().is_ok() && row["score"].parse::<f64>().is_ok());
    }
    let md = std::fs::read_to_string(out.join("results.md")).unwrap();
    assert!(md.contains("features of the pre-trained model"), "{md}");

    // Without fine-tuning, the probe is the result.
    let text = "models = [\"vit_pico_patch8_32\"]
        finetune = false
        pretrain = { data = \"contours:4x12\", recipe = \"small\", set = { length = \"5 steps\", batch = 8 }, axes = { \"schedule.rate\" = [1e-3, 1e-4] } }
        probe = { shots = [1] }";
    let (file, out) = (write_study(folder.path(), &data, text), folder.path().join("probed"));
    vit(arguments!["study", file, "--out", &out, "--device", "cpu"]).code(0);
    let rows = csv(&out);
    assert_eq!(rows.iter().map(|row| row["pretrain.schedule.rate"].as_str()).collect::<Vec<_>>(), ["0.001", "1e-4"]);
    assert!(rows.iter().all(|row| row["few_shot_1"].parse::<f64>().is_ok() && row["score"].is_empty()));
}

#[test]
fn named_studies_are_listed_printed_and_planned() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    split_images(&data);
    let list = vit(["study", "--list"]).code(0).out;
    for name in
        ["data-size", "compute", "positions", "pooling", "depth-width", "optimiser", "resolution", "augmentation"]
    {
        assert!(list.contains(name), "{list}");
        let printed = vit(["study", name, "--print"]).code(0).out;
        assert!(printed.contains(&format!("name = \"{name}\"")) && printed.starts_with('#'), "{printed}");
    }
    let planned = vit(arguments!["study", "positions", "--data", &data, "--dry-run", "--device", "cpu"]).code(0).out;
    assert!(
        planned.contains("vit_pico_patch4_32-1-position=relative-seed2") && planned.contains("12 runs"),
        "{planned}"
    );
}

#[test]
fn a_suite_has_the_mean_of_every_group_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, each) in [("leaves", 24), ("birds", 30), ("cells", 26)] {
        for (split, each) in [("train", each), ("test", 8)] {
            images(&at(name).join(split), &[("a", 30), ("b", 220)], each);
        }
    }
    let run = at("run");
    let first = ["--model", "P/8@32", "--device", "cpu", "--set", "length=4 steps", "--batch", "8", "--out"];
    vit(arguments!["train", "--data", at("leaves")]
        .into_iter()
        .chain(first.map(OsString::from))
        .chain([run.clone().into()]))
    .code(0);
    let suite = |protocol: &str| {
        let path = at(&format!("{protocol}.toml"));
        let data = |name: &str| format!("{:?}", at(name).display().to_string());
        let text = format!(
            "protocol = \"{protocol}\"\nexamples = 20\nseeds = [0, 1]\n[set]\nlength = \"3 steps\"\nbatch = 4\n[[group]]\nname = \
             \"natural\"\ndata = [{}, {}]\n[[group]]\nname = \"specialised\"\ndata = [{}]\n",
            data("leaves"),
            data("birds"),
            data("cells")
        );
        std::fs::write(&path, text).unwrap();
        let out = at(&format!("{protocol}-out"));
        let more = ["--device", "cpu"].map(OsString::from);
        (
            out.clone(),
            arguments!["eval", &run, "--suite", path, "--out", out].into_iter().chain(more).collect::<Vec<_>>(),
        )
    };
    for protocol in ["finetune", "probe"] {
        let (out, arguments) = suite(protocol);
        let measured = vit(&arguments).code(0);
        let table: Vec<&str> = measured.out.lines().collect();
        assert_eq!(table.len(), 7, "{table:?}");
        assert!(table[1].starts_with("natural") && table[1].contains("leaves") && table[1].contains('±'), "{table:?}");
        assert!(table[3].contains("mean") && table[6].starts_with("all"), "{table:?}");
        let csv = std::fs::read_to_string(out.join("suite.csv")).unwrap();
        // Twenty training images of each, sixteen for the test, two seeds.
        assert_eq!(csv.lines().filter(|line| line.contains(",20,16,")).count(), 6, "{csv}");
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(out.join("suite.json")).unwrap()).unwrap();
        let scores = |data: usize| json["datasets"][data]["scores"].as_object().unwrap();
        let mean = |data: usize| scores(data).values().map(|score| score.as_f64().unwrap()).sum::<f64>() / 2.0;
        let all = (mean(0) + mean(1) + mean(2)) / 3.0;
        assert!((json["accuracy"]["mean"].as_f64().unwrap() - all).abs() < 1e-9, "{json}");
        // Nothing is measured twice.
        let again = vit(&arguments).code(0);
        assert_eq!(again.out, measured.out);
        assert!(!again.err.contains("computing") && !again.err.contains("images\n"), "{}", again.err);
    }
    let (_, mut arguments) = suite("probe");
    arguments.extend(["--data".into(), at("leaves").into()]);
    vit(arguments).code(2);
}
