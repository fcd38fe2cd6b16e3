"""Draws random small models of timm and records one pass of each in PyTorch: logits, loss and every gradient.

Each folder is laid out as those in `crates/vit/tests/fixtures`: configuration, weights, and `io.safetensors` with what
PyTorch computed. `bench/parity` compares them with vit. Models are in training mode without dropout; the reference is
computed in float64 from float32 weights and images. Networks are smooth: where rounding changes the sign of a relu's
input or the pixel of a maximum, gradients of PyTorch itself differ by 1e-3 between float32 and float64."""

import argparse
import json
import random
from functools import partial
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.beit import Beit
from timm.models.convnext import ConvNeXt
from timm.models.efficientnet import EfficientNet
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.layers import LayerNorm, Mlp, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.vision_transformer import (
    Block,
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_relpos import RelPosBlock, ResPostRelPosBlock, VisionTransformerRelPos

CLASSES = 5
# Batch norms over few values amplify rounding errors.
BATCH = {"efficientnet": 16}


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
        "act_layer": draw.choice(["gelu", "gelu", "gelu_tanh", "silu"]),
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
        "class_token": draw.random() < 0.7,
        "pre_norm": draw.random() < 0.3,
        "act_layer": draw.choice(["gelu", "gelu", "gelu_tanh", "quick_gelu"]),
        "pool_include_prefix": draw.random() < 0.2,
        "proj_bias": draw.random() < 0.8,
    }
    # No maximum: its gradient depends on rounding where two tokens are equal.
    pools = ["avg", "map", "prr"] + (["token"] if args["class_token"] else [])
    args["global_pool"] = draw.choice(pools)
    epsilon = draw.choice([1e-6, 1e-5])
    norm = draw.choice([LayerNorm, LayerNorm, RmsNorm])
    written, built = {"norm_layer": {norm.__name__: {"eps": epsilon}}}, {"norm_layer": partial(norm, eps=epsilon)}
    if draw.random() < 0.3:
        written["embed_norm_layer"], built["embed_norm_layer"] = written["norm_layer"], built["norm_layer"]
    kind = draw.choice([Block, Block, ResPostBlock, ParallelScalingBlock, ParallelThingsBlock, DiffParallelScalingBlock])
    written["block_fn"], built["block_fn"] = kind.__name__, kind
    if kind not in (ParallelScalingBlock, DiffParallelScalingBlock):
        args |= {"scale_attn_norm": draw.random() < 0.3, "scale_mlp_norm": draw.random() < 0.3}
        args["attn_layer"] = draw.choice(["attn", "attn", "diff"])
        gate = draw.choice([("Mlp", Mlp), ("Mlp", Mlp), ("SwiGLU", SwiGLU), ("SwiGLUPacked", SwiGLUPacked)])
        written["mlp_layer"], built["mlp_layer"] = gate
        if gate[1] is not Mlp:
            args["act_layer"] = "silu"
            args["mlp_ratio"] = draw.choice([2.0, 4.0])
    return VisionTransformer, args | written, args | built, size


def eva(draw):
    heads, patch = draw.choice([1, 2, 4]), draw.choice([4, 8])
    size = [patch * draw.randint(2, 5) for _ in range(2)]
    kind = draw.choice(["cat", "cat", "dinov3", "mixed", None])
    attention = draw.choice(["eva", "rope"])
    post_norm = draw.random() < 0.2
    depth = draw.randint(1, 3)
    args = {
        "img_size": size,
        "patch_size": patch,
        "embed_dim": heads * draw.choice([8, 16, 20]),
        "depth": depth,
        "num_heads": heads,
        "attn_type": attention,
        "qkv_bias": draw.random() < 0.7,
        "qkv_fused": draw.random() < 0.5,
        "mlp_ratio": draw.choice([2.0, 8 / 3, 4.0]),
        "swiglu_mlp": draw.random() < 0.6,
        "swiglu_align_to": draw.choice([0, 0, 8]),
        "scale_mlp": draw.random() < 0.3,
        "scale_attn_inner": draw.random() < 0.3,
        "class_token": draw.random() < 0.7,
        "num_reg_tokens": draw.choice([0, 0, 1, 4]),
        "use_abs_pos_emb": draw.random() < 0.5,
        "no_embed_class": draw.random() < 0.3,
        "use_rot_pos_emb": kind is not None,
        "use_post_norm": post_norm,
        "use_pre_transformer_norm": draw.random() < 0.3,
        "init_values": None if post_norm else draw.choice([None, 0.3]),
    }
    args["global_pool"] = draw.choice(["avg", "avg", "map", "token"] if args["class_token"] else ["avg", "map"])
    if args["global_pool"] == "map":
        args |= {"attn_pool_num_heads": draw.choice([None, 1]), "attn_pool_mlp_ratio": draw.choice([None, 2.0])}
    else:
        args["use_fc_norm"] = draw.choice([None, None, False])
    if not post_norm:
        args |= {"qk_norm": draw.random() < 0.3, "attn_only_layer_scale": draw.random() < 0.3}
        if attention == "rope" and not args["qkv_fused"] and kind != "mixed" and heads > 1:
            args["num_kv_heads"] = draw.choice([None, 1, [draw.choice([heads, heads // 2]) for _ in range(depth)]])
    if kind is not None:
        args |= {"rope_type": kind, "rope_temperature": draw.choice([10.0, 100.0, 10000.0])}
        args["rope_rotate_half"] = kind == "dinov3"
        args["rope_grid_indexing"] = "ij" if kind == "dinov3" else draw.choice(["ij", "xy"])
    if kind in ("cat", "dinov3"):
        args["rope_grid_offset"] = draw.choice([0.0, 0.0, 1.0])
    if kind == "cat":
        args["ref_feat_shape"] = draw.choice([None, [4, 4], [3, 5]])
    return Eva, args, args, size


def efficientnet(draw):
    def stage(stride):
        kind = draw.choice(["ir", "ir", "er"])
        squeeze = draw.choice(["", "_se0.25"])
        return [f"{kind}_r{draw.randint(1, 2)}_k{draw.choice([3, 5])}_s{stride}_e{draw.choice([2, 4])}_c{8 * draw.randint(1, 4)}{squeeze}"]

    definition = [["ds_r1_k3_s1_e1_c8_se0.25"], *(stage(stride) for stride in (2, 2, draw.choice([1, 2])))]
    args = {"stem_size": 16, "fix_stem": True, "num_features": draw.choice([32, 48]), "act_layer": "silu"}
    built = {**args, "block_args": decode_arch_def(definition)}
    return EfficientNet, {**args, "arch_def": definition}, built, [16 * draw.randint(4, 7) for _ in range(2)]


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
        "drop_path_rate": 0.0,
    }
    return SwinTransformer, args, args, size


def swinv2(draw):
    stages = draw.randint(1, 3)
    window = draw.choice([2, 4])
    # timm's V2 masks shifted windows only where they divide the map.
    side = lambda: 2 ** (stages + 1) * window * draw.randint(1, 2)
    size = [side(), side()]
    args = {
        "img_size": size,
        "patch_size": 4,
        # Queries and keys are divided by their lengths: with 2 channels to a head, gradients of PyTorch itself differ by 3e-5
        # between float32 and float64.
        "embed_dim": 16 * draw.randint(1, 3),
        "depths": [draw.randint(1, 2) for _ in range(stages)],
        "num_heads": [draw.choice([1, 2, 4]) for _ in range(stages)],
        "window_size": window,
        "qkv_bias": draw.random() < 0.7,
        "pretrained_window_sizes": [draw.choice([0, 0, 3]) for _ in range(stages)],
        "drop_path_rate": 0.0,
    }
    return SwinTransformerV2, args, args, size


def relative_vit(draw):
    heads, patch = draw.choice([1, 2, 4]), draw.choice([4, 8])
    size = [patch * draw.randint(2, 5) for _ in range(2)]
    return size, {
        "img_size": size,
        "patch_size": patch,
        "embed_dim": heads * draw.choice([8, 16]),
        "depth": draw.randint(1, 3),
        "num_heads": heads,
        "mlp_ratio": draw.choice([2.0, 2.5, 4.0]),
        "qkv_bias": draw.random() < 0.7,
        "init_values": draw.choice([None, 0.3]),
    }


def beit(draw):
    size, args = relative_vit(draw)
    args |= {
        "use_abs_pos_emb": draw.random() < 0.3,
        "use_rel_pos_bias": draw.random() < 0.7,
        "use_shared_rel_pos_bias": draw.random() < 0.5,
        "swiglu_mlp": draw.random() < 0.3,
        "scale_mlp": draw.random() < 0.3,
        "global_pool": draw.choice(["avg", "token"]),
    }
    return Beit, args, args, size


def relpos(draw):
    size, args = relative_vit(draw)
    block = draw.choice([RelPosBlock, ResPostRelPosBlock])
    class_token = draw.random() < 0.5
    args |= {
        "qk_norm": draw.random() < 0.3,
        "class_token": class_token,
        "global_pool": draw.choice(["avg", "token"]) if class_token else "avg",
        "fc_norm": draw.random() < 0.5,
        "rel_pos_type": draw.choice(["mlp", "mlp_swin", "bias"]),
        "rel_pos_dim": draw.choice([None, 16]),
        "shared_rel_pos": draw.random() < 0.5,
    }
    return VisionTransformerRelPos, args | {"block_fn": block.__name__}, args | {"block_fn": block}, size


ARCHITECTURES = {
    "beit": beit,
    "convnext": convnext,
    "efficientnet": efficientnet,
    "eva": eva,
    "relpos": relpos,
    "swin": swin,
    "swinv2": swinv2,
    "vit": vit,
}


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


def double(model):
    """In float64, but for the angles of learned rotary frequencies, which timm computes in float32."""
    model.double()
    if getattr(model, "rope_mixed", False):
        model.rope.t_x, model.rope.t_y = model.rope.t_x.float(), model.rope.t_y.float()
    return model


def record(folder, draw, seed, architecture):
    kind, written, built, size = ARCHITECTURES[architecture](draw)
    model = kind(num_classes=CLASSES, **built).train()
    # The MLP of relative positions has dropout whatever the arguments.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    randomise(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    batch = BATCH.get(architecture, 3)
    images = torch.randn(batch, 3, *size, generator=generator)
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    weights = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}
    double(model)
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
        "input_shape": [batch, 3, *size],
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
