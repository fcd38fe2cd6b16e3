"""Trains from and into a bucket of moto's S3 server through a proxy that delays, fails and cuts, and compares with local
files: the bits of the last checkpoint, classify and embed, and the share of the time spent waiting for data."""

import argparse
import http.client
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import numpy
from PIL import Image

VIT = os.environ["VIT"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Proxy(BaseHTTPRequestHandler):
    """Hands requests on to the server, after a delay; every so many are answered with 500 or cut in the middle."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream, latency, fault_every = None, 0.0, 0
    count, faults, lock = 0, 0, threading.Lock()
    local = threading.local()

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(Proxy.latency)
        with Proxy.lock:
            Proxy.count += 1
            faulty = Proxy.fault_every and Proxy.count % Proxy.fault_every == 0
            Proxy.faults += bool(faulty)
            cut = faulty and Proxy.faults % 2 == 0 and self.command == "GET"
        if faulty and not cut:
            self.reply(500, [], b"<Error><Code>InternalError</Code></Error>")
            return
        upstream = getattr(Proxy.local, "connection", None) or http.client.HTTPConnection(*Proxy.upstream)
        Proxy.local.connection = upstream
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection",)}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding", "date", "server")]
        self.reply(answer.status, kept, content, cut)

    def reply(self, status, headers, content, cut=False):
        self.send_response_only(status)
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers = headers + [("Content-Length", str(len(content)))]
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def log_message(self, *_):
        pass


def start_moto():
    port = free_port()
    command = [pathlib.Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return server, port
        except OSError:
            time.sleep(0.05)
    sys.exit("moto's server did not start")


def make_images(folder, count):
    random = numpy.random.default_rng(1)
    for index in range(count):
        place = folder / "abcd"[index % 4] / f"{index}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 255, (12, 16, 3), dtype=numpy.uint8)
        Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC).save(place, quality=90)


def make_shards(images, folder, shards):
    folder.mkdir()
    files = sorted(images.rglob("*.jpg"))
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w") as archive:
            for file in files[shard::shards]:
                archive.add(file, file.relative_to(images))


def upload(s3, folder, prefix):
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            s3.upload_file(str(file), "bucket", f"{prefix}/{file.relative_to(folder)}")


def vit(*arguments, **more):
    done = subprocess.run([VIT, *map(str, arguments)], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"vit {' '.join(map(str, arguments))}\n{done.stderr}")
    return done


def train(data, out, steps, batch):
    return ["train", "--data", data, "--out", out, "--model", "Ti/16", "--batch", batch, "--seed", 7, "--cache", 0,
            "--set", f"length={steps} steps", "--save-every", 0.05]


def state_of(run, s3=None):
    names = ["checkpoints/last/model.safetensors", "checkpoints/last/optimiser.safetensors"]
    if s3 is None:
        return [(pathlib.Path(run) / name).read_bytes() for name in names]
    read = lambda key: s3.get_object(Bucket="bucket", Key=f"{run}/{key}")["Body"].read()
    index = json.loads(read("snapshot.json"))["files"]
    return [read(index[name]["object"]) for name in names]


def waiting(done):
    for line in (done.stdout + done.stderr).splitlines():
        if "waiting for data" in line:
            return line.strip()
        if line.startswith("{") and '"end"' in line:
            event = json.loads(line)
            return f"{100 * event['waiting']:.2f}% of {event['seconds']:.1f} s waiting for data"
    return "no line about waiting"


def check(what, holds, more=""):
    print(f"{'pass' if holds else 'FAIL'}  {what}{'  ' + more if more else ''}", flush=True)
    check.failed = check.failed or not holds


check.failed = False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds")
    options = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="vit-storage-"))
    moto, port = start_moto()
    try:
        Proxy.upstream = ("127.0.0.1", port)
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true",
                       "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}"}
        os.environ.update(environment)
        s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
        s3.create_bucket(Bucket="bucket")
        images, shards = root / "images", root / "shards"
        make_images(images, options.images)
        make_shards(images, shards, 4)
        upload(s3, images, "images")
        upload(s3, shards, "shards")

        local = {}
        for name, data in (("images", images), ("shards", shards)):
            done = vit(*train(data, root / f"local-{name}", options.steps, options.batch))
            local[name] = state_of(root / f"local-{name}")
            print(f"      local {name}: {waiting(done)}")
        for faults, latency in ((0, 0.0), (0, options.latency), (10, options.latency)):
            Proxy.fault_every, Proxy.latency, Proxy.faults = faults, latency / 1e3, 0
            for name in ("images", "shards"):
                data = f"s3://bucket/{name}" + ("/*.tar" if name == "shards" else "")
                run = f"runs/{name}-{faults}-{latency:g}"
                done = vit(*train(data, f"s3://bucket/{run}", options.steps, options.batch))
                what = f"{name} at {latency:g} ms" + (f", every {faults}th request fails or is cut ({Proxy.faults} did)" if faults else "")
                check(f"{what}: same bits", state_of(run, s3) == local[name], waiting(done))

        kills, arguments = 0, train("s3://bucket/images", "s3://bucket/runs/killed", options.steps, options.batch)
        while True:
            child = subprocess.Popen([VIT, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                child.wait(6 + 3 * kills if kills < 4 else None)
                break
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                kills += 1
            try:
                begun = "checkpoints/last/" in s3.get_object(Bucket="bucket", Key="runs/killed/snapshot.json")["Body"].read().decode()
            except s3.exceptions.NoSuchKey:
                begun = False
            arguments = ["resume", "s3://bucket/runs/killed"] if begun else \
                train("s3://bucket/images", "s3://bucket/runs/killed", options.steps, options.batch) + ["--overwrite"]
        check(f"killed {kills} times and resumed: same bits", kills > 0 and state_of("runs/killed", s3) == local["images"])

        model = "s3://bucket/runs/images-0-0"
        here = json.dumps([json.loads(l).get("predictions") for l in vit("classify", "--model", root / "local-images", images / "a", "--json").stdout.splitlines()])
        there = json.dumps([json.loads(l).get("predictions") for l in vit("classify", "--model", model, "s3://bucket/images/a", "--json").stdout.splitlines()])
        check("classify: same answers", here == there)
        vit("embed", "--model", root / "local-images", images / "a", "--out", root / "here.npy")
        vit("embed", "--model", model, "s3://bucket/images/a", "--out", root / "there.npy")
        check("embed: same values", (root / "here.npy").read_bytes() == (root / "there.npy").read_bytes())
    finally:
        moto.terminate()
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
