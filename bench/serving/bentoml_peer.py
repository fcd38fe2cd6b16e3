"""BentoML with adaptive batching: bentoml serve bentoml_peer:Classifier; the environment has the rest, see peers.py."""

import os
from pathlib import Path

import bentoml

from network import network, prepare, top_classes

BATCH, DELAY = int(os.environ["PEER_BATCH"]), float(os.environ["PEER_DELAY_MS"])


@bentoml.service(workers=int(os.environ["PEER_WORKERS"]), traffic={"timeout": 120})
class Classifier:
    def __init__(self):
        self.network = network()

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=DELAY)
    def classify(self, images: list[Path]) -> list[dict]:
        return top_classes(self.network([prepare(image.read_bytes()) for image in images]))
