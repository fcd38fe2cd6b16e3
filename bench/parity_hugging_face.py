"""Draws random small models of transformers with their image processors, and records what both make of an image file.

Each folder has transformers' own files, `image.png`, and `io.safetensors` with the outputs for that image, computed in
float64 from float32 weights and pixels. `bench/parity` compares them with vit. Every third processor is of the torchvision backend, the others of Pillow's.

Of `vit_mae_pretraining`, masked autoencoders with their decoder, the masks are given as noise, and predictions, loss and all
gradients are recorded, each with a tolerance of 1e-5 of the largest value."""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

PHOTO = Path(__file__).resolve().parent.parent / "examples/images/bird.jpg"
CLASSES = 5
BICUBIC = 3


def vision(draw, square=False, patches=(2, 4)):
    """Options that all Vision Transformers share."""
    heads, patch = draw.choice([1, 2, 4]), draw.choice([4, 8])
    size = [patch * draw.randint(*patches) for _ in range(2)]
    size = size[0] if square or draw.random() < 0.5 else size
    return {
        "image_size": size,
        "patch_size": patch,
        "hidden_size": heads * draw.choice([8, 12, 16]),
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": heads,
        "hidden_act": draw.choice(["gelu", "gelu", "gelu_new", "silu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-6, 1e-5]),
    }


def vit(draw):
    args = vision(draw) | {"intermediate_size": draw.choice([40, 64, 96]), "qkv_bias": draw.random() < 0.7}
    return args, ["Model", "ForImageClassification"]


def deit(draw):
    args, _ = vit(draw)
    return args, ["Model", "ForImageClassification", "ForImageClassificationWithTeacher"]


def vit_mae(draw):
    args, _ = vit(draw)
    square = args["image_size"] if isinstance(args["image_size"], int) else args["image_size"][0]
    return args | {"image_size": square, "mask_ratio": 0.0}, ["Model"]


def vit_mae_pretraining(draw):
    args, _ = vit_mae(draw)
    heads = draw.choice([1, 2, 4])
    args |= {
        "decoder_hidden_size": heads * draw.choice([8, 12, 16]),
        "decoder_num_hidden_layers": draw.randint(1, 3),
        "decoder_num_attention_heads": heads,
        "decoder_intermediate_size": draw.choice([40, 64, 96]),
        "mask_ratio": draw.choice([0.5, 0.6, 0.75]),
        "norm_pix_loss": draw.random() < 0.5,
    }
    return args, ["ForPreTraining"]


def dinov2(draw):
    args = vision(draw, square=True) | {
        "mlp_ratio": draw.choice([2, 3, 4]),
        "qkv_bias": draw.random() < 0.7,
        "use_swiglu_ffn": draw.random() < 0.3,
    }
    return args, ["Model", "ForImageClassification"]


def dinov2_with_registers(draw):
    args, classes = dinov2(draw)
    return args | {"num_register_tokens": draw.randint(1, 4)}, classes


def dinov3_vit(draw):
    args = vision(draw, square=True) | {
        "intermediate_size": draw.choice([40, 64, 96]),
        "num_register_tokens": draw.randint(0, 4),
        "use_gated_mlp": draw.random() < 0.3,
        "key_bias": draw.random() < 0.3,
        "rope_theta": draw.choice([100.0, 50.0]),
    }
    return args, ["Model"]


def beit(draw):
    args = vision(draw, square=True) | {
        "intermediate_size": draw.choice([40, 64, 96]),
        "use_absolute_position_embeddings": draw.random() < 0.5,
        "use_relative_position_bias": draw.random() < 0.6,
        "use_shared_relative_position_bias": draw.random() < 0.3,
        "layer_scale_init_value": draw.choice([0.0, 0.1]),
        "use_mean_pooling": draw.random() < 0.6,
        "use_mask_token": draw.random() < 0.3,
        "drop_path_rate": 0.0,
    }
    return args, ["Model", "ForImageClassification"]


def clip(draw):
    args = vision(draw, square=True) | {"intermediate_size": draw.choice([40, 64, 96])}
    args["hidden_act"] = draw.choice(["quick_gelu", "gelu"])
    args["projection_dim"] = 24
    return args, ["Model", "ModelWithProjection"]


def siglip(draw):
    args = vision(draw, square=True) | {"intermediate_size": draw.choice([40, 64, 96])}
    args["hidden_act"] = draw.choice(["gelu_pytorch_tanh", "gelu"])
    return args, ["Model"]


def siglip2(draw):
    args, tasks = siglip(draw)
    del args["image_size"]
    return args | {"num_patches": draw.randint(2, 4) ** 2}, tasks


def swin(draw):
    stages, window, patch = draw.randint(1, 3), draw.choice([2, 3, 4]), draw.choice([2, 4])
    # transformers has biases of one window size, so that no stage may be smaller than a window.
    args = {
        "image_size": patch * window * 2 ** (stages - 1) * draw.randint(1, 2),
        "patch_size": patch,
        "embed_dim": 8 * draw.randint(1, 3),
        "depths": [draw.randint(1, 2) for _ in range(stages)],
        "num_heads": [draw.choice([1, 2, 4]) for _ in range(stages)],
        "window_size": window,
        "mlp_ratio": draw.choice([2.0, 4.0]),
        "drop_path_rate": 0.0,
    }
    return args, ["Model", "ForImageClassification"]


def convnext(draw):
    args = {
        "depths": [draw.randint(1, 2) for _ in range(4)],
        "hidden_sizes": [draw.randint(2, 8) * 4 for _ in range(4)],
        "patch_size": draw.choice([4, 2]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
        "image_size": 224,
    }
    return args, ["Model", "ForImageClassification"]


def resnet(draw):
    args = {
        "embedding_size": draw.choice([64, 24]),
        "hidden_sizes": [draw.randint(1, 6) * 8 for _ in range(4)],
        "depths": [draw.randint(1, 2) for _ in range(4)],
        "layer_type": draw.choice(["basic", "bottleneck"]),
    }
    return args, ["Model", "ForImageClassification"]


def bit(draw):
    hybrid = draw.random() < 0.3
    args = {
        "embedding_size": draw.choice([64, 32]),
        "hidden_sizes": [draw.randint(2, 6) * 32 for _ in range(3)],
        "depths": [draw.randint(1, 2) for _ in range(3)],
        "num_groups": draw.choice([8, 4]),
    }
    if hybrid:
        args |= {"layer_type": "bottleneck", "global_padding": "same", "embedding_dynamic_padding": True}
    return args, ["Model", "ForImageClassification"]


def efficientnet(draw):
    width, stages = draw.choice([0.5, 1.0]), draw.randint(2, 4)
    outputs = [draw.randint(1, 4) * 16 for _ in range(stages)]
    args = {
        "image_size": 64,
        "width_coefficient": width,
        "depth_coefficient": draw.choice([1.0, 1.4]),
        "kernel_sizes": [draw.choice([3, 5]) for _ in range(stages)],
        "in_channels": [32, *outputs[:-1]],
        "out_channels": outputs,
        "strides": [1, *(2 for _ in range(stages - 1))],
        "num_block_repeats": [draw.randint(1, 2) for _ in range(stages)],
        "expand_ratios": [1, *(draw.choice([2, 4]) for _ in range(stages - 1))],
        "hidden_dim": int(1280 * width),
        "squeeze_expansion_ratio": draw.choice([0.25, 0.2]),
    }
    return args, ["Model", "ForImageClassification"]


# Model type: prefix of classes, configuration, drawing, image processor.
TYPES = {
    "vit": ("ViT", "ViTConfig", vit, "ViT"),
    "deit": ("DeiT", "DeiTConfig", deit, "DeiT"),
    "vit_mae": ("ViTMAE", "ViTMAEConfig", vit_mae, "ViT"),
    "vit_mae_pretraining": ("ViTMAE", "ViTMAEConfig", vit_mae_pretraining, None),
    "vit_msn": ("ViTMSN", "ViTMSNConfig", vit, "ViT"),
    "beit": ("Beit", "BeitConfig", beit, "Beit"),
    "data2vec-vision": ("Data2VecVision", "Data2VecVisionConfig", beit, "Beit"),
    "dinov2": ("Dinov2", "Dinov2Config", dinov2, "Bit"),
    "dinov2_with_registers": ("Dinov2WithRegisters", "Dinov2WithRegistersConfig", dinov2_with_registers, "Bit"),
    "dinov3_vit": ("DINOv3ViT", "DINOv3ViTConfig", dinov3_vit, "DINOv3ViT"),
    "ijepa": ("IJepa", "IJepaConfig", vit, "ViT"),
    "clip_vision_model": ("CLIPVision", "CLIPVisionConfig", clip, "CLIP"),
    "siglip_vision_model": ("SiglipVision", "SiglipVisionConfig", siglip, "Siglip"),
    "siglip2_vision_model": ("Siglip2Vision", "Siglip2VisionConfig", siglip2, "Siglip2"),
    "swin": ("Swin", "SwinConfig", swin, "ViT"),
    "swinv2": ("Swinv2", "Swinv2Config", swin, "ViT"),
    "convnext": ("ConvNext", "ConvNextConfig", convnext, "ConvNext"),
    "convnextv2": ("ConvNextV2", "ConvNextV2Config", convnext, "ConvNext"),
    "resnet": ("ResNet", "ResNetConfig", resnet, "ConvNext"),
    "efficientnet": ("EfficientNet", "EfficientNetConfig", efficientnet, "EfficientNet"),
    "bit": ("Bit", "BitConfig", bit, "Bit"),
}


def processor(draw, kind, size, any_size, fast):
    """An image processor for images of this size; a model that takes any gets another one."""
    height, width = size if isinstance(size, list) else (size, size)
    args = {"resample": draw.choice([0, 1, 2, 3, 3, 4, 5]), "do_normalize": draw.random() < 0.8}
    args["image_mean"], args["image_std"] = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    if kind in ("Bit", "CLIP"):
        if any_size:
            height = width = draw.choice([height, 2 * height])
        args |= {"size": {"shortest_edge": draw.randint(height - 3, 2 * height)}, "crop_size": {"height": height, "width": width}}
    elif kind == "ConvNext":
        args |= {"size": {"shortest_edge": draw.choice([64, 65, 96, 384])}, "crop_pct": draw.choice([0.875, 0.9, 0.95])}
    elif kind == "Siglip2":
        pass
    elif kind == "DeiT":
        # One share for both sides.
        args |= {"size": {"height": 2 * height, "width": 2 * width}, "crop_size": {"height": height, "width": width}}
    elif kind == "EfficientNet":
        args |= {"size": {"height": height, "width": width}, "include_top": draw.random() < 0.5, "rescale_offset": draw.random() < 0.3}
        if args["rescale_offset"]:
            args["rescale_factor"] = 1 / 127.5
    elif kind == "Beit" and draw.random() < 0.5:
        margin = draw.randint(0, 9)
        args |= {"size": {"height": height + margin, "width": width + margin}, "crop_size": {"height": height, "width": width}, "do_center_crop": True}
    else:
        args |= {"size": {"height": height, "width": width}}
    if kind == "DINOv3ViT":
        args["resample"] = draw.choice([2, 3])
        return transformers.DINOv3ViTImageProcessor(**args)
    if fast:
        # torchvision has neither box nor Hamming filters.
        args["resample"] = draw.choice([0, 1, 2, 3])
        return getattr(transformers, f"{kind}ImageProcessor")(**args)
    return getattr(transformers, f"{kind}ImageProcessorPil")(**args)


def randomise(model, seed):
    """Nothing starts at 0 or 1: every parameter matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if not value.is_floating_point() or name.endswith("relative_coords_table"):
            continue
        new = torch.randn(value.shape, generator=draw)
        if name.endswith("running_var"):
            new = 0.5 + torch.rand(value.shape, generator=draw)
        elif name.endswith("logit_scale"):
            new = 2 + new
        elif value.ndim <= 1 or ".grn." in name:
            new = 0.2 * new + (0.8 if name.endswith(("weight", "gamma", "lambda1")) and ".grn." not in name else 0.0)
        else:
            new = new * max(1, value[0].numel()) ** -0.5
        value.copy_(new)


def save_gradients(model, folder):
    """Writes gradients under the names of the file, as the weights are: what has no gradient has zeros."""
    gradients = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    gradients |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.load_state_dict(gradients)
    model.float().save_pretrained(folder)


def record(folder, draw, seed, kind, gradients, fast):
    prefix, config, drawn, processes = TYPES[kind]
    args, tasks = drawn(draw)
    task = tasks[-1] if gradients else draw.choice(tasks)
    config = getattr(transformers, config)(**args)
    if "Classification" in task:
        config.num_labels = CLASSES
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + task)(config).eval()
    randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    size = getattr(config, "image_size", 64)
    prepare = processor(draw, processes, list(size) if isinstance(size, tuple) else size, kind.startswith("dinov2"), fast)
    prepare.save_pretrained(folder)
    if fast:
        # transformers 5 leaves the backend out of the name.
        path = folder / "preprocessor_config.json"
        written = json.loads(path.read_text())
        path.write_text(json.dumps(written | {"image_processor_type": f"{processes}ImageProcessorFast"}))
    image = Image.open(PHOTO).convert("RGB").resize((draw.randint(40, 200), draw.randint(40, 200)))
    if kind == "siglip2_vision_model":
        # Any other image has another grid of patches.
        image = image.resize((image.width, image.width))
        prepare.patch_size, prepare.max_num_patches = config.patch_size, config.num_patches
        prepare.save_pretrained(folder)
    image.save(folder / "image.png")
    prepared = prepare(image, return_tensors="pt")
    pixels, more = prepared["pixel_values"], {}
    model.double()
    if kind == "vit_mae":
        patches = (pixels.shape[-1] // config.patch_size) ** 2
        more["noise"] = torch.arange(patches, dtype=torch.float64)[None] / patches
    outputs = None
    if kind == "siglip2_vision_model":
        side, patch = int(config.num_patches**0.5), config.patch_size
        outputs = model(pixels.double(), prepared["pixel_attention_mask"], prepared["spatial_shapes"])
        patches = pixels.reshape(1, side, side, patch, patch, 3)
        pixels = patches.permute(0, 5, 1, 3, 2, 4).reshape(1, 3, side * patch, side * patch)
    io = {"pixels": pixels}
    outputs = outputs or model(pixels.double(), **more)
    if outputs.get("logits") is not None:
        io["logits"] = outputs.logits
    elif outputs.get("image_embeds") is not None:
        io["logits"] = outputs.image_embeds
    else:
        if outputs.last_hidden_state.ndim == 3 and kind not in ("swin", "swinv2"):
            io["tokens"] = outputs.last_hidden_state
        if kind not in ("vit", "deit", "vit_mae", "vit_msn", "ijepa") and outputs.get("pooler_output") is not None:
            io["features"] = outputs.pooler_output.flatten(1)
    if gradients and "logits" in io:
        io["labels"] = torch.zeros(1)
        torch.nn.functional.cross_entropy(io["logits"], torch.zeros(1, dtype=torch.long)).backward()
        if kind == "dinov2_with_registers":
            # vit adds this position to the class token when it opens the file.
            model.dinov2_with_registers.embeddings.position_embeddings.grad[:, 0] = 0
        save_gradients(model, folder / "gradients")
    save_file({name: value.detach().float().contiguous() for name, value in io.items()}, folder / "io.safetensors")
    (folder / "meta.json").write_text(json.dumps({"source": f"transformers {transformers.__version__}", "class": prefix + task}))


def record_pretraining(folder, draw, seed):
    """A pass of a masked autoencoder on random images: mask, tokens, prediction, loss and gradients."""
    args, _ = vit_mae_pretraining(draw)
    config = transformers.ViTMAEConfig(**args)
    torch.manual_seed(seed)
    model = transformers.ViTMAEForPreTraining(config).eval()
    randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    images = torch.randn(2, 3, config.image_size, config.image_size)
    noise = torch.rand(2, (config.image_size // config.patch_size) ** 2)
    model.double()
    outputs = model(images.double(), noise=noise.double(), output_hidden_states=True)
    outputs.loss.backward()
    io = {"mask": outputs.mask, "ids_restore": outputs.ids_restore.float(), "decoder_prediction": outputs.logits}
    io |= {"encoder_tokens": model.vit(images.double(), noise=noise.double()).last_hidden_state, "loss": outputs.loss[None]}
    tolerance = {name: 1e-5 * float(value.detach().abs().max()) for name, value in io.items()}
    save_gradients(model, folder / "gradients")
    # Positions are fixed.
    gradients = load_file(folder / "gradients/model.safetensors").items()
    gradients = {f"grad.{name}": value for name, value in gradients if "pos" not in name.split(".")[-1]}
    shutil.rmtree(folder / "gradients")
    tolerance["grad.*"] = 1e-5 * max(float(gradient.abs().max()) for gradient in gradients.values())
    arrays = {"input": images, "noise": noise} | io | gradients
    save_file({name: value.detach().float().contiguous() for name, value in arrays.items()}, folder / "io.safetensors")
    source = f"transformers {transformers.__version__}"
    (folder / "meta.json").write_text(json.dumps({"source": source, "class": "ViTMAEForPreTraining", "tolerance": tolerance}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the recordings are written")
    parser.add_argument("--count", type=int, default=10, help="models of each type")
    parser.add_argument("--only", choices=TYPES, action="append", help="one type; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for kind in arguments.only or TYPES:
        draw = random.Random(f"{kind} {arguments.seed}")
        for index in range(arguments.count):
            if kind == "vit_mae_pretraining":
                record_pretraining(arguments.folder / f"{kind}_{index}", draw, 1000 * arguments.seed + index)
                continue
            # The first one with a head has gradients, too.
            record(arguments.folder / f"{kind}_{index}", draw, 1000 * arguments.seed + index, kind, index == 0, index % 3 == 2)


if __name__ == "__main__":
    main()
