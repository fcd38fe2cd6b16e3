"""`vit serve` and its peers under the same load, in turns; see README.md one folder up."""

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import re
import statistics
import struct
import subprocess
from pathlib import Path

import checkpoint
from load import CACHE, CORES, ROOT, VIT, Server, bench, load, reserve_load_cores, table

USUAL = ROOT / "crates" / "data" / "tests" / "fixtures" / "preprocess" / "usual.jpg"
JPEG = "image/jpeg"


def arguments():
    parser = argparse.ArgumentParser(prog="bench/serve", description=__doc__)
    parser.add_argument("stage", nargs="?", default="compare", choices=["compare", "tune", "vit", "lone", "gpu"])
    parser.add_argument("--models", default="Ti/16,B/16", help="comma-separated (%(default)s)")
    parser.add_argument("--peers", default="LitServe,BentoML", help="comma-separated (%(default)s)")
    parser.add_argument("--one-process", action="store_true", help="peers with one worker, as they start by default")
    parser.add_argument("--connections", default="1,8,64", help="comma-separated (%(default)s)")
    parser.add_argument("--images", type=Path, help="a folder of 500x375 JPEGs, of which the one of median size is sent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of every measurement (%(default)s)")
    parser.add_argument("--device", default="cuda", help="of the stage gpu (%(default)s)")
    parser.add_argument("--precisions", default="bf16,fp8", help="of the stage gpu (%(default)s)")
    parser.add_argument("--per-request", default="1,8", help="images in a request of the stage gpu (%(default)s)")
    parser.add_argument("--load-cores", type=int, default=2, help="reserved for the load in the stage gpu (%(default)s)")
    parser.add_argument("--options", default="", help="further options of vit serve, as one string")
    return parser.parse_args()


def jpeg_size(path):
    """Width and height in the frame header of a JPEG file."""
    data, at = path.read_bytes(), 2
    while at + 9 < len(data):
        marker, length = data[at + 1], struct.unpack(">H", data[at + 2 : at + 4])[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None


def choose_image(folder):
    """The image of all requests."""
    if folder is None:
        return USUAL
    files = sorted(folder.rglob("*.[jJ][pP]*[gG]"), key=lambda path: path.stat().st_size)
    files = [path for path in files if jpeg_size(path) == (500, 375)]
    if not files:
        raise SystemExit(f"{folder}: there is no JPEG of 500x375 pixels")
    return files[len(files) // 2]


def several(image, count):
    """A request body with `count` copies of the image, and its content type."""
    if count == 1:
        return image, JPEG
    boundary = "bench-serve"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{image.name}"\r\nContent-Type: {JPEG}\r\n\r\n'
    body = CACHE / "serving" / f"{count}-images"
    body.parent.mkdir(parents=True, exist_ok=True)
    body.write_bytes((head.encode() + image.read_bytes() + b"\r\n") * count + f"--{boundary}--\r\n".encode())
    return body, f"multipart/form-data; boundary={boundary}"


def decoded_by(cores, image):
    """Images/s that the cores decode and preprocess at the same time, each in a process of its own."""
    command = [VIT, "bench", "data", str(image), "--seconds", "3", "--json"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    return sum(json.loads(run.communicate()[0])["images_per_s"] for run in runs)


class Contestant:
    """A server with its settings, and what was measured of it."""

    def __init__(self, name, path, form, start, note):
        self.name, self.path, self.form, self.start, self.note = name, path, form, start, note
        self.loads = {}
        self.open_loop = []
        self.memory = 0
        self.top = 0.0

    def median(self, connections, what):
        return statistics.median(getattr(run, what) for run in self.loads[connections])


def measure(contestant, image, connections, seconds):
    """One turn: every number of connections, then 70% of the top load in an open loop."""
    server = contestant.start()
    try:
        url = server.url(contestant.path)
        load(url, image, JPEG, max(connections), 3, form=contestant.form)
        for n in connections:
            run = load(url, image, JPEG, n, seconds, form=contestant.form)
            contestant.loads.setdefault(n, []).append(run)
        contestant.memory = max(contestant.memory, server.memory())
        contestant.top = max(contestant.median(n, "rate") for n in connections)
        if contestant.top > 0:
            run = load(url, image, JPEG, 256, 2 * seconds, 0.7 * contestant.top, form=contestant.form)
            contestant.open_loop.append(run)
    finally:
        server.stop()


def vit_server(variant, folder, options):
    command = [VIT, "serve", "--model", f"model={folder}", "--bind", "127.0.0.1:{port}", *options]
    return lambda: Server("vit", command, "/health/ready")


def milliseconds(seconds):
    return f"{1e3 * seconds:.1f}"


def report(variant, contestants, connections):
    rows = []
    for c in contestants:
        for n in connections:
            failed = sum(run.failed for run in c.loads[n])
            p50, p99 = (milliseconds(c.median(n, p)) for p in ("p50", "p99"))
            cpu = f"{100 * c.median(n, 'cpu'):.0f}%"
            rows.append((c.name, n, f"{c.median(n, 'rate'):.1f}", p50, p99, failed, cpu))
    columns = ["server", "connections", "requests/s", "p50 ms", "p99 ms", "errors", "load generator"]
    table(f"{variant}: closed loop, medians of the rounds", columns, rows)
    rows = []
    for c in contestants:
        if not c.open_loop:
            continue
        run = sorted(c.open_loop, key=lambda run: run.p99)[len(c.open_loop) // 2]
        failed = sum(run.failed for run in c.open_loop)
        rate = f"{0.7 * c.top:.1f}"
        rows.append((c.name, rate, milliseconds(run.p50), milliseconds(run.p99), failed, f"{c.memory / 1e6:.0f}"))
    columns = ["server", "requests/s", "p50 ms", "p99 ms", "errors", "memory MB"]
    table(f"{variant}: open loop at 70% of one's own top load", columns, rows)


def bounds(variant, image, seconds, options):
    """Milliseconds of decoding on one core and of a lone inference, and images/s that decoding and inference allow."""
    decode = bench("data", image, "--seconds", seconds)["images_per_s"]
    infer = lambda batch: bench("infer", "--model", variant, "--batch", batch, "--seconds", seconds, *options)
    rates = {batch: infer(batch)["images_per_s"] for batch in (1, 8, 16)}
    return decode, rates


def verdict(variant, ours, others, decode, rates, connections):
    """The aims, each with what was measured."""
    infer = max(rates.values())
    bound = 1 / (1 / infer + 1 / (CORES * decode))
    lone = 1e3 / decode + 1e3 / rates[1]
    rows = [("decode, one core", f"{decode:.0f} images/s", ""), ("vit bench infer", f"{infer:.1f} images/s", "")]
    rows.append(("bound of both on all cores", f"{bound:.1f} images/s", ""))
    top, most = ours.median(max(connections), "rate"), max(connections)
    rows.append((f"share of the bound at {most} connections", f"{100 * top / bound:.1f}%", "90%"))
    if 1 in connections:
        extra = 1e3 * ours.median(1, "p50") - lone
        rows.append((f"a lone request over decode + infer ({lone:.1f} ms)", f"{extra:+.2f} ms", "1 ms"))
    if others:
        best = max(c.median(most, "rate") for c in others)
        aim = {"Ti/16": "2.0x", "B/16": "1.2x"}[variant]
        rows.append((f"throughput over the best peer at {most}", f"{top / best:.2f}x", aim))
        p99 = lambda c: statistics.median(run.p99 for run in c.open_loop)
        rows.append(("p99 at 70% load over the best peer", f"{p99(ours) / min(map(p99, others)):.2f}x", "0.60x"))
    table(f"{variant}: against the aims", ["", "measured", "aim"], rows)


def compare(a, variants, connections, image, with_peers):
    for variant in variants:
        folder = checkpoint.write(variant, CACHE / "serving" / variant.replace("/", ""))
        contestants = []
        if with_peers:
            import peers

            peers.export(variant, folder)
            for peer in peers.chosen(a.peers):
                setting = peers.one_process(peer) if a.one_process else peers.best_setting(peer, variant)
                start = lambda peer=peer, setting=setting: peer.start(variant, folder, setting)
                contestants.append(Contestant(peer.name, peer.path, peer.form, start, str(setting)))
                print(f"{variant} {peer.name}: {setting}")
        options = a.options.split()
        ours = Contestant("vit", "/v1/classify", None, vit_server(variant, folder, options), "")
        for _ in range(a.rounds):
            for contestant in [*contestants, ours]:
                measure(contestant, image, connections, a.seconds)
        decode, rates = bounds(variant, image, min(a.seconds, 5), ["--threads", CORES])
        report(variant, [*contestants, ours], connections)
        verdict(variant, ours, contestants, decode, rates, connections)


def lone(a, variants, image):
    """The latency of one request at a time, in turns with what it consists of, so that all have the same machine."""
    for variant in variants:
        folder = checkpoint.write(variant, CACHE / "serving" / variant.replace("/", ""))
        server = vit_server(variant, folder, a.options.split())()
        parts = []
        try:
            url = server.url("/v1/classify")
            load(url, image, JPEG, 1, 2)
            for _ in range(a.rounds):
                decode = 1e3 / bench("data", image, "--seconds", a.seconds)["images_per_s"]
                infer = bench("infer", "--model", variant, "--batch", 1, "--seconds", a.seconds, "--threads", CORES)["median_ms"]
                parts.append((decode, infer, 1e3 * load(url, image, JPEG, 1, a.seconds).p50))
        finally:
            server.stop()
        rows = [(*(f"{part:.2f}" for part in round), f"{round[2] - round[0] - round[1]:+.2f}") for round in parts]
        median = statistics.median(total - decode - infer for decode, infer, total in parts)
        rows.append(("", "", "median", f"{median:+.2f}"))
        table(f"{variant}: a lone request, ms", ["decode", "infer", "p50", "p50 - decode - infer"], rows)


def tune(a, variants, image):
    """Tries every setting of the peers at the largest number of connections and keeps the best."""
    import peers

    file = peers.tuned_file()
    kept = json.loads(file.read_text()) if file.exists() else {}
    most = max(map(int, a.connections.split(",")))
    for variant in variants:
        folder = checkpoint.write(variant, CACHE / "serving" / variant.replace("/", ""))
        peers.export(variant, folder)
        for peer in peers.chosen(a.peers):
            rows, best = [], 0.0
            for setting in peers.grid(peer):
                try:
                    server = peer.start(variant, folder, setting)
                except SystemExit as error:
                    rows.append((str(setting), "does not start", "", ""))
                    print(str(error)[-600:])
                    continue
                try:
                    load(server.url(peer.path), image, JPEG, most, 3, form=peer.form)
                    run = load(server.url(peer.path), image, JPEG, most, a.seconds, form=peer.form)
                finally:
                    server.stop()
                rows.append((str(setting), f"{run.rate:.1f}", milliseconds(run.p99), run.failed))
                if run.rate > best:
                    best, kept[f"{peer.name} {variant}"] = run.rate, dataclasses.asdict(setting)
            table(f"{peer.name}, {variant}, {most} connections", ["setting", "requests/s", "p99 ms", "errors"], rows)
            file.write_text(json.dumps(kept, indent=2))


def gpu(a, variants, connections, image):
    """Only vit, on a GPU, against the smaller of what the server's cores decode and what the GPU infers."""
    cores = reserve_load_cores(a.load_cores)
    decode = decoded_by(cores, image)
    for variant in variants:
        folder = checkpoint.write(variant, CACHE / "serving" / variant.replace("/", ""))
        for precision in a.precisions.split(","):
            options = ["--device", a.device, "--precision", precision, *a.options.split()]
            infer = {
                batch: bench("infer", "--model", variant, "--batch", batch, "--seconds", 2, *options[:4])["images_per_s"]
                for batch in (8, 32, 64, 128)
            }
            bound = min(decode, max(infer.values()))
            server = vit_server(variant, folder, options)()
            rows = []
            try:
                url = server.url("/v1/classify")
                load(url, image, JPEG, max(connections), 3)
                for per_request in map(int, a.per_request.split(",")):
                    body, kind = several(image, per_request)
                    for n in connections:
                        run = load(url, body, kind, n, a.seconds)
                        rate = per_request * run.rate
                        shares = f"{100 * rate / bound:.1f}%", f"{100 * run.cpu:.0f}%"
                        rows.append((n, per_request, f"{rate:.0f}", milliseconds(run.p50), milliseconds(run.p99), run.failed, *shares))
            finally:
                server.stop()
                print(server.output()[-2000:])
            infers = ", ".join(f"{rate:.0f} at {batch}" for batch, rate in infer.items())
            title = f"{variant} {precision}: {cores} cores decode {decode:.0f} images/s, the GPU infers {infers}"
            columns = ["connections", "images/request", "images/s", "p50 ms", "p99 ms", "errors", "of the bound", "load generator"]
            table(title, columns, rows)


def main():
    a = arguments()
    variants = a.models.split(",")
    connections = sorted(map(int, a.connections.split(",")))
    image = choose_image(a.images)
    packages = ["litserve", "bentoml", "openvino", "torch", "pillow"] if a.stage in ("compare", "tune") else []
    versions = [f"{p} {importlib.metadata.version(p)}" for p in packages]
    own = subprocess.run([VIT, "--version"], capture_output=True, text=True).stdout.strip() if a.stage != "tune" else ""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine = f"{cpu[1] if cpu else platform.machine()}, {CORES} cores"
    print(f"{machine}; {', '.join([own, *versions])}; {image.name}, {image.stat().st_size // 1000} kB")
    if a.stage == "tune":
        tune(a, variants, image)
    elif a.stage == "lone":
        lone(a, variants, image)
    elif a.stage == "gpu":
        gpu(a, variants, connections, image)
    else:
        compare(a, variants, connections, image, a.stage == "compare")


main()
