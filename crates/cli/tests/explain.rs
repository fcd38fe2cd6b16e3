//! `vit explain`, `vit inspect` and `vit patches`: the files they write, and that browsers show the pages.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{hostile, image, model, vit};
use vit_data::{DecodeOptions, Image, open};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

fn read(path: &Path) -> Image {
    open(path, &DecodeOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// The shape in a .npy file's header, and the number of values after it.
fn npy(path: &Path) -> (String, usize) {
    let bytes = fs::read(path).unwrap();
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    let shape = header.split("'shape': (").nth(1).unwrap().split(')').next().unwrap().to_string();
    (shape, (bytes.len() - 10 - length) / 4)
}

#[test]
fn one_image_becomes_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/folder");
    let dog = example("images/dog.jpg");
    let run = vit(arguments!["explain", "-m", "cifar10", &dog, "--out", &out]).code(0);
    assert!(run.err.contains("dog.png") && run.out.is_empty(), "{}", run.err);
    let (original, both) = (read(&dog), read(&out.join("dog.overlay.png")));
    assert_eq!(both.height(), original.height(), "overlays have the image's own resolution");
    assert!(both.width() > 2 * original.width());
    assert_eq!(both.row(0)[..3], original.row(0)[..3]);
    assert_eq!(npy(&out.join("dog.npy")), ("4, 8, 8,".into(), 4 * 64));
    let about: serde_json::Value = serde_json::from_slice(&fs::read(out.join("dog.json")).unwrap()).unwrap();
    let maps = about["maps"].as_array().unwrap();
    assert_eq!(maps.len(), 4);
    assert_eq!(maps[0]["about"], "attention rollout");
    assert!(maps[1]["probability"].as_f64().unwrap() >= maps[2]["probability"].as_f64().unwrap());
    assert!(read(&out.join("dog.png")).width() > 1000);
}

#[test]
fn the_file_that_is_named_is_the_one_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (upper, lower) = (folder.path().join("one/Dog.JPG"), folder.path().join("two/dog.jpg"));
    for path in [&upper, &lower] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(example("images/dog.jpg"), path).unwrap();
    }
    let out = folder.path().join("out");
    let explain = arguments!["explain", "-m", "cifar10", &upper, "--method", "rollout", "-o", &out];
    let run = vit(explain).code(0);
    assert_eq!(run.err.trim(), out.join("Dog.png").display().to_string());
    assert!(Path::new(run.err.trim()).is_file());
    fs::remove_dir_all(&out).unwrap();
    let format = ["--method", "rollout", "--format", "png"].map(Into::into);
    let both = arguments!["explain", "-m", "cifar10", &upper, &lower, "-o", &out].into_iter().chain(format);
    vit(both).code(0);
    let mut names: Vec<_> =
        fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.iter().filter(|name| name.ends_with(".npy")).collect::<Vec<_>>(), ["Dog.npy", "dog-2.npy"]);
}

#[test]
fn nothing_is_left_of_a_page_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    fs::create_dir(out.join("maps.npy")).unwrap();
    let run = vit(arguments!["explain", "-m", "cifar10", example("images"), "--method", "rollout", "-o", out]).code(1);
    assert!(run.err.contains("maps.npy"), "{}", run.err);
    let left: Vec<_> = fs::read_dir(out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["maps.npy"]);
}

/// A limit on the size of files fails like a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_page_that_the_disk_has_no_room_for_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 20; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vit")]);
    shell.args(["explain", "-m", "cifar10", "--method", "rollout"]).arg(example("images"));
    let ended = shell.arg("-o").arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains(&format!("error: {}: ", folder.path().join("index.html").display())), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn methods_layers_and_heads_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let dog = example("images/dog.jpg");
    let explain = |more: &[&str]| {
        let arguments = arguments!["explain", "-m", "cifar10", &dog, "-o", folder.path()];
        vit(arguments.into_iter().chain(more.iter().map(Into::into)))
    };
    for (more, maps) in [
        (&["--method", "rollout"][..], 1),
        (&["--method", "gradient", "--top", "5"], 5),
        (&["--method", "gradcam", "-k", "1"], 1),
        (&["--method", "attention", "--layer", "2", "--head", "1"], 1),
        (&["--layer", "0"], 1),
    ] {
        explain(more).code(0);
        assert_eq!(npy(&folder.path().join("dog.npy")).1, maps * 64, "{more:?}");
    }
    assert!(explain(&["--layer", "70"]).code(1).err.contains("there is no layer 70; there are 0 (blocks.0.attn)"));
    assert!(explain(&["--head", "4"]).code(1).err.contains("there are 0 to 3"));
    assert!(explain(&["--method", "rollout", "--head", "1"]).code(1).err.contains("--method attention"));
    assert!(explain(&["--method", "magic"]).code(2).err.contains("rollout, gradient, gradcam or attention"));
    assert!(explain(&["--precision", "int8"]).code(1).err.contains("int8"));
}

#[test]
fn models_of_other_kinds_are_explained_too_and_say_what_they_lack() {
    let folder = tempfile::tempdir().unwrap();
    for (name, size) in [("timm_swin", None), ("tv_resnet_basic", Some("48x80")), ("timm_vit", Some("32x48"))] {
        let mut arguments =
            arguments!["explain", "-m", model(name), image("preprocess/rgb.png"), "-o", folder.path()].to_vec();
        arguments.extend(size.into_iter().flat_map(|size| ["--image-size".into(), size.into()]));
        vit(arguments).code(0);
        assert!(folder.path().join("rgb.png").exists());
    }
    let arguments = arguments![
        "explain",
        "-m",
        model("tv_resnet_basic"),
        image("preprocess/rgb.png"),
        "-o",
        folder.path(),
        "--method",
        "rollout"
    ];
    assert!(vit(arguments).code(1).err.contains("use gradcam"));
}

#[test]
fn a_folder_becomes_a_page_and_bad_images_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let run = vit(arguments!["explain", "-m", "cifar10", example("images"), hostile("notes.jpg"), "-o", out]).code(1);
    assert!(run.err.contains("notes.jpg") && run.err.contains("1 of 5 images could not be read"), "{}", run.err);
    let page = fs::read_to_string(out.join("index.html")).unwrap();
    assert_eq!(page.matches("<figure").count(), 4);
    assert!(!page.contains("http:") && !page.contains("https:"));
    assert_eq!(npy(&out.join("maps.npy")), ("4, 4, 8, 8,".into(), 4 * 4 * 64));
    let left: Vec<_> = fs::read_dir(out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");

    let nowhere = out.join("x");
    for bad in [vec![hostile("notes.jpg")], vec![hostile("notes.jpg"); 2]] {
        let nothing =
            vit(arguments!["explain", "-o", &nowhere].into_iter().chain(bad.into_iter().map(Into::into))).code(1);
        assert!(nothing.err.contains("no image could be read"), "{}", nothing.err);
        assert_eq!(fs::read_dir(&nowhere).unwrap().count(), 0, "nothing was written");
    }
}

#[test]
fn chosen_classes_get_maps() {
    let folder = tempfile::tempdir().unwrap();
    let (out, dog) = (folder.path(), example("images/dog.jpg"));
    vit(arguments!["explain", &dog, "-o", out, "--class", "tru", "--class", "Dog", "--class", "3"]).code(0);
    let about: serde_json::Value = serde_json::from_slice(&fs::read(out.join("dog.json")).unwrap()).unwrap();
    let names: Vec<&str> = about["maps"].as_array().unwrap().iter().map(|map| map["about"].as_str().unwrap()).collect();
    assert_eq!(names, ["attention rollout", "truck", "dog", "cat"]);
    vit(arguments!["explain", example("images"), "-o", out, "--class", "cat"]).code(0);
    assert!(fs::read_to_string(out.join("index.html")).unwrap().contains("<option value=\"1\">cat</option>"));

    let wrong = |more: &[&str]| {
        vit(arguments!["explain", &dog, "-o", out].into_iter().chain(more.iter().map(Into::into))).code(1).err
    };
    let error = wrong(&["--class", "automobil3"]);
    assert!(error.contains("no such class") && error.contains("automobile (1)"), "{error}");
    assert!(wrong(&["--class", "d"]).contains("2 classes have such a name: deer (4), dog (5)"));
    assert!(wrong(&["--class", "10"]).contains("there are classes 0 to 9"));
    assert!(wrong(&["--class", "dog", "--method", "rollout"]).contains("--method gradient or --method gradcam"));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    fs::write(&file, "text").unwrap();
    let inside = file.join("x.png");
    let dog = example("images/dog.jpg");
    for arguments in [
        arguments!["explain", &dog, "-o", &file].to_vec(),
        arguments!["inspect", "cifar10", "-o", &file].to_vec(),
        arguments!["patches", &dog, "-o", &inside].to_vec(),
    ] {
        let error = vit(arguments).code(1).err;
        assert!(error.starts_with(&format!("error: the folder {} cannot be created", file.display())), "{error}");
    }
}

#[test]
fn an_inspection_leaves_figures_numbers_and_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    vit(arguments!["inspect", "cifar10", "--data", example("images"), "--out", out]).code(0);
    for name in ["filters", "positions", "attention_distance", "attention_by_layer", "receptive_field"] {
        assert!(read(&out.join(format!("{name}.png"))).width() > 400, "{name}");
        assert!(out.join(format!("{name}.svg")).exists(), "{name}");
    }
    assert_eq!(npy(&out.join("filters.npy")).0, "28, 3, 4, 4,");
    assert_eq!(npy(&out.join("positions.npy")).0, "64, 64,");
    let distances = fs::read_to_string(out.join("attention_distance.csv")).unwrap();
    assert_eq!(distances.lines().count(), 1 + 7 * 4);
    let page = fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("vit_lite") && page.contains("attention_distance.csv"));

    // Models with a class token have a comparison with mean pooling.
    let token = out.join("token");
    vit(arguments!["inspect", model("timm_vit"), "--data", example("images"), "-o", &token]).code(0);
    assert!(read(&token.join("pooling.png")).width() > 400);

    let bare = vit(arguments!["inspect", model("tv_resnet_basic"), "-o", out.join("cnn")]).code(0);
    assert!(bare.err.contains("this model has no attention"), "{}", bare.err);
}

#[test]
fn patches_are_drawn_for_every_kind_of_model() {
    let folder = tempfile::tempdir().unwrap();
    for (name, file) in
        [("timm_vit", "x.png"), ("tv_resnet_basic", "x.svg"), ("timm_swin", "y.svg"), ("lenet5", "y.png")]
    {
        let out = folder.path().join(file);
        vit(arguments!["patches", "-m", model(name), image("preprocess/rgb.png"), "--out", &out]).code(0);
        assert!(fs::metadata(&out).unwrap().len() > 1000, "{name}");
    }
    let two = arguments!["patches", "-m", model("timm_vit"), example("images"), "--out", folder.path().join("z.png")];
    assert!(vit(two).code(1).err.contains("one at a time"));
    let wrong = arguments!["patches", "-m", model("timm_vit"), image("preprocess/rgb.png"), "--out", "z.bmp"];
    assert!(vit(wrong).code(2).err.contains(".png or .svg"));
}

/// A browser, if the machine has one.
fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
    if found.is_none() {
        eprintln!("skipped: there is no chromium, chromium-browser or google-chrome on this machine");
    }
    found
}

/// Opens a page without a network; returns its screenshot, or its DOM after its script has run.
fn headless(browser: &str, page: &Path, dark: bool, action: &str) -> Vec<u8> {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900"]);
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--no-first-run", "--virtual-time-budget=4000"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).arg(action);
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    command.arg(format!("file://{}", page.canonicalize().unwrap().display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn screenshot(browser: &str, page: &Path, dark: bool) -> Image {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shot.png");
    headless(browser, page, dark, &format!("--screenshot={}", file.display()));
    read(&file)
}

fn brightness(image: &Image) -> f64 {
    image.pixels().iter().map(|&c| f64::from(c)).sum::<f64>() / image.pixels().len() as f64
}

#[test]
fn browsers_show_pages_without_a_network_in_light_and_dark() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (maps, inspected) = (folder.path().join("maps"), folder.path().join("inspected"));
    vit(arguments!["explain", "-m", "cifar10", example("images"), "-o", &maps]).code(0);
    vit(arguments!["inspect", "cifar10", "--data", example("images"), "-o", &inspected]).code(0);
    for page in [maps.join("index.html"), inspected.join("index.html")] {
        let [light, dark] = [false, true].map(|dark| screenshot(browser, &page, dark));
        assert_eq!(light.row(850)[..3], [255; 3], "{}", page.display());
        assert_eq!(dark.row(850)[..3], [14, 17, 22], "{}", page.display());
        assert!(brightness(&light) > 170.0 && brightness(&dark) < 90.0, "{}", page.display());
        let colourful = light.pixels().chunks(3).filter(|p| p[0].abs_diff(p[2]) > 60).count();
        assert!(colourful > 2000, "{}: {colourful} pixels of maps", page.display());
    }
    let text = String::from_utf8(headless(browser, &maps.join("index.html"), false, "--dump-dom")).unwrap();
    assert!(text.contains(">4 images</output>"), "the script has run");
}

#[test]
fn a_thousand_images_fit_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    fs::create_dir(&images).unwrap();
    let source = fs::read(example("images/dog.jpg")).unwrap();
    (0..1000).for_each(|i| fs::write(images.join(format!("{i:04}.jpg")), &source).unwrap());
    let out = folder.path().join("maps");
    vit(arguments!["explain", "-m", "cifar10", &images, "-o", &out, "--method", "rollout", "--batch", "64"]).code(0);
    let page = out.join("index.html");
    let bytes = fs::metadata(&page).unwrap().len();
    assert!(bytes < 25_000_000, "{bytes} bytes");
    let Some(browser) = browser() else { return };
    let text = String::from_utf8(headless(browser, &page, false, "--dump-dom")).unwrap();
    assert!(text.contains(">1000 images</output>"));
    let shown = screenshot(browser, &page, false);
    assert!(shown.pixels().chunks(3).filter(|p| p[0].abs_diff(p[2]) > 60).count() > 2000);
}
