"""Records odd.json and odd.bin: operations of Pillow and torchvision on small images of odd sizes.

With a count and a folder as arguments it records that many images, up to 80 pixels wide, somewhere else.
"""
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import InterpolationMode, autoaugment, functional

count = int(sys.argv[1]) if len(sys.argv) > 1 else 0
folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
random = np.random.default_rng(count)
SAMPLING = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}


def affine(image, matrix, entry):
    return image.transform(image.size, Image.AFFINE, matrix, resample=SAMPLING[entry["resample"]],
                           fillcolor=tuple(entry["fill"]))


def pillow(image, entry):
    op, (a,) = entry["op"], entry["args"]
    w, h = image.size
    match op:
        case "AutoContrast": return ImageOps.autocontrast(image)
        case "Equalize": return ImageOps.equalize(image)
        case "Invert": return ImageOps.invert(image)
        case "Posterize": return ImageOps.posterize(image, a)
        case "Solarize": return ImageOps.solarize(image, a)
        case "SolarizeAdd": return image.point([min(255, i + a) if i < 128 else i for i in range(256)] * 3)
        case "Color" | "Contrast" | "Brightness" | "Sharpness": return getattr(ImageEnhance, op)(image).enhance(a)
        case "Hue": return functional.adjust_hue(image, a)
        case "GaussianBlur": return image.filter(ImageFilter.GaussianBlur(a))
        case "Grey": return ImageOps.grayscale(image).convert("RGB")
        case "FlipX": return ImageOps.mirror(image)
        case "FlipY": return ImageOps.flip(image)
        case "Rotate": return image.rotate(a, resample=SAMPLING[entry["resample"]], fillcolor=tuple(entry["fill"]))
        case "ShearX": return affine(image, (1, a, 0, 0, 1, 0), entry)
        case "ShearY": return affine(image, (1, 0, 0, a, 1, 0), entry)
        case "TranslateXRel": return affine(image, (1, 0, a * w, 0, 1, 0), entry)
        case "TranslateYRel": return affine(image, (1, 0, 0, 0, 1, a * h), entry)


def torchvision(image, entry):
    return autoaugment._apply_op(image, entry["op"], entry["args"][0], InterpolationMode(entry["resample"]),
                                 [float(v) for v in entry["fill"]])


def entries():
    uniform = lambda low, high: float(random.uniform(low, high))
    for op in ("AutoContrast", "Equalize", "Invert", "Grey", "FlipX", "FlipY"):
        yield dict(library="pillow", op=op, args=[0])
    yield dict(library="pillow", op="Posterize", args=[int(random.integers(1, 9))])
    yield dict(library="pillow", op="Solarize", args=[float(random.integers(0, 257))])
    yield dict(library="pillow", op="SolarizeAdd", args=[int(random.integers(0, 129))])
    yield dict(library="pillow", op="Hue", args=[uniform(-0.5, 0.5)])
    yield dict(library="pillow", op="GaussianBlur", args=[uniform(0.01, 6.0)])
    yield dict(library="pillow", op="GaussianBlur", args=[uniform(0.1, 2.0)])
    for op in ("Color", "Contrast", "Brightness", "Sharpness"):
        yield dict(library="pillow", op=op, args=[uniform(0, 1)])
        yield dict(library="pillow", op=op, args=[uniform(1, 3)])
    for resample in SAMPLING:
        place = dict(resample=resample, fill=[int(v) for v in random.integers(0, 256, 3)])
        for angle in (uniform(-400, 400), float(random.choice([0, 90, 180, 270, -90, 360, 45, -30]))):
            yield dict(library="pillow", op="Rotate", args=[angle], **place)
        for op in ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel"):
            yield dict(library="pillow", op=op, args=[uniform(-0.6, 0.6)], **place)
        if resample != "bicubic":
            yield dict(library="torchvision", op="Rotate", args=[uniform(-100, 100)], **place)
            yield dict(library="torchvision", op="ShearX", args=[uniform(-0.5, 0.5)], **place)
            yield dict(library="torchvision", op="ShearY", args=[uniform(-0.5, 0.5)], **place)
            yield dict(library="torchvision", op="TranslateX", args=[uniform(-20, 20)], **place)
            yield dict(library="torchvision", op="TranslateY", args=[uniform(-20, 20)], **place)


def image(width, height):
    kind = random.integers(0, 4)
    noise = random.integers(0, 256, (height, width, 3))
    if kind == 0:
        noise = noise // 32 * 36
    elif kind == 1:
        low, span = random.integers(0, 200, 3), random.integers(1, 56, 3)
        noise = low + noise % span
    elif kind == 2:
        ramp = np.add.outer(np.arange(height), np.arange(width))[..., None] * random.uniform(0, 4, 3)
        noise = np.clip(ramp + noise / 16, 0, 255)
    return Image.fromarray(noise.astype(np.uint8))


sizes = [(1, 1), (2, 1), (1, 7), (3, 3), (9, 2), (13, 13), (23, 17), (16, 21)]
if count:
    sizes = [tuple(int(v) for v in random.integers(1, 81, 2)) for _ in range(count)]
cases, data = [], []
for width, height in sizes:
    image = image(width, height)
    chosen = list(entries())
    data.append(image.tobytes())
    for entry in chosen:
        apply = torchvision if entry["library"] == "torchvision" else pillow
        data.append(apply(image, entry).tobytes())
    for entry in chosen:
        entry["args"] = [repr(value) for value in entry["args"]]
    cases.append(dict(width=width, height=height, entries=chosen))
(folder / "odd.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"width"', '\n{"width"'))
(folder / "odd.bin").write_bytes(b"".join(data))
