"""Opens what vit writes in timm and in transformers, and compares their outputs with vit's.

Every model is trained for one step by `vit train`, gets random weights in the shapes that it was saved with, and is
written by `vit convert` in both layouts. Each library then builds it from the folder alone. Compared are the logits of
a random input (through `vit verify`) and the probabilities of a photo with each side's own preprocessing (through
`vit classify`)."""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

logging.disable(logging.WARNING)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HERE = Path(__file__).resolve().parent
LOGITS, PROBABILITIES = 1e-4, 1e-4

# Name, image size; None: the model's own.
MODELS = [
    ("vit_pico_patch4_32", None),
    ("vit_nano_patch4_32", None),
    ("vit_lite_patch4_32", None),
    ("vit_tiny_patch4_32", None),
    ("vit_pico_patch4_gap_32", None),
    ("deit_pico_distilled_patch4_32", None),
    ("vit_pico_r20_s4_32", None),
    ("resnet18_cifar", None),
    ("lenet5", None),
    ("lenet5_relu_cifar", None),
    ("vit_tiny_patch16_224", None),
    ("vit_tiny_patch16_224", 64),
    ("deit_tiny_patch16_224", 64),
    ("deit_tiny_distilled_patch16_224", 64),
    ("deit3_small_patch16_224", 64),
    ("vit_medium_patch16_gap_240", 64),
    ("vit_small_patch14_dinov2", 56),
    ("vit_small_patch14_reg4_dinov2", 56),
    ("vit_base_patch16_siglip_224", 64),
    ("vit_tiny_r_s16_p8_224", 128),
    ("vit_small_r26_s32_224", 64),
    ("resnet18", 64),
    ("resnet26", 64),
    ("resnet18d", 64),
    ("resnext50_32x4d", 64),
    ("resnetv2_50x1_bit", 64),
    ("efficientnet_b0", 64),
    ("tf_efficientnet_b0", 64),
    ("efficientnetv2_s", 64),
    ("convnext_atto", 64),
    ("convnext_atto_ols", 64),
    ("convnextv2_atto", 64),
    ("swin_tiny_patch4_window7_224", None),
    ("swin_tiny_patch4_window7_224", 64),
    ("coatnet_nano_rw_224", 64),
    ("coatnet_rmlp_nano_rw_224", 64),
    ("coatnet_0_224", 64),
]


class Failure(Exception):
    pass


def vit(binary, *arguments):
    run = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        raise Failure((run.stderr or run.stdout).strip().splitlines()[-1])
    return run.stdout


def random_weights(folder, seed):
    """Weights that are large enough for every layer to matter; variances stay positive."""
    path = folder / "model.safetensors"
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for name, old in load_file(path).items():
        new = torch.randn(old.shape, generator=draw)
        if name.endswith("running_var"):
            new = 0.5 + torch.rand(old.shape, generator=draw)
        elif name.endswith("running_mean") or old.ndim <= 1:
            new = 0.1 * new + (1.0 if name.endswith("weight") and old.ndim == 1 else 0.0)
        else:
            new = new * (1.0 / max(1, old[0].numel())) ** 0.5
        weights[name] = new if old.is_floating_point() else old
    save_file(weights, path)


def trained(binary, folder, name, size, photos):
    """The folder of a model as training writes it, with random weights."""
    more = ["--image-size", size] if size else []
    vit(binary, "train", "--data", photos, "-m", name, "-o", folder, "--epochs", 1, "--batch", 2, "--device", "cpu",
        *([] if name.startswith("lenet") else ["--set", "model.drop_path=0.1"]), *more)
    best = folder / "checkpoints" / "best"
    for extra in ("manifest.json", "state.json"):
        (best / extra).unlink(missing_ok=True)
    random_weights(best, seed=len(name))
    return best


def compared(binary, folder, model, transform, photo):
    """Largest differences of logits and of a photo's probabilities between vit and a model of the other library."""
    model.eval()
    config = json.loads(vit(binary, "info", folder, "--json"))
    height, width = config["image_size"]
    x = torch.randn(2, config["channels"], height, width, generator=torch.Generator().manual_seed(1))
    answer = lambda x: getattr(y := model(x), "logits", y)
    with torch.inference_mode():
        logits = answer(x)
        seen = torch.softmax(answer(transform(Image.open(photo).convert("RGB" if config["channels"] == 3 else "L"))), -1)[0]
    classes = config["classes"]
    if classes == 0:
        raise Failure("the model has no classes")
    save_file({"input": x, "logits": logits.contiguous()}, folder / "io.safetensors")
    try:
        report = json.loads(vit(binary, "verify", folder, "--json", "--tolerance", 1e9, "--device", "cpu"))
    finally:
        (folder / "io.safetensors").unlink()
    [logits] = [array["difference"] for array in report["arrays"] if array["name"] == "logits"]
    ours = json.loads(vit(binary, "classify", "-m", folder, photo, "--json", "-k", classes, "--device", "cpu"))
    probabilities = max(abs(p["probability"] - float(seen[p["class"]])) for p in ours["predictions"])
    return logits, probabilities


def in_timm(folder):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    data = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**data, is_training=False)
    return model, lambda image: transform(image)[None]


def in_transformers(folder):
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    # Its other backend rounds pixels differently when it resizes.
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return model, lambda image: processor(image, return_tensors="pt")["pixel_values"]


def attempt(binary, source, layout, openers, photo, scratch):
    """One cell per opener, and what `convert` said about it."""
    folder = scratch / layout
    shutil.rmtree(folder, ignore_errors=True)
    try:
        report = json.loads(vit(binary, "convert", source, folder, "--layout", layout, "--json"))["report"]
    except Failure as refusal:
        return [("refused", None)] * len(openers), [str(refusal)]
    # What cannot be opened, or answers otherwise, has to be said.
    said = [line for line in report if line.startswith(("timm c", "transformers c"))]
    cells = []
    for opener in openers:
        try:
            logits, photos = compared(binary, folder, *opener(folder), photo)
            good = logits <= LOGITS and photos <= PROBABILITIES
            cells.append(("same" if good else "said" if said else "DIFFERS", f"{logits:.1e} {photos:.1e}"))
        except Exception as error:
            what = str(error).strip().splitlines()
            cells.append(("said" if said else "FAILED", f"{type(error).__name__}: {what[0] if what else ''}"))
    return cells, said


def shown(cell):
    kind, value = cell
    if kind == "same":
        return value
    # Another answer is shown, an error only at length.
    return f"{value} {kind}" if value and value[0].isdigit() else kind


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vit", type=Path, default=HERE.parent / "target/release/vit", help="the binary")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="say why something could not be opened")
    arguments = parser.parse_args()
    binary = arguments.vit.resolve()
    scratch = Path(tempfile.mkdtemp(prefix="interop-"))
    # As PNG, since decoders of JPEG differ in the last bit.
    photo = scratch / "photo.png"
    Image.open(HERE.parent / "examples/images/bird.jpg").save(photo)
    photos = scratch / "photos"
    for number in range(8):
        place = photos / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)).save(place / f"{number}.png")

    sources = [(name if size is None else f"{name} at {size}", lambda n=name, s=size: trained(binary, scratch / "run", n, s, photos))
               for name, size in MODELS]
    fixtures = HERE.parent / "crates/vit/tests/fixtures"
    for folder in sorted(fixtures.iterdir()):
        if (folder / "config.json").exists() and (folder / "io.safetensors").exists():
            sources.append((f"fixture {folder.name}", lambda f=folder: f))
    print(f"timm {timm.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    print("each cell: largest difference of logits, of a photo's probabilities\n")
    print(f"{'MODEL':40} {'TIMM':24} {'TRANSFORMERS, TIMM LAYOUT':26} {'TRANSFORMERS, ITS LAYOUT':24}")
    bad = 0
    for name, source in sources:
        if arguments.only not in name:
            continue
        shutil.rmtree(scratch / "run", ignore_errors=True)
        try:
            source = source()
        except Failure as failure:
            print(f"{name:40} not written: {failure}")
            bad += 1
            continue
        cells, said = attempt(binary, source, "timm", [in_timm, in_transformers], photo, scratch)
        theirs, refusal = attempt(binary, source, "hugging-face", [in_transformers], photo, scratch)
        texts = [shown(cell) for cell in cells + theirs]
        print(f"{name:40} {texts[0]:24} {texts[1]:26} {texts[2]:24}", flush=True)
        if arguments.verbose:
            for line in said + refusal + [str(value) for kind, value in cells + theirs if value and kind in ("said", "FAILED")]:
                print(f"    {line}")
        bad += any("FAILED" in text or "DIFFERS" in text for text in texts)
    shutil.rmtree(scratch)
    print(f"\n{bad} of these do not open, or answer differently, without a word" if bad else "\nall open, or are refused with the reason")
    sys.exit(bad > 0)


main()
