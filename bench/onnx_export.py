"""Exported models in ONNX Runtime and OpenVINO.

Every recorded model is exported. ONNX's own checker infers all shapes, and the outputs for the recorded input, in batches
of 1, 3 and 8, are compared with the recorded ones; `vit export --check` compares them with those of vit, also in f16 and
with bytes as input. With `speed`, a ViT-B/16 is timed in ONNX Runtime against the export of timm's by PyTorch."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
VIT = os.environ["VIT"]
BATCHES = [1, 3, 8]
TOLERANCE = 1e-5
# The recorded array that the output is; the first that there is.
OUTPUTS = {"logits": ["logits"], "embedding": ["image_embeds", "pooled", "features"]}
# Models whose text tower is exported, too.
TEXT_TOWERS = ["hf_clip", "hf_siglip", "open_clip"]


def export(model, file, *options):
    """Runs `vit export`; its JSON, and whether it succeeded."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [VIT, "export", str(model), str(file), "--json", "--overwrite", *options]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not run.stdout:
        raise RuntimeError(run.stderr.strip())
    return json.loads(run.stdout), run.returncode == 0


def onnx_runtime(path, threads=0):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def open_vino(path):
    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: model(x)[0]


def relative(found, expected):
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def recorded(folder):
    """The arrays of a recording that has the input of one batch; none of any other."""
    io = folder / "io.safetensors"
    arrays = load_file(io) if io.exists() else {}
    return arrays if arrays.get("input", np.zeros(0)).ndim == 4 else {}


def compare(folder, scratch):
    """The cells of a model's row, and whether all is well."""
    path, arrays = scratch / "model.onnx", recorded(folder)
    # Some recordings have another image size than the model.
    size = ["--image-size", "x".join(map(str, arrays["input"].shape[2:]))] if arrays else []
    exported, agrees = export(folder, path, "--check", *size)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    runtimes = [onnx_runtime(path), open_vino(path)]
    output = next((name for name in OUTPUTS[exported["output"]] if name in arrays), None)
    cells = []
    for runtime in runtimes:
        worst = None
        if output:
            x, expected = arrays["input"], arrays[output]
            for batch in BATCHES:
                rows = np.arange(batch) % len(x)
                worst = max(worst or 0.0, relative(runtime(x[rows]), expected[rows]))
        cells.append(worst)
    fine = agrees and all(cell is None or cell <= TOLERANCE for cell in cells)

    def against_vit(check):
        found = [line.get("relative_difference", float("inf")) for line in check["check"]]
        return max(found)

    ours = against_vit(exported)
    fine &= ours <= TOLERANCE
    others = []
    for options in [("--preprocess",), ("--precision", "f16")]:
        check, agrees = export(folder, path, "--check", *options)
        others.append(against_vit(check))
        fine &= agrees
        onnx.checker.check_model(onnx.load(path), full_check=True)
    if folder.name in TEXT_TOWERS:
        check, agrees = export(folder, path, "--check", "--text")
        onnx.checker.check_model(onnx.load(path), full_check=True)
        ours = max(ours, against_vit(check))
        fine &= agrees and ours <= TOLERANCE
    return [exported["nodes"], *cells, ours, *others], fine


def models(folders):
    cases = []
    for folder in folders:
        weights = ("model.safetensors", "model.npz", "open_clip_model.safetensors")
        cases += [f for f in sorted(folder.iterdir()) if any((f / name).exists() for name in weights)]
    return {case.name: case for case in cases}


def check(only):
    folders = [HERE.parent / "crates/vit/tests/fixtures", HERE.parent / "crates/models/builtin"]
    heading = ["model", "nodes", "ORT", "OpenVINO", "vit", "bytes", "f16", ""]
    print(f"relative differences; ONNX Runtime {onnxruntime.__version__}, OpenVINO {openvino.__version__.split('-')[0]}, "
          f"onnx {onnx.__version__}")
    print("ORT, OpenVINO: from recorded outputs, batches 1, 3 and 8; vit, bytes, f16: either runtime from vit")
    row = "{:24} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}  {}"
    print(row.format(*heading))
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in models(folders).items():
            if only and only not in name:
                continue
            try:
                (nodes, *cells), fine = compare(folder, Path(scratch))
                cells = ["-" if cell is None else f"{cell:.1e}" for cell in cells]
                print(row.format(name, nodes, *cells, "ok" if fine else "too large"), flush=True)
            except Exception as error:
                fine = False
                print(f"{name:24} {' '.join(str(error).split())[:300]}", flush=True)
            if not fine:
                failed.append(name)
    print("all agree" if not failed else f"failed: {', '.join(failed)}")
    return not failed


def speed(rounds, seconds, threads):
    """ViT-B/16 as exported by PyTorch from timm, and by vit from the same weights, in turns."""
    import timm
    import torch
    from safetensors.torch import save_file

    name = "vit_base_patch16_224"
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    with tempfile.TemporaryDirectory() as scratch:
        folder, theirs, ours = Path(scratch) / name, Path(scratch) / "torch.onnx", Path(scratch) / "vit.onnx"
        folder.mkdir()
        save_file(model.state_dict(), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"architecture": name, "num_classes": 1000}))
        export(folder, ours)
        example = torch.randn(2, 3, 224, 224)
        torch.onnx.export(model, (example,), str(theirs), input_names=["x"], output_names=["y"], dynamo=False,
                          opset_version=17, dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
        files = {"torch": theirs, "vit": ours}
        sessions = {kind: onnx_runtime(path, threads) for kind, path in files.items()}
        print(f"{name} in ONNX Runtime {onnxruntime.__version__}, {threads} threads; torch {torch.__version__}")
        fine = True
        for batch in [1, 8]:
            x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=np.float32)
            difference = relative(sessions["vit"](x), sessions["torch"](x))
            medians = {kind: [] for kind in sessions}
            for _ in range(rounds):
                for kind, session in sessions.items():
                    session(x)
                    times, end = [], time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        start = time.perf_counter()
                        session(x)
                        times.append(time.perf_counter() - start)
                    medians[kind].append(statistics.median(times))
            median = {kind: statistics.median(of) for kind, of in medians.items()}
            ratios = [a / b for a, b in zip(medians["torch"], medians["vit"])]
            print(f"batch {batch}: torch {1e3 * median['torch']:.1f} ms, vit {1e3 * median['vit']:.1f} ms, "
                  f"ahead {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
                  f"relative difference {difference:.1e}")
            fine &= statistics.median(ratios) >= 1.0
        return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["check", "speed"], default="check")
    parser.add_argument("--only", help="models with this in their name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.part == "speed":
        fine = speed(arguments.rounds, arguments.seconds, arguments.threads)
    else:
        fine = check(arguments.only)
    sys.exit(0 if fine else 1)


main()
