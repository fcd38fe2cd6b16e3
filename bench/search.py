"""Search against FAISS, and an index whose writer is killed: called by bench/search.

`speed`: single queries of random clustered vectors by `vit bench search` and by FAISS's exact indexes, in turns, and the best
ten of each query against f64 over the stored vectors. The index is written here with NumPy, in the documented format.
`kills`: images cut from photographs are indexed by a process that is killed again and again; the index must end with the bytes
of an undisturbed one, every image once. The exit status is 1 if something does not hold.
"""
import argparse, json, os, random, signal, statistics, subprocess, sys, tempfile, time

import numpy as np

VIT = os.path.abspath(os.environ["VIT"])
TOP = 10


def vit(*arguments):
    return subprocess.run([VIT, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def clustered(count, dim, generator):
    centres = generator.standard_normal((64, dim), dtype=np.float32)
    vectors = generator.standard_normal((count, dim), dtype=np.float32)
    vectors += centres[generator.integers(0, len(centres), count)]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_index(folder, vectors, dtype):
    os.makedirs(folder)
    rows, dim = vectors.shape
    stored = vectors.astype(np.float16)
    if dtype == "int8":
        stored = np.round(vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127).astype(np.int8)
        scales = (1 / np.linalg.norm(stored.astype(np.float64), axis=1)).astype(np.float32)
        np.save(f"{folder}/000001.scales.npy", scales)
    np.save(f"{folder}/000001.npy", stored)
    with open(f"{folder}/000001.jsonl", "w") as lines:
        for row in range(rows):
            print(json.dumps({"file": f"{row:06}", "size": 0, "modified": 0, "hash": f"{row:032x}"}), file=lines)
    manifest = {"version": 1, "folder": "/nowhere", "model": {"path": "none", "fingerprint": ""}, "dim": dim, "dtype": dtype,
                "segments": [{"name": "000001", "rows": rows}], "next_segment": 2}
    with open(f"{folder}/index.json", "w") as file:
        json.dump(manifest, file)
    exact = stored.astype(np.float64)
    return exact * scales[:, None].astype(np.float64) if dtype == "int8" else exact


def check(folder, index, exact, queries):
    """How many of the best of every query `vit` finds, against f64 over the stored vectors."""
    found = 0
    for number, query in enumerate(queries):
        path = f"{folder}/query{number}.npy"
        np.save(path, query)
        hits = json.loads(vit("search", index, "--vector", path, "--top", TOP, "--json"))["hits"]
        scores = exact @ query.astype(np.float64)
        best = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:TOP]
        found += [int(os.path.basename(hit["file"])) for hit in hits] == best
    return found


def peers(vectors, threads):
    import faiss
    faiss.omp_set_num_threads(threads)
    rows, dim = vectors.shape

    def flat(vectors):
        index = faiss.IndexFlatIP(dim)
        index.add(vectors)
        return index

    def quantised(kind):
        index = faiss.IndexScalarQuantizer(dim, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        return index

    kinds = faiss.ScalarQuantizer
    found = {"faiss flat f32": flat(vectors), "faiss SQ f16": quantised(kinds.QT_fp16), "faiss SQ int8": quantised(kinds.QT_8bit)}
    if threads > 1:
        # A single query runs on one thread unless the vectors are divided.
        shards = faiss.IndexShards(dim, True, False)
        for part in np.array_split(vectors, threads):
            shards.add_shard(flat(np.ascontiguousarray(part)))
        found[f"faiss flat f32, {threads} shards"] = shards
    return faiss.__version__, found


def speed(arguments):
    generator = np.random.default_rng(1)
    vectors = clustered(arguments.vectors, arguments.dim, generator)
    queries = clustered(200, arguments.dim, generator)
    version, indexes = peers(vectors, arguments.threads)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        times = {}
        for dtype in ("f16", "int8"):
            exact = write_index(f"{folder}/{dtype}", vectors, dtype)
            found = check(folder, f"{folder}/{dtype}", exact, queries[:20])
            wrong += found < 20
            print(f"vit {dtype}: the best {TOP} of {found} of 20 queries are those of f64 over the stored vectors", flush=True)
        for _ in range(arguments.rounds):
            for name, index in indexes.items():
                index.search(queries[:1], TOP)
                taken, start = [], time.perf_counter()
                while time.perf_counter() - start < arguments.seconds:
                    begin = time.perf_counter()
                    index.search(queries[len(taken) % len(queries)][None], TOP)
                    taken.append(time.perf_counter() - begin)
                times.setdefault(name, []).append(1e3 * statistics.median(taken))
            for dtype in ("f16", "int8"):
                out = vit("bench", "search", f"{folder}/{dtype}", "--threads", arguments.threads, "--top", TOP,
                          "--seconds", arguments.seconds, "--json")
                times.setdefault(f"vit {dtype}", []).append(json.loads(out)["median_ms"])
    print(f"\n{arguments.vectors} vectors of {arguments.dim}, {arguments.threads} threads, FAISS {version}, "
          f"median of {arguments.rounds} rounds\n{'':<28}{'ms':>8}{'GB/s':>8}")
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, ms in sorted(medians.items(), key=lambda item: item[1]):
        size = 4 if "f32" in name else 2 if "f16" in name else 1
        print(f"{name:<28}{ms:>8.2f}{arguments.vectors * arguments.dim * size / ms / 1e6:>8.1f}")
    ahead = min(ms for name, ms in medians.items() if "faiss" in name and "int8" not in name) / medians["vit f16"]
    print(f"f16 is {ahead:.2f} times as fast as the fastest of FAISS's indexes in f32 or f16")
    return wrong > 0 or ahead < 1


def cut_images(folder, photos, count, choose):
    from PIL import Image
    files = sorted(name for name in os.listdir(photos) if name.lower().endswith((".jpg", ".jpeg", ".png")))
    images = [Image.open(f"{photos}/{name}").convert("RGB") for name in files]
    for number in range(count):
        image = choose.choice(images)
        side = choose.randint(64, min(image.size))
        x, y = choose.randint(0, image.width - side), choose.randint(0, image.height - side)
        os.makedirs(f"{folder}/{number // 1000}", exist_ok=True)
        image.crop((x, y, x + side, y + side)).resize((64, 64)).save(f"{folder}/{number // 1000}/{number:05}.jpg", quality=85)


def exported(index, folder):
    """Names and vectors, sorted by name."""
    vit("search", "export", index, f"{folder}/vectors.npy")
    names = open(f"{folder}/vectors.files.txt").read().splitlines()
    vectors = np.load(f"{folder}/vectors.npy")
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[row] for row in order], vectors[order]


def kills(arguments):
    choose = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        photos, index, whole = f"{folder}/photos", f"{folder}/index", f"{folder}/whole"
        cut_images(photos, arguments.photos, arguments.images, choose)
        command = [VIT, "search", "index", photos, "--out", index, "--json"]
        done, seen = 0, 0
        while done < arguments.kills:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(choose.uniform(*arguments.delay))
            if process.poll() is not None:
                print(f"complete after {done} kills; use smaller --delay")
                return True
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            names = exported(index, folder)[0] if os.path.exists(f"{index}/index.json") else []
            if len(set(names)) != len(names) or len(names) < seen:
                print(f"after kill {done}: {len(names)} rows of {len(set(names))} images, {seen} before")
                return True
            seen = len(names)
            print(f"kill {done:>2}: {seen:>6} images", flush=True)
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"then: {report['embedded']} embedded, {report['unchanged']} unchanged, {report['images']} in all")
        again = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        subprocess.run([VIT, "search", "index", photos, "--out", whole], check=True, capture_output=True)
        (names, vectors), (expected_names, expected) = exported(index, folder), exported(whole, folder)
        good = {
            "every image is in the index, once": len(names) == len(set(names)) == arguments.images,
            "nothing is embedded twice": report["embedded"] + seen == arguments.images and again["embedded"] == 0,
            "names and vectors are those of an undisturbed index": names == expected_names and (vectors == expected).all(),
            "no other files are left": sum(name.endswith(".npy") for name in os.listdir(index)) ==
                len(json.load(open(f"{index}/index.json"))["segments"]),
        }
        for claim, holds in good.items():
            print(f"{'holds' if holds else 'FAILS'}  {claim}")
        return not all(good.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("speed")
    part.add_argument("--vectors", type=int, default=100_000)
    part.add_argument("--dim", type=int, default=512)
    part.add_argument("--threads", type=int, default=2)
    part.add_argument("--rounds", type=int, default=5)
    part.add_argument("--seconds", type=float, default=1)
    part = parts.add_parser("kills")
    part.add_argument("--photos", required=True, help="a folder of photographs to cut images from")
    part.add_argument("--images", type=int, default=10_000)
    part.add_argument("--kills", type=int, default=10)
    part.add_argument("--delay", type=float, nargs=2, default=[0.4, 1.6], help="seconds before a kill, at least and at most")
    part.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(speed(arguments) if arguments.part == "speed" else kills(arguments))


main()
