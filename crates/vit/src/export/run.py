# Runs an ONNX file in every runtime that can be imported: FILE FOLDER BATCH...
# Reads FOLDER/input_BATCH.npy, writes each output there, and prints a line of JSON about it.
import json
import sys


def onnx_runtime(path):
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return onnxruntime.__version__, lambda x: session.run(None, {name: x})[0]


def openvino(path):
    import openvino

    # The default on some processors is bf16.
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return openvino.__version__.split("-")[0], lambda x: model(x)[0]


def main(path, folder, batches):
    try:
        import numpy
    except ImportError:
        return
    for runtime, load in [("ONNX Runtime", onnx_runtime), ("OpenVINO", openvino)]:
        result = {"runtime": runtime}
        try:
            result["version"], run = load(path)
        except ImportError:
            continue
        except Exception as error:
            print(json.dumps({**result, "error": " ".join(str(error).split())}))
            continue
        for batch in batches:
            result["batch"] = int(batch)
            try:
                output = numpy.ascontiguousarray(run(numpy.load(f"{folder}/input_{batch}.npy")), dtype="<f4")
                name = f"{runtime}_{batch}.npy"
                numpy.save(f"{folder}/{name}", output)
                print(json.dumps({**result, "output": name}))
            except Exception as error:
                print(json.dumps({**result, "error": " ".join(str(error).split())}))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
