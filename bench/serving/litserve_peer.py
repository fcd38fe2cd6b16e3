"""LitServe with batching: python litserve_peer.py PORT; the environment has the rest, see peers.py."""

import os
import sys

import litserve as ls
from fastapi import Request

from network import network, prepare, top_classes


class Classifier(ls.LitAPI):
    def setup(self, device):
        self.network = network()

    def decode_request(self, request: Request):
        return prepare(request["image"].file.read())

    def batch(self, images):
        return images

    def predict(self, images):
        single = not isinstance(images, list)
        answers = top_classes(self.network([images] if single else images))
        return answers[0] if single else answers

    def unbatch(self, answers):
        return answers

    def encode_response(self, answer):
        return answer


if __name__ == "__main__":
    batch, delay = int(os.environ["PEER_BATCH"]), float(os.environ["PEER_DELAY_MS"]) / 1e3
    api = Classifier(max_batch_size=batch, batch_timeout=delay)
    workers = int(os.environ["PEER_WORKERS"])
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=workers, timeout=120, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False, log_level="warning")
