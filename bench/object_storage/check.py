"""Trains from and into buckets through a proxy that delays, fails and cuts, and compares with local files: the bits of the last
checkpoint, classify and embed, and the share of the time spent waiting for data. Buckets of S3 are those of moto's server, with
and without TLS; those of Azure belong to Azurite, where npm can install it. No emulator of Google's XML API has a package, but
that API is the one of S3 with generations in place of ETags in conditional writes, which the proxy adds to moto's answers."""

import argparse
import datetime
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
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
    """Hands requests on to the server, after a delay; every so many are answered with 500 or cut in the middle. Data is kept in
    memory, since moto answers a few hundred requests per second at most."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream, latency, fault_every = None, 0.0, 0
    count, faults, lock = 0, 0, threading.Lock()
    local = threading.local()
    kept = {}

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
        key = (self.path, self.headers.get("Range"))
        answer = Proxy.kept.get(key) or self.ask(body)
        if self.command == "GET" and self.path.startswith(("/bucket/images/", "/bucket/shards/")):
            Proxy.kept[key] = answer
        self.reply(*answer, cut)

    def ask(self, body):
        upstream = getattr(Proxy.local, "connection", None) or http.client.HTTPConnection(*Proxy.upstream)
        Proxy.local.connection = upstream
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection",)}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        dropped = ("connection", "transfer-encoding", "date", "server")
        return answer.status, [(k, v) for k, v in answer.getheaders() if k.lower() not in dropped], answer.read()

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


class GoogleProxy(Proxy):
    """Generations of objects, in the way of Google's XML API."""

    generations = {}

    def ask(self, body):
        path = self.path.split("?")[0]
        expected = self.headers.get("x-goog-if-generation-match")
        writes = self.command == "PUT" or (self.command == "POST" and "uploadId=" in self.path)
        with Proxy.lock:
            if expected is not None and int(expected) != GoogleProxy.generations.get(path, 0):
                return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
            if writes:
                GoogleProxy.generations[path] = GoogleProxy.generations.get(path, 0) + 1
        # In place of a bearer token; moto does not check the signature.
        del self.headers["Authorization"]
        credential = "test/20260101/us-east-1/s3/aws4_request"
        self.headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0"
        status, headers, content = super().ask(body)
        return status, headers + [("x-goog-generation", str(GoogleProxy.generations.get(path, 1)))], content


class Server(ThreadingHTTPServer):
    # The client opens 64 connections at once; with Python's default of 5, some of them wait for a retransmission.
    request_queue_size = 256

    def handle_error(self, *_):
        """Clients that are killed leave broken connections."""


def serve(handler, context=None):
    proxy = Server(("127.0.0.1", 0), handler)
    if context:
        proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return proxy.server_port


def start(name, command, port):
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return server
        except OSError:
            time.sleep(0.05)
    sys.exit(f"{name} did not start")


def authority(folder):
    """A certificate for 127.0.0.1 that is its own authority, and a server's context with it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = certificate.add_extension(hosts, False).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def make_images(folder, count):
    random = numpy.random.default_rng(1)
    for index in range(count):
        place = folder / "abcd"[index % 4] / f"{index}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 255, (6, 8, 3), dtype=numpy.uint8)
        Image.fromarray(small).resize((64, 48), Image.Resampling.BICUBIC).save(place, quality=90)


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


def train(data, out, steps, batch=32):
    """A consumer of several hundred images per second: one core, images of 32 pixels, nothing kept in memory."""
    return ["train", "--json", "--data", data, "--out", out, "--model", "P/4@32", "--batch", batch, "--seed", 7, "--cache", 0,
            "--device", "cpu", "--threads", 1, "--set", f"length={steps} steps", "--set", f"evaluate_every={steps} steps",
            "--save-every", 0.05]


STATE = ["checkpoints/last/model.safetensors", "checkpoints/last/optimiser.safetensors"]


def local_state(run):
    return [(pathlib.Path(run) / name).read_bytes() for name in STATE]


def state_in(read):
    """The same of a run in a bucket, whose objects `read` returns by their names below the run."""
    index = json.loads(read("snapshot.json"))["files"]
    return [read(index[name]["object"]) for name in STATE]


def waiting(done):
    """The share of a run that was spent waiting for data, and in words with the speed."""
    events = [json.loads(line) for line in done.stdout.splitlines()]
    steps, end = [event for event in events if event["event"] == "step"], events[-1]
    speed = 32 * (steps[-1]["step"] - steps[0]["step"]) / (steps[-1]["seconds"] - steps[0]["seconds"])
    return end["waiting"], f"{speed:.0f} images/s, {100 * end['waiting']:.2f}% of {end['seconds']:.1f} s waiting for data"


def check(what, holds, more=""):
    print(f"{'pass' if holds else 'FAIL'}  {what}{'  ' + more if more else ''}", flush=True)
    check.failed = check.failed or not holds


check.failed = False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--azurite", help="the program azurite-blob")
    options = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="vit-storage-"))
    port = free_port()
    servers = [start("moto", [pathlib.Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", port], port)]
    try:
        Proxy.upstream = ("127.0.0.1", port)
        os.environ.update({"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true",
                           "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{serve(Proxy)}"})
        s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
        s3.create_bucket(Bucket="bucket")
        images, shards = root / "images", root / "shards"
        make_images(images, options.images)
        make_shards(images, shards, 4)
        upload(s3, images, "images")
        upload(s3, shards, "shards")
        local = {}
        for name, data in (("images", images), ("shards", shards)):
            done = vit(*train(data, root / f"local-{name}", options.steps))
            local[name] = local_state(root / f"local-{name}")
            print(f"      local {name}: {waiting(done)[1]}")
        simple_storage_service(options, root, s3, local)
        google(options, s3, local)
        if options.azurite:
            servers.append(azure(options, root, images, local))
        else:
            print("      no Azurite: az:// is not tested")
    finally:
        for server in servers:
            server.terminate()
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if check.failed else 0)


def simple_storage_service(options, root, s3, local):
    state_of = lambda run: state_in(lambda key: s3.get_object(Bucket="bucket", Key=f"{run}/{key}")["Body"].read())
    for faults, latency in ((0, 0.0), (0, options.latency), (10, options.latency)):
        Proxy.fault_every, Proxy.latency, Proxy.faults = faults, latency / 1e3, 0
        for name in ("images", "shards"):
            data = f"s3://bucket/{name}" + ("/*.tar" if name == "shards" else "")
            run = f"runs/{name}-{faults}-{latency:g}"
            share, words = waiting(vit(*train(data, f"s3://bucket/{run}", options.steps)))
            what = f"{name} at {latency:g} ms" + (f", every {faults}th request fails or is cut ({Proxy.faults} did)" if faults else "")
            check(f"{what}: same bits", state_of(run) == local[name], words)
            if latency and not faults:
                check(f"{what}: waits for less than 2%", share < 0.02, words)

    kills, begin = 0, train("s3://bucket/images", "s3://bucket/runs/killed", options.steps)
    arguments = begin
    while True:
        child = subprocess.Popen([VIT, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(2 + kills if kills < 4 else None)
            break
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
        try:
            begun = "checkpoints/last/" in s3.get_object(Bucket="bucket", Key="runs/killed/snapshot.json")["Body"].read().decode()
        except s3.exceptions.NoSuchKey:
            begun = False
        arguments = ["resume", "s3://bucket/runs/killed"] if begun else begin + ["--overwrite"]
    check(f"killed {kills} times and resumed: same bits", kills > 0 and state_of("runs/killed") == local["images"])

    Proxy.fault_every = 0
    model, images = "s3://bucket/runs/images-0-0", root / "images"
    predictions = lambda *arguments: [json.loads(line).get("predictions") for line in vit("classify", "--json", "--model", *arguments).stdout.splitlines()]
    here = predictions(root / "local-images", images / "a")
    check("classify: same answers", here == predictions(model, "s3://bucket/images/a"))
    vit("embed", "--model", root / "local-images", images / "a", "--out", root / "here.npy")
    vit("embed", "--model", model, "s3://bucket/images/a", "--out", root / "there.npy")
    check("embed: same values", (root / "here.npy").read_bytes() == (root / "there.npy").read_bytes())

    secure = {**os.environ, "AWS_ENDPOINT_URL": f"https://127.0.0.1:{serve(Proxy, authority(root))}", "AWS_ALLOW_HTTP": ""}
    refused = subprocess.run([VIT, "classify", "--model", model, "s3://bucket/images/a"], capture_output=True, text=True, env=secure)
    check("TLS with an unknown authority is refused", refused.returncode == 1 and "SSL_CERT_FILE" in refused.stderr, refused.stderr.strip())
    vit(*train("s3://bucket/images", "s3://bucket/runs/secure", options.steps), env={**secure, "SSL_CERT_FILE": str(root / "certificate.pem")})
    check("TLS with that authority: same bits", state_of("runs/secure") == local["images"])


def google(options, s3, local):
    account = {"gcs_base_url": f"http://127.0.0.1:{serve(GoogleProxy)}", "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    emulator = {**os.environ, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}
    bucket(options, "gs", "bucket", emulator, lambda key: s3.get_object(Bucket="bucket", Key=key)["Body"].read(), local)


def azure(options, root, images, local):
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    account, key = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    command = [options.azurite, "--blobPort", port, "--location", root / "azurite", "--silent", "--skipApiVersionCheck"]
    server = start("Azurite", command, port)
    url = f"http://127.0.0.1:{port}"
    client = BlobServiceClient(f"{url}/{account}", credential=key).create_container("container")
    for file in sorted(images.rglob("*.jpg")):
        client.upload_blob(f"images/{file.relative_to(images)}", file.read_bytes())
    emulator = {**os.environ, "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url}
    bucket(options, "az", "container", emulator, lambda key: client.download_blob(key).readall(), local)
    return server


def bucket(options, scheme, name, environment, read, local):
    """Trains, stops, resumes and lists in a bucket of another service."""
    run = f"{scheme}://{name}/runs/{scheme}"
    child = subprocess.Popen([VIT, *map(str, train(f"{scheme}://{name}/images", run, options.steps))], stdout=subprocess.PIPE, text=True, env=environment)
    next(line for line in child.stdout if '"event":"step"' in line)
    child.terminate()
    child.communicate()
    vit("resume", run, env=environment)
    check(f"{scheme}://: stopped with {child.returncode} and resumed: same bits",
          child.returncode == 143 and state_in(lambda key: read(f"runs/{scheme}/{key}")) == local["images"])
    listed = vit("classify", "--json", "--model", run, f"{scheme}://{name}/images/a", env=environment).stdout.splitlines()
    check(f"{scheme}://: classifies", len(listed) == options.images // 4)


if __name__ == "__main__":
    main()
