"""`vit serve` under overload, hostile clients, reloads and restarts; see README.md one folder up."""

import argparse
import asyncio
import collections
import json
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import checkpoint
from balancer import Balancer, Broken, read_message
from load import CACHE, ROOT, VIT, Server, load, table

IMAGES = sorted((ROOT / "examples" / "images").glob("*.jpg"))
FIXTURES = ROOT / "crates" / "data" / "tests" / "fixtures" / "preprocess"
USUAL = FIXTURES / "usual.jpg"
BAD_LOG = ("panicked", "this is a bug")

parser = argparse.ArgumentParser(prog="bench/serve-soak", description=__doc__)
parser.add_argument("--stages", default="overload,mixed,reload,restart", help="comma-separated (%(default)s)")
parser.add_argument("--minutes", type=float, default=10, help="of the mixed load (%(default)s)")
parser.add_argument("--seconds", type=float, default=60, help="of the overload (%(default)s)")
parser.add_argument("--model", default="Ti/16", help="of the overload, with random weights: Ti/16 or B/16")
parser.add_argument("--options", default="", help="further options of vit serve, as one string")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()
verdicts = []


def verdict(what, measured, aim, holds):
    verdicts.append((what, measured, aim, "yes" if holds else "NO"))
    print(f"  {what}: {measured} (aim: {aim})", flush=True)


def start(*models, options=()):
    named = [part for model in models for part in ("--model", model)]
    command = [VIT, "serve", *named, "--bind", "127.0.0.1:{port}", *arguments.options.split(), *options]
    return Server("vit", command, "/health/ready")


def clean_log(server, stage):
    found = [line for line in server.output().splitlines() if any(bad in line for bad in BAD_LOG)]
    verdict(f"{stage}: panics in the log", len(found), "0", not found)
    for line in found[:5]:
        print(f"    {line[:300]}")


class Memory(threading.Thread):
    """Samples the resident memory of a server every half second."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.samples, self.done = server, [], threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.5):
            self.samples.append(self.server.memory())

    def around(self, share):
        """The median in MB of the samples around this share of the time."""
        n = len(self.samples)
        width = max(n // 20, 1)
        middle = min(max(int(share * n), width), n - width)
        return statistics.median(self.samples[middle - width : middle + width]) / 1e6


# Overload ----------------------------------------------------------------------------------------------------------


def overload():
    folder = checkpoint.write(arguments.model, CACHE / "serving" / arguments.model.replace("/", ""))
    queue = 128
    server = start(f"model={folder}", options=["--queue", str(queue)])
    try:
        url = server.url("/v1/classify")
        load(url, USUAL, "image/jpeg", 64, 3)
        top = max(load(url, USUAL, "image/jpeg", 64, 10).rate for _ in range(2))
        model = json.loads(server.request("GET", "/v1/models")[2])["models"][0]
        batch_ms = 1e3 * model["max_batch"] / top
        allowed = model["max_delay_ms"] + 2 * batch_ms + 1e3 * queue / top
        memory = Memory(server)
        run = load(url, USUAL, "image/jpeg", 512, arguments.seconds, rate=3 * top)
        memory.done.set()
        accepted = 1e3 * run.p99
        verdict(f"{arguments.model}: images/s under three times the top load of {top:.1f}/s", f"{run.rate:.1f}", "95% of the top", run.rate >= 0.95 * top)
        bound = f"{allowed:.0f} ms = wait {model['max_delay_ms']:.0f} + 2 batches of {batch_ms:.0f} + queue of {queue}"
        verdict("p99 of accepted requests", f"{accepted:.0f} ms", bound, accepted <= allowed)
        others = {code: n for code, n in run.statuses.items() if code not in (200, 429)}
        verdict("statuses of the others", f"429: {run.statuses.get(429, 0)}, {others or 'no others'}, {run.errors or 'no errors'}", "429", not others and not run.errors)
        first, last = memory.around(0.2), memory.around(1)
        verdict("memory at a fifth and at the end", f"{first:.0f} and {last:.0f} MB", "flat (5%)", last <= 1.05 * first)
    finally:
        status = server.stop()
    clean_log(server, "overload")
    verdict("overload: exit status after SIGTERM", status, "0", status == 0)


# Mixed load --------------------------------------------------------------------------------------------------------


def png(width, height, rows=b""):
    """A PNG file in grey whose header says this size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def nested_multipart(depth):
    body, kind = b"deep", b"text/plain"
    for level in range(depth):
        mark = b"b%d" % level
        body = b"--%s\r\nContent-Type: %s\r\nContent-Disposition: form-data; name=image\r\n\r\n%s\r\n--%s--\r\n" % (mark, kind, body, mark)
        kind = b"multipart/form-data; boundary=" + mark
    return body, kind


def many_parts(count):
    part = b"--b\r\nContent-Disposition: form-data; name=image; filename=a.jpg\r\nContent-Type: image/jpeg\r\n\r\nx\r\n"
    return part * count + b"--b--\r\n", b"multipart/form-data; boundary=b"


def bombs():
    """Name, content type and body of requests that must be refused, or answered, without harm."""
    deep, deep_kind = nested_multipart(500)
    parts, parts_kind = many_parts(100_000)
    return [
        ("PNG of 100,000x100,000", b"image/png", png(100_000, 100_000)),
        ("PNG of 30,000x30,000, real", b"image/png", png(30_000, 30_000, bytes(30_001 * 30_000))),
        ("PNG of 6,000x6,000, real", b"image/png", png(6_000, 6_000, bytes(6_001 * 6_000))),
        ("multipart, 500 deep", deep_kind, deep),
        ("multipart, 100,000 parts", parts_kind, parts),
        ("JSON, 10 MB of brackets", b"application/json", b"[" * 10_000_000),
        ("JSON, 10 MB of one string", b"application/json", b'{"images": ["' + b"A" * 10_000_000 + b'"]}'),
        ("JSON, a million images", b"application/json", b'{"images": [' + b'"",' * 1_000_000 + b'""]}'),
        ("text as an image", b"image/jpeg", b"no image" * 1000),
        ("an empty body", b"image/jpeg", b""),
        ("a cut JPEG", b"image/jpeg", USUAL.read_bytes()[:9000]),
    ]


class Mixed:
    """Clients of every kind on one server; counts what they saw."""

    def __init__(self, server, expected):
        self.port, self.expected = server.port, expected
        self.counts = collections.Counter()
        self.wrong = []
        self.random = random.Random(arguments.seed)
        self.end = time.monotonic() + 60 * arguments.minutes
        self.bombs = bombs()

    async def exchange(self, kind, body, timeout=60):
        """The status and the body of one request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: " + kind)
            writer.write(b"\r\nContent-Length: %d\r\n\r\n" % len(body))
            try:
                writer.write(body)
                await writer.drain()
            except ConnectionError:
                pass
            head, answer = await asyncio.wait_for(read_message(reader), timeout) or (b"HTTP/1.1 000 closed", b"")
            return int(head.split(b" ", 2)[1]), answer
        finally:
            writer.close()

    async def good(self):
        """Answers must be those of `vit classify`."""
        while time.monotonic() < self.end:
            path = self.random.choice(list(self.expected))
            kind = b"image/png" if path.suffix == ".png" else b"image/jpeg"
            try:
                status, answer = await self.exchange(kind, path.read_bytes())
            except (OSError, Broken, asyncio.TimeoutError) as error:
                self.wrong.append(f"{path.name}: {error!r}")
                continue
            if status == 429:
                self.counts["good: 429, sent again"] += 1
                await asyncio.sleep(0.2)
                continue
            found = json.loads(answer)["results"][0]["predictions"] if status == 200 else None
            if found == self.expected[path]:
                self.counts["good: the bits of vit classify"] += 1
            elif found and self.near(found, self.expected[path]):
                self.counts["good: within 1e-5 of vit classify"] += 1
            else:
                self.wrong.append(f"{path.name}: {status} {answer[:200]}")
            await asyncio.sleep(self.random.random() * 0.02)

    @staticmethod
    def near(found, expected):
        pairs = list(zip(found, expected, strict=True))
        same = all(a["class"] == b["class"] for a, b in pairs)
        return same and all(abs(a["probability"] - b["probability"]) < 1e-5 for a, b in pairs)

    async def vanishing(self):
        """Sends a request, sometimes half of it, and closes the connection without reading."""
        body = USUAL.read_bytes()
        while time.monotonic() < self.end:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                sent = len(body) if self.random.random() < 0.5 else len(body) // 2
                writer.write(b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Type: image/jpeg\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body[:sent])
                await writer.drain()
                await asyncio.sleep(self.random.random() * 0.05)
                writer.close()
                self.counts["vanished after " + ("all" if sent == len(body) else "half") + " of the body"] += 1
            except ConnectionError:
                self.counts["vanishing: refused"] += 1
            await asyncio.sleep(self.random.random() * 0.2)

    async def slow(self, head):
        """One byte a second, of the head or of the body; the server must end it."""
        body = USUAL.read_bytes()
        text = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(body)
        name = "slow head" if head else "slow body"
        while time.monotonic() < self.end:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            begun = time.monotonic()
            data = text + body if head else body
            try:
                if not head:
                    writer.write(text)
                for byte in data:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    try:
                        got = await asyncio.wait_for(reader.read(200), 1)
                        self.counts[f"{name}: cut with {got[9:12].decode() or 'a closed connection'}"] += 1
                        self.longest[name] = max(self.longest[name], time.monotonic() - begun)
                        break
                    except asyncio.TimeoutError:
                        if time.monotonic() > self.end:
                            break
            except ConnectionError:
                self.counts[f"{name}: cut"] += 1
                self.longest[name] = max(self.longest[name], time.monotonic() - begun)
            finally:
                writer.close()

    async def hostile(self):
        while time.monotonic() < self.end:
            for name, kind, body in self.bombs:
                try:
                    status, _ = await self.exchange(kind, body)
                except (OSError, Broken) as error:
                    status = type(error).__name__
                except asyncio.TimeoutError:
                    status = "no answer in 60 s"
                    self.wrong.append(f"{name}: {status}")
                self.counts[f"bomb: {name}: {status}"] += 1
                if isinstance(status, int) and status >= 500 and status != 503:
                    self.wrong.append(f"{name}: {status}")
                await asyncio.sleep(0.1 + self.random.random())

    async def scrape(self):
        while time.monotonic() < self.end:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await reader.read()
            writer.close()
            self.counts["metrics read"] += 1
            await asyncio.sleep(1)

    async def run(self):
        self.longest = collections.Counter()
        clients = [self.good() for _ in range(6)] + [self.vanishing() for _ in range(3)]
        clients += [self.slow(True) for _ in range(3)] + [self.slow(False) for _ in range(3)]
        await asyncio.gather(*clients, self.hostile(), self.scrape())


def mixed():
    paths = [*IMAGES, USUAL, *sorted(FIXTURES.glob("rgb.png"))]
    run = lambda path: subprocess.run([VIT, "classify", path, "--json"], capture_output=True, text=True, check=True).stdout
    expected = {path: json.loads(run(path))["predictions"] for path in paths}
    server = start("cifar10")
    try:
        server.request("POST", "/v1/classify", USUAL.read_bytes(), {"Content-Type": "image/jpeg"})
        clients = Mixed(server, expected)
        memory = Memory(server)
        asyncio.run(clients.run())
        memory.done.set()
        rows = sorted(clients.counts.items())
        table(f"{arguments.minutes:g} minutes of mixed load", ["what", "times"], rows)
        good = sum(n for name, n in clients.counts.items() if name.startswith("good: ") and "429" not in name)
        verdict("good requests answered as vit classify does", f"{good}, wrong: {len(clients.wrong)}", "all", good > 0 and not clients.wrong)
        for text in clients.wrong[:5]:
            print(f"    {text}")
        for name, seconds in clients.longest.items():
            verdict(f"{name}, one byte a second: cut after", f"{seconds:.0f} s", "60 s", seconds < 60)
        middle, last = memory.around(0.5), memory.around(1)
        verdict("memory in the middle and at the end", f"{middle:.0f} and {last:.0f} MB", "within 5%", abs(last - middle) <= 0.05 * middle)
        ready = server.request("GET", "/health/ready")[0]
        verdict("ready after it all", ready, "200", ready == 200)
    finally:
        status = server.stop()
    clean_log(server, "mixed")
    verdict("mixed: exit status after SIGTERM", status, "0", status == 0)


# Reload ------------------------------------------------------------------------------------------------------------


def reload():
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        shutil.copytree(ROOT / "crates" / "models" / "builtin" / "cifar10", model)
        server = start(f"m={model}")
        version = lambda: json.loads(server.request("GET", "/v1/models")[2])["models"][0]["version"]
        try:
            first = version()
            versions = set()

            def reloads():
                weights = model / "model.safetensors"
                original = weights.read_bytes()
                for turn in range(6):
                    # The last bytes are weights; another value makes another version.
                    weights.with_suffix(".new").write_bytes(original[:-4] + struct.pack("<f", 0.001 * turn))
                    weights.with_suffix(".new").rename(weights)
                    server.signal(signal.SIGHUP)
                    time.sleep(2.5)
                    versions.add(version())
                weights.write_bytes(b"broken")
                server.signal(signal.SIGHUP)
                time.sleep(2.5)

            thread = threading.Thread(target=reloads)
            thread.start()
            run = load(server.url("/v1/classify"), IMAGES[0], "image/jpeg", 16, 19)
            thread.join()
            verdict("reload: versions served after 6 SIGHUPs", len(versions), "6", len(versions) == 6)
            verdict("reload: failed requests under load", f"{run.failed} of {run.good + run.failed}", "0", run.failed == 0 and run.good > 0)
            after, _, body = server.request("POST", "/v1/classify", IMAGES[0].read_bytes(), {"Content-Type": "image/jpeg"})
            verdict("reload: a broken model leaves the old one", f"status {after}, version {version()} (first {first})", "200", after == 200)
            said = [line for line in server.output().splitlines() if "model.safetensors" in line or "reload" in line.lower()]
            verdict("reload: the log says so", (said[-1] if said else "nothing")[:100], "a line", bool(said))
        finally:
            status = server.stop()
        clean_log(server, "reload")
        verdict("reload: exit status after SIGTERM", status, "0", status == 0)


# Kill and restart behind a load balancer ---------------------------------------------------------------------------


def restart():
    servers = [start("cifar10"), start("cifar10")]
    balancer = Balancer([server.port for server in servers])
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(balancer.start(), loop).result()
    outcome = {}

    def again(server):
        command = [VIT, "serve", "--model", "cifar10", "--bind", "127.0.0.1:{port}", *arguments.options.split()]
        return Server("vit", command, "/health/ready", port=server.port)

    def kills():
        time.sleep(3)
        outcome["in flight"] = balancer.in_flight[servers[0].port]
        servers[0].process.kill()
        servers[0].process.wait()
        time.sleep(2)
        outcome["lost by SIGKILL"] = balancer.lost
        servers[0] = again(servers[0])
        time.sleep(2)
        before = balancer.lost
        outcome["status after SIGTERM"] = servers[1].stop()
        time.sleep(1)
        outcome["lost by SIGTERM"] = balancer.lost - before
        servers[1] = again(servers[1])

    try:
        thread = threading.Thread(target=kills)
        thread.start()
        run = load(f"http://127.0.0.1:{port}/v1/classify", IMAGES[0], "image/jpeg", 16, 15)
        thread.join()
    finally:
        for server in servers:
            server.stop()
    lost, most = outcome.get("lost by SIGKILL"), outcome.get("in flight", 0)
    verdict("restart: lost by SIGKILL, of those in flight", f"{lost} of about {most}", "those in flight", lost is not None and lost <= max(most, 16))
    verdict("restart: lost by SIGTERM", outcome.get("lost by SIGTERM"), "0", outcome.get("lost by SIGTERM") == 0)
    verdict("restart: failed at the client", f"{run.failed} of {run.good + run.failed}", "the same as lost", run.failed == balancer.lost)


for name in arguments.stages.split(","):
    print(f"\n{name}", flush=True)
    {"overload": overload, "mixed": mixed, "reload": reload, "restart": restart}[name]()
table("Verdict", ["what", "measured", "aim", "holds"], verdicts)
sys.exit(0 if all(row[-1] == "yes" for row in verdicts) else 1)
