"""Writes what timm says about its models: crates/models/tests/timm_models.csv, which the named models are held to, and
crates/models/src/licences.csv, the licences of the published weights.

    vit models --json | python bench/timm_reference.py

Parameters are counted with the published head, or with 1,000 classes where the published weights have none. Licences are
those of the models that `vit models` lists."""

import csv
import json
import pathlib
import sys

import timm
import torch
from timm.models import list_models
from timm.models._registry import list_pretrained

ROOT = pathlib.Path(__file__).resolve().parent.parent / "crates/models"

# Modules all of whose models are known here.
MODULES = [
    "vision_transformer",
    "deit",
    "vision_transformer_hybrid",
    "eva",
    "beit",
    "vision_transformer_relpos",
    "swin_transformer",
    "swin_transformer_v2",
]


def described(name: str) -> dict:
    cfg = timm.get_pretrained_cfg(name)
    classes = cfg.num_classes or 1000
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=classes)
    return {
        "name": name,
        "classes": cfg.num_classes,
        "parameters": sum(p.numel() for p in model.parameters()),
        "image": "x".join(map(str, cfg.input_size[1:])),
        "crop_pct": cfg.crop_pct,
        "crop_mode": cfg.crop_mode,
        "interpolation": cfg.interpolation,
        "mean": cfg.mean[0],
        "std": cfg.std[0],
    }


def write(path: pathlib.Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path}: {len(rows)} models")


def main() -> None:
    names = [name for module in MODULES for name in list_models(module=module)]
    write(ROOT / "tests/timm_models.csv", [described(name) for name in names])
    known = [model["name"] for model in json.load(sys.stdin)]
    published = [name for name in known if list_pretrained(f"{name}.*")]
    licences = [{"name": name, "licence": timm.get_pretrained_cfg(name).license} for name in sorted(published)]
    write(ROOT / "src/licences.csv", [row for row in licences if row["licence"]])


if __name__ == "__main__":
    main()
