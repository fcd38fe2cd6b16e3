"""Writes a ViT of timm with random weights as a checkpoint folder: config.json and model.safetensors.

Needs only the standard library, so that it runs on a machine with a GPU and no network."""

import array
import json
import math
import random
import struct
from pathlib import Path

# Width, depth and heads of the variants at 224 pixels with patches of 16.
VARIANTS = {
    "Ti/16": ("vit_tiny_patch16_224", 192, 12, 3),
    "B/16": ("vit_base_patch16_224", 768, 12, 12),
}
CLASSES, PATCH, TOKENS = 1000, 16, 197


def shapes(width, depth):
    """Name, shape and standard deviation of every parameter; `None` for scales of 1."""
    linear = lambda name, rows, columns: [
        (f"{name}.weight", [rows, columns], columns**-0.5),
        (f"{name}.bias", [rows], 0.02),
    ]
    norm = lambda name: [(f"{name}.weight", [width], None), (f"{name}.bias", [width], 0.02)]
    yield "cls_token", [1, 1, width], 0.02
    yield "pos_embed", [1, TOKENS, width], 0.02
    yield "patch_embed.proj.weight", [width, 3, PATCH, PATCH], (3 * PATCH * PATCH) ** -0.5
    yield "patch_embed.proj.bias", [width], 0.02
    for i in range(depth):
        block = f"blocks.{i}"
        yield from norm(f"{block}.norm1")
        yield from linear(f"{block}.attn.qkv", 3 * width, width)
        yield from linear(f"{block}.attn.proj", width, width)
        yield from norm(f"{block}.norm2")
        yield from linear(f"{block}.mlp.fc1", 4 * width, width)
        yield from linear(f"{block}.mlp.fc2", width, 4 * width)
    yield from norm("norm")
    yield from linear("head", CLASSES, width)


def write(variant, folder):
    """Writes the folder unless it exists; returns it."""
    folder = Path(folder)
    if (folder / "model.safetensors").exists():
        return folder
    name, width, depth, _ = VARIANTS[variant]
    folder.mkdir(parents=True, exist_ok=True)
    normalise = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center"}
    cfg = {"input_size": [3, 224, 224], "num_classes": CLASSES, **normalise}
    config = {"architecture": name, "num_classes": CLASSES, "num_features": width, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    # A prime number of values, so that repeating them does not make rows of a matrix equal.
    draw = random.Random(0)
    noise = array.array("f", (draw.gauss(0, 1) for _ in range(1_000_003)))
    deviations = {deviation for _, _, deviation in shapes(width, depth) if deviation}
    scaled = {deviation: array.array("f", (deviation * value for value in noise)) for deviation in deviations}
    header, offset, position = {}, 0, 0
    parameters = list(shapes(width, depth))
    for key, shape, _ in parameters:
        size = 4 * math.prod(shape)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors.part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, deviation in parameters:
            count = math.prod(shape)
            if deviation is None:
                file.write(array.array("f", [1.0]).tobytes() * count)
                continue
            while count:
                part = scaled[deviation][position : position + count]
                position = (position + len(part)) % len(noise)
                count -= len(part)
                file.write(part.tobytes())
    (folder / "model.safetensors.part").rename(folder / "model.safetensors")
    return folder
