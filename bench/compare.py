"""Runs vit and its peers in turns and prints a table; see README.md beside this file."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys

THREADS = int(os.environ.get("BENCH_THREADS", 2))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", 5))
SECONDS = float(os.environ.get("BENCH_SECONDS", 3))
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VIT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "vit")
IMAGE = os.path.join(ROOT, "crates", "data", "tests", "fixtures", "preprocess", "usual.jpg")


class Peer:
    """A worker process that waits for its turn."""

    def __init__(self, name, work, batch):
        self.name, self.taken = name, []
        environment = dict(os.environ, OMP_NUM_THREADS=str(THREADS))
        arguments = [sys.executable, os.path.join(HERE, "worker.py"), name, work, str(batch), str(THREADS)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.error = self._answer()["error"]

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise SystemExit(f"{self.name} stopped; run bench/worker.py by hand to see why")

    def turn(self):
        self.process.stdin.write(f"{SECONDS}\n")
        self.process.stdin.flush()
        self.taken += self._answer()

    def median(self):
        return statistics.median(self.taken)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def vit(*arguments):
    out = subprocess.run([VIT, "bench", *arguments, "--seconds", str(SECONDS), "--json"], check=True, capture_output=True)
    return json.loads(out.stdout)


def rounds(peers, ours):
    """Everyone in turn, round after round."""
    measured = []
    for _ in range(ROUNDS):
        for peer in peers:
            peer.turn()
        measured.append(ours())
    for peer in peers:
        peer.close()
    return measured


def table(title, rows):
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name:24} {value}")
    sys.stdout.flush()


def models(part, peers, works, precision=None):
    for model, batch in works:
        others = [Peer(name, model, batch) for name in peers]
        arguments = ["train" if part == "train" else "infer", "--model", model, "--batch", str(batch), "--threads", str(THREADS)]
        if precision:
            arguments += ["--precision", precision]
        measured = rounds(others, lambda: vit(*arguments))
        ours = statistics.median(m["median_ms"] for m in measured)
        share = statistics.median(m["peak_share"] for m in measured)
        rows = [(p.name, f"{1e3 * p.median():9.1f} ms" + (f"  error {p.error:.2%}" if p.error else "")) for p in others]
        best = min(1e3 * p.median() for p in others)
        extra = f"{share:.1%} of the FMA peak ({measured[0]['device']})"
        rows.append(("vit", f"{ours:9.1f} ms  ahead {best / ours:.2f}x  {extra}"))
        table(f"{part} {model}, batch {batch}, {THREADS} threads", rows)


def data():
    others = [Peer(name, IMAGE, 1) for name in ["Pillow", "torchvision decoder"]]
    measured = rounds(others, lambda: vit("data", IMAGE))
    ours = statistics.median(m["images_per_s"] for m in measured)
    rows = [(p.name, f"{1 / p.median():7.0f} images/s  vit {ours * p.median():.2f}x") for p in others]
    rows.append(("vit", f"{ours:7.0f} images/s"))
    table("data: 500x375 JPEG to 224x224, one core", rows)


def main():
    parts = sys.argv[1:] or ["infer", "int8", "train", "conv", "data"]
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ["torch", "timm", "onnxruntime", "openvino", "pillow", "torchvision"]]
    print(f"{platform.machine()}, {', '.join(versions)}")
    works = [("B/16", 1), ("B/16", 8), ("Ti/16", 1), ("Ti/16", 8)]
    if "infer" in parts:
        models("infer", ["PyTorch eager", "PyTorch compiled", "ONNX Runtime", "OpenVINO"], works)
    if "int8" in parts:
        models("int8", ["ONNX Runtime int8"], works, precision="int8")
    if "train" in parts:
        models("train", ["PyTorch step"], [("Ti/16", 16), ("B/16", 4)])
    if "conv" in parts:
        names = ["resnet50", "efficientnet_b0", "swin_tiny_patch4_window7_224"]
        models("conv", ["PyTorch eager"], [(name, batch) for name in names for batch in (1, 8)])
    if "data" in parts:
        data()


main()
