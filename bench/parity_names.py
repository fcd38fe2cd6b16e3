"""Records every named model of a timm module at reduced depth with random weights: an image file and timm's output for it.

Each folder is what timm's `save_for_hf` writes (config.json with the model's name, arguments and preprocessing, and the
weights), with `image.png`, and `io.safetensors` with `logits`, or `features` of a model without a head. `bench/parity`
compares them with vit, from the file to the output."""

import argparse
from pathlib import Path

import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config

from parity import double, randomise

# Blocks that are built; wide models are recorded in float32, which differs from float64 by less than 1e-6.
DEPTH = 2
WIDE = 100_000_000


def reduced(name, module):
    """Arguments that leave few blocks."""
    if module.startswith("swin"):
        return {"depths": (2, 2, 2, 2) if "s3" not in name else (1, 2, 2, 1)}
    if "sapiens2" in name:
        full = timm.create_model(name, device="meta")
        heads = full.blocks[0].attn.num_heads
        # Grouped queries are in the middle of models with more than sixteen blocks.
        return {"depth": DEPTH, "num_kv_heads": (heads, heads // 2 if len(full.blocks) > 16 else heads)}
    return {"depth": DEPTH}


def photo(size, generator):
    """Smooth noise: neighbouring pixels are similar, as in a photo."""
    coarse = torch.rand(1, 3, 12, 9, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)[0]
    noisy = (fine + 0.05 * torch.randn(fine.shape, generator=generator)).clamp(0, 1)
    return Image.fromarray((255 * noisy).byte().permute(1, 2, 0).numpy())


@torch.no_grad()
def record(folder, name, module, seed):
    args = reduced(name, module)
    model = timm.create_model(name, **args).eval()
    randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
    (folder / "pytorch_model.bin").unlink(missing_ok=True)
    image = photo((334, 500), torch.Generator().manual_seed(seed))
    image.save(folder / "image.png")
    pixels = create_transform(**resolve_model_data_config(model), is_training=False)(image)[None]
    if sum(p.numel() for p in model.parameters()) < WIDE:
        model, pixels = double(model), pixels.double()
    output = model(pixels)
    kind = "logits" if model.num_classes else "features"
    save_file({kind: output.float().contiguous()}, folder / "io.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the recordings are written")
    parser.add_argument("modules", nargs="+", help="timm's modules, as in eva")
    parser.add_argument("--filter", default="", help="only names with this text")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for module in arguments.modules:
        for index, name in enumerate(timm.list_models(module=module)):
            if arguments.filter in name:
                record(arguments.folder / name, name, module, 1000 * arguments.seed + index)


if __name__ == "__main__":
    main()
