"""The peers and how they are started."""

import itertools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from checkpoint import VARIANTS
from load import CACHE, CORES, HERE, Server


@dataclass(frozen=True)
class Setting:
    """How a peer runs: processes, threads of each, images in a batch, and milliseconds: in LitServe those that a batch
    waits, in BentoML the latency above which requests are refused."""

    workers: int
    threads: int
    batch: int
    delay_ms: float
    runtime: str = "openvino"

    def __str__(self):
        return f"{self.workers}x{self.threads} threads, batch {self.batch}, {self.delay_ms:g} ms, {self.runtime}"


@dataclass(frozen=True)
class Peer:
    """A server and the form in which it takes an image."""

    name: str
    package: str
    path: str
    form: str | None
    ready: str
    delays: tuple
    command: tuple

    def start(self, variant, folder, setting):
        environment = {
            "PEER_MODEL": str(folder),
            "PEER_ARCHITECTURE": VARIANTS[variant][0],
            "PEER_WORKERS": str(setting.workers),
            "PEER_THREADS": str(setting.threads),
            "PEER_BATCH": str(setting.batch),
            "PEER_DELAY_MS": str(setting.delay_ms),
            "PEER_RUNTIME": setting.runtime,
            "OMP_NUM_THREADS": str(setting.threads),
            "PYTHONPATH": str(HERE),
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_HOME": str(CACHE / "bentoml"),
        }
        return Server(self.name, self.command, self.ready, env=environment)


BIN = Path(sys.executable).parent
PEERS = [
    Peer(
        "LitServe",
        "litserve",
        "/predict",
        "image",
        "/health",
        (2, 20),
        (sys.executable, HERE / "litserve_peer.py", "{port}"),
    ),
    Peer(
        "BentoML",
        "bentoml",
        "/classify",
        "images",
        "/readyz",
        (30_000,),
        (BIN / "bentoml", "serve", "bentoml_peer:Classifier", "--working-dir", HERE, "--host", "127.0.0.1", "--port", "{port}"),
    ),
]


def chosen(names):
    return [peer for peer in PEERS if peer.name in names.split(",")]


def grid(peer):
    """Settings worth trying: one process with all cores, or one process per core."""
    for (workers, threads), batch, delay in itertools.product([(1, CORES), (CORES, 1)], [4, 8, 16], peer.delays):
        yield Setting(workers, threads, batch, delay)
    for workers, threads in [(1, CORES), (CORES, 1)]:
        yield Setting(workers, threads, 8, peer.delays[-1], "torch")


def tuned_file():
    return CACHE / "serving" / "tuned.json"


def one_process(peer):
    return Setting(1, CORES, 8, peer.delays[-1])


def best_setting(peer, variant):
    """The best setting that `bench/serve tune` found, or one that was the best on two cores."""
    if tuned_file().exists():
        found = json.loads(tuned_file().read_text()).get(f"{peer.name} {variant}")
        if found:
            return Setting(**found)
    return Setting(CORES, 1, 8, peer.delays[-1])


def export(variant, folder):
    """The checkpoint in OpenVINO's format, beside it."""
    if (folder / "model.xml").exists():
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    import openvino
    import timm
    import torch
    from safetensors.torch import load_file

    network = timm.create_model(VARIANTS[variant][0], num_classes=1000).eval()
    network.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        model = openvino.convert_model(network, example_input=torch.zeros(1, 3, 224, 224))
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
