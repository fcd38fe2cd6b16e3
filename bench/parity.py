"""Draws random small models of timm and records one pass of each in PyTorch: logits, loss and every gradient.

Each folder is laid out as those in `crates/vit/tests/fixtures`: configuration, weights, and `io.safetensors` with what
PyTorch computed. `bench/parity` compares them with vit. Models are in training mode without dropout; the reference is
computed in float64 from float32 weights and images."""

import argparse
import json
import random
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from timm.models.convnext import ConvNeXt
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer

BATCH, CLASSES = 3, 5


def convnext(draw):
    second = draw.random() < 0.5
    stem = draw.choice(["patch", "overlap", "overlap_tiered", "overlap_act"])
    args = {
        "depths": [draw.randint(1, 2) for _ in range(4)],
        "dims": [draw.randint(2, 10) * 4 for _ in range(4)],
        "kernel_sizes": draw.choice([7, [7, 5, 5, 3], 3]),
        "stem_type": stem,
        "use_grn": second,
        "ls_init_value": None if second else draw.choice([None, 0.3]),
        "conv_mlp": draw.random() < 0.5,
        "conv_bias": draw.random() < 0.8,
        "head_norm_first": draw.random() < 0.3,
        "output_stride": draw.choice([32, 32, 16, 8]),
        "act_layer": draw.choice(["gelu", "gelu", "gelu_tanh", "silu", "relu"]),
        "norm_eps": draw.choice([None, 1e-5]),
    }
    if stem == "patch":
        args["patch_size"] = draw.choice([4, 2])
    if not args["head_norm_first"]:
        args["head_hidden_size"] = draw.choice([None, None, 24])
    return ConvNeXt, args, args, [32 * draw.randint(1, 3) + draw.choice([0, 0, 5]) for _ in range(2)]


def vit(draw):
    heads, patch = draw.choice([1, 2, 4]), draw.choice([4, 8])
    size = [patch * draw.randint(2, 5) for _ in range(2)]
    args = {
        "img_size": size,
        "patch_size": patch,
        "embed_dim": heads * draw.choice([8, 16]),
        "depth": draw.randint(1, 3),
        "num_heads": heads,
        "mlp_ratio": draw.choice([2.0, 2.5, 4.0]),
        "qkv_bias": draw.random() < 0.7,
        "qk_norm": draw.random() < 0.3,
        "init_values": draw.choice([None, 0.3]),
        "reg_tokens": draw.choice([0, 0, 3]),
        "no_embed_class": draw.random() < 0.3,
        "global_pool": draw.choice(["token", "avg", "map"]),
    }
    return VisionTransformer, args, args, size


def resnet(draw):
    basic = draw.random() < 0.5
    args = {
        "layers": [draw.randint(1, 2) for _ in range(4)],
        "stem_type": draw.choice(["", "deep", "deep_tiered"]),
        "stem_width": 16,
        "avg_down": draw.random() < 0.5,
        "output_stride": draw.choice([32, 16]),
    }
    args["channels"] = [16 * draw.randint(1, 3) for _ in args["layers"]]
    if not basic and draw.random() < 0.5:
        args.update(cardinality=4, base_width=16)
    built = {**args, "block": BasicBlock if basic else Bottleneck}
    return ResNet, {**args, "block": "BasicBlock" if basic else "Bottleneck"}, built, [64, 32 * draw.randint(1, 3)]


def swin(draw):
    stages = draw.randint(1, 3)
    size = [2 ** (stages + 1) * draw.randint(2, 4) for _ in range(2)]
    args = {
        "img_size": size,
        "patch_size": draw.choice([2, 4]),
        "embed_dim": 8 * draw.randint(1, 3),
        "depths": [draw.randint(1, 2) for _ in range(stages)],
        "num_heads": [draw.choice([1, 2, 4]) for _ in range(stages)],
        "window_size": draw.choice([2, 3, 4]),
    }
    return SwinTransformer, args, args, size


ARCHITECTURES = {"convnext": convnext, "vit": vit, "resnet": resnet, "swin": swin}


def randomise(model, seed):
    """Nothing starts at 0 or 1: every parameter matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if not value.is_floating_point():
            continue
        new = torch.randn(value.shape, generator=draw)
        if name.endswith("running_var"):
            new = 0.5 + torch.rand(value.shape, generator=draw)
        elif value.ndim <= 1:
            new = 0.2 * new + (0.8 if name.endswith(("weight", "gamma")) else 0.0)
        else:
            new = new * max(1, value[0].numel()) ** -0.5
        value.copy_(new)


def record(folder, draw, seed, architecture):
    kind, written, built, size = ARCHITECTURES[architecture](draw)
    model = kind(num_classes=CLASSES, **built).train()
    randomise(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    images = torch.randn(BATCH, 3, *size, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    weights = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}
    model.double()
    logits = model(images.double())
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    io = {"images": images, "labels": labels.float(), "logits": logits.detach(), "loss": loss.detach()[None]}
    io |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    io |= {f"after.{name}": v for name, v in model.state_dict().items() if name.endswith(("running_mean", "running_var"))}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    save_file({name: value.float().contiguous() for name, value in io.items()}, folder / "io.safetensors")
    config = {
        "source": f"timm {timm.__version__}, torch {torch.__version__}: forward, cross entropy and backward in training mode",
        "class": f"{kind.__module__}.{kind.__name__}",
        "args": {**written, "num_classes": CLASSES},
        "input_shape": [BATCH, 3, *size],
    }
    (folder / "config.json").write_text(json.dumps(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the recordings are written")
    parser.add_argument("--count", type=int, default=20, help="models of each architecture")
    parser.add_argument("--only", choices=ARCHITECTURES, action="append", help="one architecture; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for architecture in arguments.only or ARCHITECTURES:
        draw = random.Random(f"{architecture} {arguments.seed}")
        for index in range(arguments.count):
            record(arguments.folder / f"{architecture}_{index}", draw, 1000 * arguments.seed + index, architecture)


if __name__ == "__main__":
    main()
