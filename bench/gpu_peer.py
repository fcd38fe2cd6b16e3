"""PyTorch's compiler on the work of `bench/gpu`: a plain ViT, or a model of torchvision or timm, in bf16 autocast with fused AdamW, medians of 30 by events.

Arguments are jobs such as train:B:256, mae:B:256, mae2:B:256 (a decoder of two blocks), infer:L:256 or train:resnet50:256; prints
one line each.
"""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, dim, depth, heads):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, 197, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class MaskedAutoencoder(nn.Module):
    """He et al., 2022: the encoder sees a quarter of the patches; a decoder of width 512, published with 8 blocks, predicts the
    normalised pixels of the others. Returns the loss, and takes no labels."""

    def __init__(self, dim, depth, heads, decoder_depth):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("positions", torch.randn(1, 197, dim) * 0.02)
        self.blocks, self.norm = nn.Sequential(*[Block(dim, heads) for _ in range(depth)]), nn.LayerNorm(dim, eps=1e-6)
        self.embed, self.mask_token = nn.Linear(dim, 512), nn.Parameter(torch.zeros(1, 1, 512))
        self.register_buffer("decoder_positions", torch.randn(1, 197, 512) * 0.02)
        self.decoder, self.decoder_norm = nn.Sequential(*[Block(512, 16) for _ in range(decoder_depth)]), nn.LayerNorm(512, eps=1e-6)
        self.pixels = nn.Linear(512, 16 * 16 * 3)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions[:, 1:]
        b, n, d = x.shape
        order = torch.rand(b, n, device=x.device).argsort(1)
        places, kept = order.argsort(1), order[:, : n // 4]
        x = torch.gather(x, 1, kept[..., None].expand(-1, -1, d))
        x = torch.cat([(self.token + self.positions[:, :1]).expand(b, -1, -1), x], 1)
        x = self.embed(self.norm(self.blocks(x)))
        y = torch.cat([x[:, 1:], self.mask_token.expand(b, n - n // 4, -1)], 1)
        y = torch.gather(y, 1, places[..., None].expand(-1, -1, 512))
        y = self.decoder(torch.cat([x[:, :1], y], 1) + self.decoder_positions)
        y = self.pixels(self.decoder_norm(y))[:, 1:]
        target = images.reshape(b, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).reshape(b, n, -1)
        variance, mean = torch.var_mean(target, -1, keepdim=True)
        losses = ((y - (target - mean) / (variance + 1e-6).sqrt()) ** 2).mean(-1)
        masked = (places >= n // 4).float()
        return (losses * masked).sum() / masked.sum()


SIZES = {"Ti": (192, 12, 3), "B": (768, 12, 12), "L": (1024, 24, 16)}


def network(kind, size):
    """A ViT by size, or a model of torchvision or timm by name; the side of its images and their memory format, in which
    PyTorch runs torchvision's models fastest."""
    if size in SIZES and kind.startswith("mae"):
        return MaskedAutoencoder(*SIZES[size], int(kind[3:] or 8)).cuda(), 224, torch.contiguous_format
    if size in SIZES:
        return ViT(*SIZES[size]).cuda(), 224, torch.contiguous_format
    import torchvision

    if size in torchvision.models.list_models():
        layout = torch.channels_last
        return torchvision.models.get_model(size).cuda().to(memory_format=layout), 224, layout
    import timm

    net = timm.create_model(size, num_classes=1000)
    return net.cuda(), net.pretrained_cfg["input_size"][-1], torch.contiguous_format


def median(step, runs=30, warm=5):
    for _ in range(warm):
        step()
    times = []
    for _ in range(runs):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[runs // 2]


for job in sys.argv[1:]:
    kind, size, batch = job.split(":")
    began = time.time()
    torch._dynamo.reset()
    net, side, layout = network(kind, size)
    images = torch.randn(int(batch), 3, side, side, device="cuda").contiguous(memory_format=layout)
    if kind != "infer":
        labels = torch.randint(0, 1000, (int(batch),), device="cuda")
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
        compiled = torch.compile(net)

        def step():
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                y = compiled(images)
                loss = y if kind.startswith("mae") else F.cross_entropy(y, labels)
            loss.backward()
            optimiser.step()

    else:
        net.eval()
        compiled = torch.compile(net, mode="max-autotune" if batch == "1" else None)

        def step():
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                compiled(images)

    torch.cuda.reset_peak_memory_stats()
    time_ms, memory = median(step), torch.cuda.max_memory_allocated() / 2**30
    print(f"torch.compile {job}: {time_ms:.3f} ms, {memory:.2f} GiB ({time.time() - began:.0f} s)", flush=True)
