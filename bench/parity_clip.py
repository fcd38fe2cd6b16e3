"""Draws random small image-text models of transformers (CLIP, SigLIP) and OpenCLIP and records their embeddings and logits, and
random Unicode texts with the ids of OpenCLIP's and transformers' tokenisers.

Each folder is one that `vit verify` reads. `bench/parity --clip` compares them with vit. The references are computed in
float64 from float32 weights, images and ids."""

import argparse
import gzip
import json
import random
import unicodedata
from pathlib import Path

import open_clip
import torch
import transformers
from open_clip.tokenizer import SimpleTokenizer, bytes_to_unicode, default_bpe
from safetensors.torch import save_file

IMAGES, TEXTS = 3, 4
TOLERANCE = 1e-5


def randomise(model, seed):
    """Nothing starts at 0 or 1: every parameter matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if not value.is_floating_point() or name.endswith("attn_mask"):
            continue
        new = torch.randn(value.shape, generator=draw)
        if name.endswith(("logit_scale", "logit_bias")):
            new = 1 + 0.3 * new
        elif value.ndim <= 1:
            new = 0.2 * new + (0.8 if "norm" in name and name.endswith("weight") or "ln_" in name and name.endswith("weight") or "gamma" in name else 0.0)
        else:
            new = new * max(1, value[0].numel()) ** -0.5
        value.copy_(new)


def sizes(draw):
    heads = draw.choice([1, 2, 3, 4])
    return {
        "hidden_size": heads * draw.choice([8, 12, 16]),
        "num_attention_heads": heads,
        "intermediate_size": draw.randint(5, 30) * 4,
        "num_hidden_layers": draw.randint(1, 3),
        "hidden_act": draw.choice(["gelu", "quick_gelu", "gelu_pytorch_tanh"]),
        "layer_norm_eps": draw.choice([1e-5, 1e-6]),
    }


def transformers_model(draw, kind):
    patch = draw.choice([4, 8])
    vocabulary, context = draw.randint(20, 200), draw.randint(4, 20)
    vision = sizes(draw) | {"patch_size": patch, "image_size": patch * draw.randint(2, 5)}
    text = sizes(draw) | {"vocab_size": vocabulary, "max_position_embeddings": context}
    if kind == "clip":
        end = draw.choice([2, vocabulary - 1, draw.randint(3, vocabulary - 1)])
        text |= {"eos_token_id": end, "bos_token_id": 0, "pad_token_id": 1}
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=draw.randint(3, 12) * 4)
        return transformers.CLIPModel(config), vision["image_size"], context, vocabulary, end
    text |= {"projection_size": vision["hidden_size"], "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    return transformers.SiglipModel(config), vision["image_size"], context, vocabulary, None


def record_transformers(folder, draw, kind, seed):
    model, size, context, vocabulary, end = transformers_model(draw, kind)
    model.eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    images = torch.randn(IMAGES, 3, size, size)
    ids = torch.randint(3, vocabulary, (TEXTS, context))
    if end is not None and end != 2:
        ids[ids == end] = 3
        ids[torch.arange(TEXTS), torch.randint(1, context, (TEXTS,))] = end
    model.double()
    outputs = model(input_ids=ids, pixel_values=images.double())
    return {
        "input": images,
        "input_ids": ids,
        "image_embeds": outputs.image_embeds,
        "text_embeds": outputs.text_embeds,
        "logits_per_image": outputs.logits_per_image,
    }


def record_open_clip(folder, draw, seed):
    patch, context, vocabulary = draw.choice([4, 8]), draw.randint(4, 20), draw.randint(20, 200)
    head, heads = draw.choice([8, 16]), draw.randint(1, 4)
    sigmoid = draw.random() < 0.4
    tower = lambda: {
        "layers": draw.randint(1, 3),
        "mlp_ratio": draw.choice([2.0, 2.5, 4.0]),
        "ls_init_value": draw.choice([None, None, 0.5]),
        "norm_kwargs": draw.choice([{}, {"eps": 1e-6}]),
    }
    text_heads = draw.randint(1, 4)
    vision = tower() | {
        "image_size": patch * draw.randint(2, 5),
        "patch_size": patch,
        "width": head * heads,
        "head_width": head,
        "pool_type": draw.choice(["tok", "tok", "avg"]),
        "final_ln_after_pool": draw.random() < 0.3,
    }
    text = tower() | {
        "context_length": context,
        "vocab_size": vocabulary,
        "width": text_heads * draw.choice([8, 12]),
        "heads": text_heads,
        "no_causal_mask": draw.random() < 0.4,
        "pool_type": draw.choice(["argmax", "argmax", "last", "first"]),
        "proj_bias": draw.random() < 0.4,
    }
    custom = draw.random() < 0.6
    cfg = {"embed_dim": draw.randint(3, 12) * 4, "vision_cfg": vision, "text_cfg": text, "quick_gelu": draw.random() < 0.4}
    if sigmoid:
        cfg["init_logit_bias"] = -10
    cls = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    model = cls(**json.loads(json.dumps(cfg))).eval()
    randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": cfg | {"custom_text": custom}, "preprocess_cfg": {}}))
    images = torch.randn(IMAGES, 3, vision["image_size"], vision["image_size"])
    ids = torch.randint(0, vocabulary, (TEXTS, context))
    model.double()
    image = model.encode_image(images.double(), normalize=True)
    words = model.encode_text(ids, normalize=True)
    logits = model.logit_scale.exp() * image @ words.T
    if model.logit_bias is not None:
        logits = logits + model.logit_bias
    return {"input": images, "input_ids": ids, "image_embeds": image, "text_embeds": words, "logits_per_image": logits}


def clip_tokenizer(folder):
    """transformers' tokeniser with OpenAI's vocabulary."""
    merges = gzip.open(default_bpe()).read().decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    words = list(bytes_to_unicode().values())
    words += [word + "</w>" for word in words] + ["".join(merge.split()) for merge in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    pairs = [tuple(merge.split()) for merge in merges]
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=pairs)
    tokenizer.save_pretrained(folder)
    return tokenizer


SCRIPTS = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x963), (0xE01, 0xE3A),
           (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2100, 0x214F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x25FF),
           (0x3041, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF01, 0xFFEE), (0x1F300, 0x1F64F), (0x1D400, 0x1D7FF)]
WORDS = ["a photo of", "DON'T", "it's", "&amp;", "&lt;b&gt;", "&eacute;", "&#8364;", "&#x1F600;", "&notit;", "&copy", "schÃ¶n", "â€œhiâ€\x9d",
         "cafÃ©", "Ã la mode", "\u201cquoted\u201d", "ﬁne", "ＦＵＬＬ", "<start_of_text>", "<|endoftext|>", "e\u0301", "\u200b", "\t", "\n", "İ", "ΣΑΣ",
         "123", "3.14", "...", "Ñandú", "Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "\x1b[31mred\x1b[0m", "\x85", "\ufeff"]


def random_text(draw):
    text = ""
    for _ in range(draw.randint(1, 8)):
        if draw.random() < 0.4:
            text += draw.choice(WORDS)
        else:
            low, high = draw.choice(SCRIPTS)
            text += "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 6)))
        text += draw.choice(["", " ", " ", "  "])
    # Characters that only newer tables than Python's know.
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs", "Co"))


def record_texts(folder, draw, count):
    folder.mkdir(parents=True, exist_ok=True)
    theirs, simple = clip_tokenizer(folder), SimpleTokenizer()
    texts = [random_text(draw) for _ in range(count)]
    options = {"padding": "max_length", "truncation": True, "max_length": 77}
    recorded = [
        {"text": text, "open_clip": simple([text])[0].tolist(), "transformers": theirs(text, **options)["input_ids"]} for text in texts
    ]
    (folder / "texts.json").write_text(json.dumps(recorded))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the recordings are written")
    parser.add_argument("--count", type=int, default=10, help="models of each kind")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for kind in ["clip", "siglip", "open_clip"]:
        for index in range(arguments.count):
            seed = arguments.seed + index
            draw = random.Random(f"{kind} {seed}")
            torch.manual_seed(seed)
            folder = arguments.folder / f"{kind}_{seed}"
            with torch.no_grad():
                io = record_open_clip(folder, draw, seed) if kind == "open_clip" else record_transformers(folder, draw, kind, seed)
            arrays = {name: value.to(torch.int32 if name == "input_ids" else torch.float32).contiguous() for name, value in io.items()}
            save_file(arrays, folder / "io.safetensors")
            largest = max(1.0, io["logits_per_image"].abs().max().item())
            tolerance = {"image_embeds": TOLERANCE, "text_embeds": TOLERANCE, "logits_per_image": TOLERANCE * largest}
            (folder / "meta.json").write_text(json.dumps({"tolerance": tolerance}))
    record_texts(arguments.folder / "texts", random.Random(arguments.seed), arguments.texts)


if __name__ == "__main__":
    main()
