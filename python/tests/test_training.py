"""Training runs: metrics as they come, stopping, resuming, failing."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import vit

# Epochs that a test never reaches, and that end nevertheless should it fail.
LONG = 600
SMALL = dict(model="lenet5_relu_cifar", batch=4, device="cpu", threads=1)


def test_a_run_from_data_to_model(photos, images, tmp_path):
    settings = {"schedule.rate": 4e-3, "length": "6 steps"}
    run = vit.train(photos, out=tmp_path / "run", settings=settings, **SMALL)
    rows = list(run)
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows) and rows[-1]["step"] == 6
    assert any("train/loss" in row for row in rows) and any("val/top1" in row for row in rows)
    assert run.is_complete and not run.is_running and run.metrics == rows
    assert run.best["metric"] == "val/top1" and run.best["step"] <= 6
    assert run.folder == tmp_path / "run" and "complete after step 6" in repr(run)
    model = run.wait().model(device="cpu")
    assert model.labels == ["animal", "vehicle"] and len(model.classify(images["dog"])) == 2
    with pytest.raises(FileExistsError, match="already holds a run"):
        vit.train(photos, out=tmp_path / "run", **SMALL)
    replaced = vit.train(photos, out=tmp_path / "run", overwrite=True, settings={"length": "1 steps"}, **SMALL)
    assert replaced.wait().metrics[-1]["step"] == 1


def test_a_stopped_run_continues(photos, tmp_path):
    run = vit.train(photos, out=tmp_path / "run", epochs=LONG, seed=3, **SMALL)
    first = next(iter(run))
    assert run.is_running
    run.stop()
    assert not run.is_complete and "stopped" in repr(run)
    before = run.metrics
    assert before[0] == first
    again = run.resume()
    row = next(iter(again))
    assert row["step"] > before[-1]["step"] or row == before[-1]
    again.stop()
    assert again.metrics[: len(before) - 1] == before[: len(before) - 1]
    assert vit.resume(tmp_path / "run").stop() is None


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_stops_and_saves(photos, tmp_path):
    run = vit.train(photos, out=tmp_path / "run", epochs=LONG, **SMALL)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in run:
            pass
    assert not run.is_running and not run.is_complete
    run.resume().stop()


def test_errors_come_before_the_run_or_from_it(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        vit.train(tmp_path / "nowhere", out=tmp_path / "run")
    with pytest.raises(ValueError, match="either model"):
        vit.train(photos, model="Ti/16", finetune="cifar10")
    with pytest.raises(ValueError, match="recipe"):
        vit.train(photos, recipe="none of them")
    with pytest.raises(vit.Error, match="rate"):
        vit.train(photos, settings={"schedule.rat": 1}, out=tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        vit.resume(photos)
    diverging = vit.train(photos, out=tmp_path / "run", settings={"schedule.rate": 1e30, "length": "50 steps"}, **SMALL)
    with pytest.raises(vit.Error, match="not finite"):
        diverging.wait()
    with pytest.raises(vit.Error, match="not finite"):
        list(diverging)
    assert "failed" in repr(diverging)


def test_a_program_waits_for_its_runs(photos, tmp_path):
    code = f"import vit; vit.train({str(photos)!r}, out={str(tmp_path / 'run')!r}, epochs=2, **{SMALL!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "still trains" in ended.stderr
    assert vit.resume(tmp_path / "run").wait().is_complete


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_program_that_ctrl_c_ends_saves_its_runs(photos, tmp_path):
    code = f"""
import time, vit
run = vit.train({str(photos)!r}, out={str(tmp_path / "run")!r}, epochs={LONG}, **{SMALL!r})
next(iter(run))
print("begun", flush=True)
time.sleep(60)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGINT)
    assert "stops and is saved" in program.communicate(timeout=60)[1]
    vit.resume(tmp_path / "run").stop()
