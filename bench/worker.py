"""One peer in one process: prepares its work, then runs it for a while whenever a line arrives, and answers with the
seconds of every run as JSON."""

import io
import json
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
peer, model_name, batch, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
NAMES = {"B/16": "vit_base_patch16_224", "Ti/16": "vit_tiny_patch16_224"}


def torch_model(training=False):
    import timm
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = timm.create_model(NAMES.get(model_name, model_name), pretrained=False)
    return model.train() if training else model.eval()


def images():
    import torch

    torch.manual_seed(0)
    return torch.randn(batch, 3, 224, 224)


def onnx_file():
    import torch

    path = tempfile.mkdtemp() + "/model.onnx"
    torch.onnx.export(torch_model(), (images(),), path, input_names=["image"], output_names=["logits"], dynamo=False)
    return path


def onnx_runtime(path):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = images().numpy()
    return lambda: session.run(None, {"image": x})[0]


def eager():
    import torch

    model, x = torch_model(), images()

    def run():
        with torch.inference_mode():
            return model(x)

    return run


def compiled():
    import torch
    import torch._inductor.config as config

    config.freezing = True
    model, x = torch.compile(torch_model()), images()

    def run():
        with torch.no_grad():
            return model(x)

    return run


def openvino():
    import openvino as ov

    core = ov.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(core.read_model(onnx_file()), "CPU", config)
    x = images().numpy()
    return lambda: model(x)


def onnx_int8():
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = onnx_file()
    quantised = path.replace(".onnx", ".int8.onnx")
    quantize_dynamic(path, quantised, weight_type=QuantType.QInt8, per_channel=True)
    return onnx_runtime(quantised)


def train():
    import torch
    import torch.nn.functional as F

    model, x = torch_model(training=True), images()
    y = torch.zeros(batch, dtype=torch.long)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def run():
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return run


MEAN, STD = [0.5] * 3, [0.5] * 3


def pillow():
    import torch
    from PIL import Image
    from torchvision import transforms as T

    torch.set_num_threads(1)
    content = open(model_name, "rb").read()
    transform = T.Compose(
        [
            T.Resize(256, interpolation=T.InterpolationMode.BICUBIC),
            T.CenterCrop(224),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    return lambda: transform(Image.open(io.BytesIO(content)).convert("RGB"))


def torchvision_decoder():
    import numpy as np
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    content = torch.from_numpy(np.fromfile(model_name, dtype=np.uint8))
    transform = v2.Compose(
        [
            v2.Resize(256, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return lambda: transform(decode_jpeg(content, mode=ImageReadMode.RGB))


def error_of_int8():
    """The relative error of ONNX Runtime's int8 against its f32, on the same images."""
    import numpy as np

    a, b = onnx_runtime(onnx_file())(), onnx_int8()()
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


WORK = {
    "PyTorch eager": eager,
    "PyTorch compiled": compiled,
    "ONNX Runtime": lambda: onnx_runtime(onnx_file()),
    "OpenVINO": openvino,
    "ONNX Runtime int8": onnx_int8,
    "PyTorch step": train,
    "Pillow": pillow,
    "torchvision decoder": torchvision_decoder,
}

run = WORK[peer]()
for _ in range(3):
    run()
print(json.dumps({"error": error_of_int8() if peer == "ONNX Runtime int8" else None}), flush=True)
for line in sys.stdin:
    seconds, taken, start = float(line), [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(taken) < 3:
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    print(json.dumps(taken), flush=True)
