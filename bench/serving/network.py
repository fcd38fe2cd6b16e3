"""What stands behind the peers: Pillow with timm's preprocessing, and the network compiled by OpenVINO or PyTorch."""

import io
import os

import numpy as np
from PIL import Image

SIDE, RESIZED, TOP = 224, 248, 5


def prepare(encoded):
    """An encoded image as `[224, 224, 3]` bytes: the shorter side to 248 pixels, bicubic, then the centre."""
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    width, height = image.size
    scale = RESIZED / min(width, height)
    width, height = int(width * scale), int(height * scale)
    image = image.resize((width, height), Image.BICUBIC)
    left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def top_classes(logits):
    """The likeliest classes of each row, as JSON values."""
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    values /= values.sum(axis=1, keepdims=True)
    best = np.argpartition(-values, TOP, axis=1)[:, :TOP]
    answers = []
    for row, classes in zip(values, best):
        classes = classes[np.argsort(-row[classes])]
        answers.append({"predictions": [{"class": int(c), "probability": float(row[c])} for c in classes]})
    return answers


class OpenVino:
    """Takes `[n, 224, 224, 3]` bytes; normalisation is part of the compiled network. One network for every power of two
    up to the largest batch: static shapes are faster than a dynamic batch."""

    def __init__(self, folder, threads, batch, pinned):
        import openvino as ov
        from openvino.preprocess import PrePostProcessor

        core = ov.Core()
        model = core.read_model(os.path.join(folder, "model.xml"))
        steps = PrePostProcessor(model)
        steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
        steps.input().model().set_layout(ov.Layout("NCHW"))
        steps.input().preprocess().convert_element_type(ov.Type.f32).mean(127.5).scale(127.5)
        model = steps.build()
        config = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            # Two processes that pin their threads would pin them to the same core.
            "ENABLE_CPU_PINNING": pinned,
        }
        self.networks = {}
        size = 1
        while True:
            model.reshape([size, SIDE, SIDE, 3])
            self.networks[size] = core.compile_model(model, "CPU", config)
            if size >= batch:
                break
            size *= 2
        for network in self.networks.values():
            network(np.zeros(network.input(0).shape, np.uint8))

    def __call__(self, images):
        size = next(size for size in self.networks if size >= len(images))
        batch = np.zeros((size, SIDE, SIDE, 3), np.uint8)
        for row, image in zip(batch, images):
            row[:] = image
        return self.networks[size](batch)[0][: len(images)].copy()


class Compiled:
    """The same by `torch.compile` with frozen weights."""

    def __init__(self, folder, threads, batch, pinned):
        import timm
        import torch
        import torch._inductor.config as config
        from safetensors.torch import load_file

        config.freezing = True
        torch.set_num_threads(threads)
        self.torch = torch
        self.sizes = [1 << i for i in range((batch - 1).bit_length() + 1)]
        network = timm.create_model(os.environ["PEER_ARCHITECTURE"], num_classes=1000).eval()
        network.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
        self.network = torch.compile(network)
        for size in self.sizes:
            self(np.zeros((size, SIDE, SIDE, 3), np.uint8))

    def __call__(self, images):
        size = next(size for size in self.sizes if size >= len(images))
        batch = np.zeros((size, SIDE, SIDE, 3), np.uint8)
        for row, image in zip(batch, images):
            row[:] = image
        with self.torch.no_grad():
            x = self.torch.from_numpy(batch).permute(0, 3, 1, 2).float().sub_(127.5).div_(127.5).contiguous()
            return self.network(x).numpy()[: len(images)]


def network():
    """The network that the environment describes."""
    kind = {"openvino": OpenVino, "torch": Compiled}[os.environ.get("PEER_RUNTIME", "openvino")]
    return kind(
        os.environ["PEER_MODEL"],
        int(os.environ["PEER_THREADS"]),
        int(os.environ["PEER_BATCH"]),
        int(os.environ["PEER_WORKERS"]) == 1,
    )
