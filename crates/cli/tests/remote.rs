//! Datasets, models and runs in a bucket of a server on this machine, whose faults change only the time.

#[allow(dead_code, reason = "each test uses a part of the server")]
#[path = "../../storage/tests/support/s3_server.rs"]
mod s3_server;
mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use s3_server::S3Server;
use support::{Run, command, finished, images, vit};

const SMALL: [&str; 14] = [
    "--model",
    "P/4@12",
    "--batch",
    "6",
    "--set",
    "length=30 steps",
    "--set",
    "data.mixup=0.8",
    "--set",
    "evaluate_every=15 steps",
    "--save-every",
    "0",
    "--cache",
    "0",
];

fn train(data: &str, out: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["train", "--data", data, "--out", out].map(Into::into).into();
    arguments.extend(SMALL.map(Into::into));
    arguments
}

fn client(server: &S3Server) -> Command {
    let mut command = command();
    command.envs(server.environment()).stdin(Stdio::null());
    command
}

#[track_caller]
fn run<A: AsRef<std::ffi::OsStr>>(server: &S3Server, arguments: impl IntoIterator<Item = A>) -> Run {
    finished(client(server).args(arguments).output().unwrap())
}

/// A file of the last checkpoint of a run in the bucket.
fn of_last(server: &S3Server, run: &str, name: &str) -> Vec<u8> {
    let index: serde_json::Value =
        serde_json::from_slice(&server.get(&format!("{run}/snapshot.json")).unwrap()).unwrap();
    let object = index["files"][format!("checkpoints/last/{name}")]["object"].as_str().unwrap();
    server.get(&format!("{run}/{object}")).unwrap()
}

/// Weights and optimiser's state of the last checkpoint.
fn state(server: &S3Server, run: &str) -> [Vec<u8>; 2] {
    ["model.safetensors", "optimiser.safetensors"].map(|name| of_last(server, run, name))
}

fn local_state(run: &Path) -> [Vec<u8>; 2] {
    ["model.safetensors", "optimiser.safetensors"]
        .map(|name| std::fs::read(run.join("checkpoints/last").join(name)).unwrap())
}

#[test]
fn a_run_in_a_bucket_has_the_bits_of_a_local_one_whatever_the_server_does() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 12);
    let local = folder.path().join("local");
    vit(train(data.to_str().unwrap(), local.to_str().unwrap())).code(0);
    let expected = local_state(&local);

    let server = S3Server::start(&["bucket"]);
    server.put_folder("bucket/data", &data);
    server.faults().fail_every.store(10, Ordering::Relaxed);
    server.faults().cut_every.store(10, Ordering::Relaxed);
    run(&server, train("s3://bucket/data", "s3://bucket/runs/whole")).code(0);
    assert!(state(&server, "bucket/runs/whole") == expected);
    let again = run(&server, train("s3://bucket/data", "s3://bucket/runs/whole")).code(1);
    assert!(again.err.contains("--overwrite"), "{}", again.err);

    // Kills at any moment, also in the middle of an upload.
    let mut kills = 0;
    let mut arguments = train("s3://bucket/data", "s3://bucket/runs/killed");
    loop {
        let mut child = client(&server).args(&arguments).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300 + 170 * kills));
        if kills < 5 && child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        } else {
            let status = child.wait().unwrap();
            assert!(status.success() || kills < 5, "{status}");
            break;
        }
        let begun = server
            .get("bucket/runs/killed/snapshot.json")
            .is_some_and(|index| String::from_utf8(index).unwrap().contains("checkpoints/last/"));
        if begun {
            arguments = ["resume", "s3://bucket/runs/killed"].map(Into::into).into();
        } else {
            arguments = train("s3://bucket/data", "s3://bucket/runs/killed");
            arguments.push("--overwrite".into());
        }
    }
    assert!(kills > 0);
    assert!(state(&server, "bucket/runs/killed") == expected);

    // Its model, on images in the bucket, says the same as the local model on local images.
    let answers = |run: Run| -> BTreeMap<String, serde_json::Value> {
        let lines = run.code(0).json_lines().into_iter();
        lines.map(|mut line| (name(&line), line["predictions"].take())).collect()
    };
    let here = vit(arguments!["classify", "--model", &local, data.join("b"), "--json"]);
    let there = run(&server, ["classify", "--model", "s3://bucket/runs/whole", "s3://bucket/data/b", "--json"]);
    assert_eq!(answers(here), answers(there));
    let [here, there] = ["here.npy", "there.npy"].map(|name| folder.path().join(name));
    vit(arguments!["embed", "--model", &local, data.join("a"), "--out", &here]).code(0);
    let best = "s3://bucket/runs/whole/checkpoints/best";
    run(&server, arguments!["embed", "--model", best, "s3://bucket/data/a", "--out", &there]).code(0);
    assert_eq!(std::fs::read(here).unwrap(), std::fs::read(there).unwrap());
}

fn name(line: &serde_json::Value) -> String {
    let text = line.to_string();
    let start = text.find("/b/").map_or(0, |at| at + 3);
    text[start..].split('"').next().unwrap().to_owned()
}

#[test]
fn shards_are_read_by_ranges_and_kept_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 12);
    let shards = folder.path().join("shards");
    std::fs::create_dir(&shards).unwrap();
    for class in ["a", "b"] {
        let tar = shards.join(format!("train-{class}.tar"));
        let made = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&data).arg(class).status().unwrap();
        assert!(made.success());
    }
    let local = folder.path().join("local");
    vit(train(shards.to_str().unwrap(), local.to_str().unwrap())).code(0);

    let server = S3Server::start(&["bucket"]);
    server.put_folder("bucket/shards", &shards);
    let cache = folder.path().join("cache");
    let mut requests = Vec::new();
    for out in ["first", "second"] {
        let before = server.requests();
        let out = folder.path().join(out);
        let mut arguments = train("s3://bucket/shards/*.tar", out.to_str().unwrap());
        arguments.extend(["--cache-dir".into(), cache.clone().into()]);
        run(&server, arguments).code(0);
        requests.push(server.requests() - before);
        assert!(local_state(&out) == local_state(&local));
    }
    assert!(requests[1] < requests[0], "{requests:?}");
}

#[test]
fn errors_name_the_way_out() {
    let server = S3Server::start(&["bucket"]);
    server.put("bucket/data/a/1.bmp", "x");
    let refused = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = client(&server);
        command.args(arguments);
        for (name, value) in variables {
            match value.is_empty() {
                true => command.env_remove(name),
                false => command.env(name, value),
            };
        }
        finished(command.output().unwrap()).code(1).err
    };
    let data = |path| ["train", "--data", path, "--out", "never"];
    let missing = refused(&data("s3://nowhere/data"), &[]);
    assert!(missing.contains("the bucket `nowhere` does not exist"), "{missing}");
    let none = refused(&data("s3://bucket/none"), &[]);
    assert!(none.contains("s3://bucket/none: there is no object of this name"), "{none}");
    let wrong = refused(&data("s3://bucket/data"), &[("AWS_ACCESS_KEY_ID", "wrong")]);
    assert!(wrong.contains("the credentials are refused (InvalidAccessKeyId)"), "{wrong}");
    let plain = refused(&data("s3://bucket/data"), &[("AWS_ALLOW_HTTP", "")]);
    assert!(plain.contains("AWS_ALLOW_HTTP=true"), "{plain}");
    // A server that is no proxy.
    let endpoint = server.endpoint();
    let proxy = refused(&data("https://example.com/a.tar"), &[("HTTPS_PROXY", &endpoint), ("https_proxy", "")]);
    let sentence = format!("the proxy {} does not connect to example.com (404 X)", &endpoint["http://".len()..]);
    assert!(proxy.contains(&sentence), "{proxy}");
    let azure = refused(&data("az://container/data"), &[("AZURE_STORAGE_ACCOUNT_NAME", "")]);
    assert!(azure.contains("no credentials for Azure Blob Storage; set AZURE_STORAGE_ACCOUNT_NAME"), "{azure}");
    let model = refused(&["classify", "--model", "s3://bucket/model", "s3://bucket/data/a/1.bmp"], &[]);
    assert!(model.contains("s3://bucket/model: there is no object of this name"), "{model}");
    assert_eq!(model.lines().count(), 1, "{model}");
}
