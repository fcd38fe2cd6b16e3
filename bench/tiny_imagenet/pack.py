#!/usr/bin/env python3
"""Packs Tiny-ImageNet-200 as WebP in tar shards, which `vit train --data OUT` reads with words as the names of the classes.

    git clone https://github.com/seshuad/IMagenet
    bench/tiny_imagenet/pack.py IMagenet tiny-imagenet

The clone may be bare. OUT gets train-000.tar ... with the 100,000 training images in a fixed random order, val-000.tar ... with
the 10,000 validation images, and SHA256SUMS. The images of the test set have no labels and are left out. The input is what it
should be if git's hash of the folder is the one below; the shards have the bytes of shards.sha256 with the version of Pillow
named there (`sha256sum --check` in OUT). Needs git and Pillow.
"""

import argparse
import hashlib
import io
import random
import subprocess
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

FOLDER = "tiny-imagenet-200"
TREE = "9fdf5ec8b9a0a19f38afe2c2014a3ca3cfa438ce"
SHARD_BYTES = 20_000_000


def git(clone, *arguments):
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True, text=True).stdout


class Blobs:
    """Reads files of the clone's last commit."""

    def __init__(self, clone):
        self.process = subprocess.Popen(
            ["git", "-C", clone, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def read(self, name):
        self.process.stdin.write(f"HEAD:{FOLDER}/{name}\n".encode())
        self.process.stdin.flush()
        header = self.process.stdout.readline().split()
        if header[-1] == b"missing":
            sys.exit(f"{FOLDER}/{name}: not in the clone; fetch all of it")
        content = self.process.stdout.read(int(header[2]))
        self.process.stdout.read(1)
        return content


def class_names(blobs):
    """The first words of every class; where two classes share them, the next ones, too."""
    wnids = blobs.read("wnids.txt").decode().split()
    lines = (line.split("\t") for line in blobs.read("words.txt").decode().splitlines() if line)
    words = {wnid: [word.strip().replace("/", " or ") for word in text.split(",")] for wnid, text in lines}
    first = [words[wnid][0] for wnid in wnids]
    names = {}
    for wnid in wnids:
        name = words[wnid][0]
        if first.count(name) > 1:
            name += f" ({words[wnid][1] if len(words[wnid]) > 1 else wnid})"
        names[wnid] = name
    if len(set(names.values())) != len(wnids):
        sys.exit("two classes have the same words")
    return names


def samples(blobs, clone, names):
    """The names of the training and of the validation images, each with its class."""
    listed = git(clone, "ls-tree", "-r", "--name-only", f"HEAD:{FOLDER}/train").splitlines()
    train = [(f"train/{path}", path.split("/")[0]) for path in listed if path.endswith(".JPEG")]
    annotations = blobs.read("val/val_annotations.txt").decode().splitlines()
    val = [(f"val/images/{line.split()[0]}", line.split()[1]) for line in annotations]
    shards = {"train": sorted(train), "val": sorted(val)}
    for part, images in shards.items():
        random.Random(0).shuffle(images)
        shards[part] = [(path, f"{names[wnid]}/{Path(path).stem}.webp") for path, wnid in images]
    return shards


def encode(quality, jpeg):
    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).convert("RGB").save(out, "WEBP", quality=quality, method=4)
    return out.getvalue()


def batches(items, size):
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Shards:
    """Tar files of limited size."""

    def __init__(self, out, part):
        self.out, self.part, self.names, self.tar, self.bytes = out, part, [], None, 0

    def add(self, name, content):
        member = 512 + -(-len(content) // 512) * 512
        # A tar file ends at a multiple of 10,240 bytes.
        if self.tar is None or self.bytes + member + 10_240 > SHARD_BYTES:
            self.close()
            self.names.append(f"{self.part}-{len(self.names):03}.tar")
            self.tar = tarfile.open(self.out / self.names[-1], "w", format=tarfile.USTAR_FORMAT)
            self.bytes = 0
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self.tar.addfile(info, io.BytesIO(content))
        self.bytes += member

    def close(self):
        if self.tar is not None:
            self.tar.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", help="a clone of github.com/seshuad/IMagenet, bare or not")
    parser.add_argument("out", type=Path, help="the folder for the shards")
    parser.add_argument("--quality", type=int, default=85, help="of WebP [default: 85]")
    parser.add_argument("--limit", type=int, help="pack only so many images of each part, to try it")
    parser.add_argument("--jobs", type=int, help="processes [default: one per core]")
    arguments = parser.parse_args()

    tree = git(arguments.clone, "rev-parse", f"HEAD:{FOLDER}").strip()
    if tree != TREE:
        sys.exit(f"{arguments.clone}: {FOLDER} has git's hash {tree}, expected {TREE}; clone it again")
    blobs = Blobs(arguments.clone)
    parts = samples(blobs, arguments.clone, class_names(blobs))
    arguments.out.mkdir(parents=True, exist_ok=True)
    sums = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for part, images in parts.items():
            shards, done = Shards(arguments.out, part), 0
            images = images[: arguments.limit]
            for batch in batches(images, 2000):
                jpegs = [blobs.read(path) for path, _ in batch]
                encoded = pool.map(partial(encode, arguments.quality), jpegs, chunksize=100)
                for (_, name), content in zip(batch, encoded):
                    shards.add(name, content)
                done += len(batch)
                print(f"\r{part}: {done} of {len(images)}", end="", file=sys.stderr, flush=True)
            shards.close()
            print(file=sys.stderr)
            sums += [(hashlib.sha256((arguments.out / name).read_bytes()).hexdigest(), name) for name in shards.names]
    (arguments.out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for digest, name in sums))
    total = sum((arguments.out / name).stat().st_size for _, name in sums)
    print(f"{arguments.out}: {len(sums)} shards, {total / 1e6:.1f} MB, Pillow {Image.__version__}")


if __name__ == "__main__":
    main()
