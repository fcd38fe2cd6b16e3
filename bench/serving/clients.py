"""Public clients and validators against `vit serve`; see README.md one folder up."""

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from load import CACHE, ROOT, VIT, Server, table

IMAGES = sorted((ROOT / "examples" / "images").glob("*.jpg"))
MODEL = "cifar10"


class Missing(Exception):
    """A tool that is not installed."""


def vit(*arguments):
    run = subprocess.run([VIT, *map(str, arguments)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def expected():
    """The classes and probabilities that `vit classify` gives, image by image as the server computes lone requests."""
    return {path.name: vit("classify", path, "--json")[0]["predictions"] for path in IMAGES}


def data_uri(path):
    return "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode()


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def close(ours, theirs, what):
    """The same classes in the same order with probabilities within 1e-5: batches of other sizes round differently."""
    check([p["class"] for p in ours] == [p["class"] for p in theirs], f"{what}: other classes: {ours} {theirs}")
    off = max(abs(a["probability"] - b["probability"]) for a, b in zip(ours, theirs))
    check(off < 1e-5, f"{what}: off by {off}")


def curl(*arguments):
    run = subprocess.run(["curl", "-sS", "-w", "\n%{http_code} %{content_type}", *map(str, arguments)], capture_output=True)
    check(run.returncode == 0, run.stderr.decode())
    body, _, last = run.stdout.rpartition(b"\n")
    status, _, kind = last.decode().partition(" ")
    return int(status), kind, body


def with_curl(server, known):
    classify = server.url("/v1/classify")
    for path in IMAGES:
        status, kind, body = curl("--data-binary", f"@{path}", "-H", "Content-Type: image/jpeg", classify)
        check((status, kind) == (200, "application/json"), f"{status} {kind} {body[:300]}")
        check(json.loads(body)["results"][0]["predictions"] == known[path.name], f"{path.name}: {body[:300]}")
    files = [part for path in IMAGES for part in ("-F", f"image=@{path};type=image/jpeg")]
    status, _, body = curl(*files, classify + "?top=5")
    check(status == 200, f"multipart: {status} {body[:300]}")
    for path, result in zip(IMAGES, json.loads(body)["results"], strict=True):
        close(result["predictions"], known[path.name], path.name)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"images": [data_uri(path) for path in IMAGES] + ["data:image/png;base64,AAAA"], "top": 5}, file)
        file.flush()
        status, _, body = curl("-d", f"@{file.name}", "-H", "Content-Type: application/json", classify)
    check(status == 200, f"JSON: {status} {body[:300]}")
    results = json.loads(body)["results"]
    for path, result in zip(IMAGES, results):
        close(result["predictions"], known[path.name], path.name)
    check("error" in results[-1], f"a damaged image among good ones: {results[-1]}")
    status, kind, body = curl("-d", "no image", "-H", "Content-Type: image/jpeg", classify)
    check(400 <= status < 500 and kind == "application/problem+json", f"{status} {kind}")
    check({"type", "title", "status", "detail"} <= json.loads(body).keys(), body)
    png = ["-H", "Accept: image/png", "-H", "Content-Type: image/jpeg", "--data-binary", f"@{IMAGES[0]}"]
    status, kind, body = curl(*png, server.url("/v1/explain"))
    check((status, kind) == (200, "image/png") and body.startswith(b"\x89PNG"), f"explain: {status} {kind}")
    return "body, multipart, JSON, problem documents, PNG"


def with_triton(server, known):
    import tritonclient.http as http

    client = http.InferenceServerClient(f"127.0.0.1:{server.port}")
    check(client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL), "health")
    check("binary_tensor_data" in client.get_server_metadata()["extensions"], "server metadata")
    metadata = client.get_model_metadata(MODEL)
    check(client.get_model_config(MODEL)["name"] == MODEL, "configuration")
    tensors = {entry["datatype"]: entry for entry in metadata["inputs"]}
    answers = {}
    shape = [1, *(int(n) for n in tensors["FP32"]["shape"][1:])]
    tensor = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for binary in (False, True):
        given = http.InferInput(tensors["FP32"]["name"], shape, "FP32")
        given.set_data_from_numpy(tensor, binary_data=binary)
        wanted = [http.InferRequestedOutput(o["name"], binary_data=binary) for o in metadata["outputs"] if o["datatype"] == "FP32"]
        result = client.infer(MODEL, [given], outputs=wanted, request_id="7")
        check(result.get_response()["id"] == "7", "the request's id")
        answers[binary] = {o["name"]: result.as_numpy(o["name"]) for o in metadata["outputs"] if o["datatype"] == "FP32"}
    for name, array in answers[True].items():
        check(array.shape[0] == 1 and np.isfinite(array).all(), name)
        check(np.array_equal(array, answers[False][name]), f"{name}: JSON and binary differ")
    for binary in (False, True):
        encoded = np.array([path.read_bytes() for path in IMAGES], dtype=np.object_)
        if not binary:
            encoded = np.array([base64.b64encode(image) for image in encoded], dtype=np.object_)
        given = http.InferInput(tensors["BYTES"]["name"], [len(IMAGES)], "BYTES")
        given.set_data_from_numpy(encoded, binary_data=binary)
        logits = client.infer(MODEL, [given]).as_numpy("logits")
        for path, row in zip(IMAGES, logits, strict=True):
            check(int(row.argmax()) == known[path.name][0]["class"], f"{path.name}: {row}")
    statistics = client.get_inference_statistics(MODEL)["model_stats"][0]
    check(int(statistics["inference_count"]) > 0, f"statistics: {statistics}")
    refused = http.InferInput(tensors["FP32"]["name"], [1, 2], "FP32")
    refused.set_data_from_numpy(np.zeros((1, 2), np.float32))
    try:
        client.infer(MODEL, [refused])
        check(False, "a wrong shape was accepted")
    except http.InferenceServerException as error:
        check("shape" in str(error) or "elements" in str(error), str(error))
    return "FP32 and BYTES, JSON and binary"


def with_triton_grpc(server, known):
    import tritonclient.grpc as grpc
    import tritonclient.http as http

    client, over_http = (module.InferenceServerClient(f"127.0.0.1:{server.port}") for module in (grpc, http))
    check(client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL), "health")
    check(not client.is_model_ready("nothing"), "an unknown model is ready")
    check("statistics" in client.get_server_metadata().extensions, "server metadata")
    metadata = client.get_model_metadata(MODEL, as_json=True)
    check(metadata == over_http.get_model_metadata(MODEL) | {"inputs": metadata["inputs"], "outputs": metadata["outputs"]}, metadata)
    config, config_over_http = client.get_model_config(MODEL).config, over_http.get_model_config(MODEL)
    check((config.name, config.max_batch_size) == (MODEL, config_over_http["max_batch_size"]), str(config))
    check([list(o.dims) for o in config.output] == [o["dims"] for o in config_over_http["output"]], str(config))
    sizes = config_over_http["dynamic_batching"]["preferred_batch_size"]
    check(list(config.dynamic_batching.preferred_batch_size) == sizes, str(config))
    check(client.get_model_repository_index().models[0].state == "READY", "repository index")
    shape = [1, *(int(n) for n in metadata["inputs"][0]["shape"][1:])]
    tensor = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    answers = []
    for module, connection in ((grpc, client), (http, over_http)):
        given = module.InferInput("image", shape, "FP32")
        given.set_data_from_numpy(tensor)
        answers.append(connection.infer(MODEL, [given], request_id="7"))
    check(answers[0].get_response().id == "7", "the request's id")
    for output in metadata["outputs"]:
        ours, theirs = (answer.as_numpy(output["name"]) for answer in answers)
        check(np.array_equal(ours, theirs), f"{output['name']}: gRPC and HTTP differ")
    given = grpc.InferInput("image_bytes", [len(IMAGES)], "BYTES")
    given.set_data_from_numpy(np.array([path.read_bytes() for path in IMAGES], dtype=np.object_))
    outputs = [grpc.InferRequestedOutput("logits"), grpc.InferRequestedOutput("probabilities", class_count=1)]
    for compression in (None, "gzip", "deflate"):
        answer = client.infer(MODEL, [given], outputs=outputs, compression_algorithm=compression, client_timeout=60)
        for path, row, text in zip(IMAGES, answer.as_numpy("logits"), answer.as_numpy("probabilities"), strict=True):
            best = known[path.name][0]
            check(int(row.argmax()) == best["class"] and text[0].decode().endswith(best["label"]), f"{path.name}: {row} {text}")
    statistics = client.get_inference_statistics(MODEL).model_stats[0]
    check(statistics.inference_count > 0 and statistics.inference_stats.compute_infer.ns > 0, str(statistics))
    refused = grpc.InferInput("image", [1, 2], "FP32")
    refused.set_data_from_numpy(np.zeros((1, 2), np.float32))
    for model, given, status, text in ((MODEL, refused, "INVALID_ARGUMENT", "shape"), ("nothing", refused, "NOT_FOUND", "nothing")):
        try:
            client.infer(model, [given])
            check(False, f"{status} was expected")
        except grpc.InferenceServerException as error:
            check(error.status() == f"StatusCode.{status}" and text in error.message(), str(error))
    return "FP32 and BYTES, classes, gzip, statistics, errors"


def with_openai(server, known):
    import openai

    client = openai.OpenAI(base_url=server.url("/v1"), api_key="none")
    check(MODEL in [model.id for model in client.models.list().data], "models")
    # Without encoding_format the client asks for base64 and decodes it.
    default = client.embeddings.create(model=MODEL, input=[data_uri(path) for path in IMAGES])
    floats = client.embeddings.create(model=MODEL, input=[data_uri(path) for path in IMAGES], encoding_format="float")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([VIT, "embed", *IMAGES, "-o", f"{folder}/v.npy"], check=True, capture_output=True)
        ours = np.load(f"{folder}/v.npy")
    for answer in (default, floats):
        vectors = np.array([item.embedding for item in answer.data], np.float32)
        check(vectors.shape == ours.shape, f"{vectors.shape} {ours.shape}")
        scaled = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
        off = np.abs(scaled(vectors) - scaled(ours)).max()
        check(off < 1e-5, f"off by {off}")
    try:
        client.embeddings.create(model="nothing", input=[data_uri(IMAGES[0])])
        check(False, "an unknown model was accepted")
    except openai.NotFoundError:
        pass
    return "base64 and floats"


def with_promtool(server, known):
    tool = shutil.which("promtool")
    if tool is None:
        raise Missing("promtool: Debian's package prometheus")
    _, _, metrics = server.request("GET", "/metrics")
    run = subprocess.run([tool, "check", "metrics"], input=metrics, capture_output=True)
    check(run.returncode == 0, (run.stdout + run.stderr).decode())
    return f"{sum(not line.startswith(b'#') for line in metrics.splitlines())} series"


def with_validator(server, known):
    from openapi_spec_validator import validate

    _, _, text = server.request("GET", "/openapi.json")
    document = json.loads(text)
    validate(document)
    return f"OpenAPI {document['openapi']}, {len(document['paths'])} paths"


SCHEMATHESIS_CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]


def with_schemathesis(server, known):
    """Requests made up from the document, half of them with the names of a real model and its version."""
    tool = Path(sys.executable).parent / "schemathesis"
    version = json.loads(server.request("GET", "/v1/models")[2])["models"][0]["version"]
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for named in (False, True):
            settings = f'[parameters]\n"path.model" = "{MODEL}"\n"path.version" = "{version}"\n' if named else ""
            (Path(folder) / "schemathesis.toml").write_text(settings)
            command = [tool, "run", server.url("/openapi.json"), "--checks", ",".join(SCHEMATHESIS_CHECKS)]
            command += ["--max-examples", EXAMPLES, "--seed", 1 + named, "--no-color"]
            run = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder)
            (CACHE / f"schemathesis-{named:d}.log").write_text(run.stdout + run.stderr)
            check(run.returncode == 0, f"see schemathesis-{named:d}.log in bench/.cache")
            texts += [line.strip() for line in run.stdout.splitlines() if " generated, " in line]
    return "; ".join(texts)


CHECKS = {
    "curl": with_curl,
    "tritonclient": with_triton,
    "tritonclient-grpc": with_triton_grpc,
    "openai": with_openai,
    "promtool": with_promtool,
    "openapi-spec-validator": with_validator,
    "schemathesis": with_schemathesis,
}
parser = argparse.ArgumentParser(prog="bench/serve-clients", description=__doc__)
parser.add_argument("--only", help="comma-separated: " + ", ".join(CHECKS))
parser.add_argument("--examples", type=int, default=50, help="of schemathesis, per route (%(default)s)")
arguments = parser.parse_args()
EXAMPLES = arguments.examples
CACHE.mkdir(exist_ok=True)
known = expected()
rows, failed = [], False
server = Server("vit", [VIT, "serve", "--bind", "127.0.0.1:{port}"], "/health/ready")
try:
    for name in arguments.only.split(",") if arguments.only else CHECKS:
        try:
            rows.append((name, CHECKS[name](server, known)))
        except Missing as missing:
            rows.append((name, f"left out, there is no {missing}"))
        except Exception as error:
            failed = True
            print(f"\n{name}:", file=sys.stderr)
            traceback.print_exc()
            rows.append((name, "FAILED: " + (str(error).strip() or type(error).__name__).splitlines()[0][:100]))
        check(server.process.poll() is None, f"the server ended with {server.process.poll()}: {server.output()[-2000:]}")
finally:
    status = server.stop()
if "panicked" in server.output() or "this is a bug" in server.output():
    failed = True
    rows.append(("server's log", "a panic"))
rows.append(("exit status after SIGTERM", status))
table("vit serve and public clients", ["client", "outcome"], rows)
sys.exit(1 if failed or status else 0)
