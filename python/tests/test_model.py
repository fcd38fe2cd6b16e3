"""Images in every form, and everything that a model says about them."""

import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import vit


def pixels(path):
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(path).convert("RGB"))


def test_classes_of_one_image_and_of_several(model, images):
    assert model.labels[5] == "dog" and model.classes == 10 and model.image_size == (32, 32)
    top = model.classify(images["dog"], top=2)
    assert [prediction.index for prediction in top][0] == 5 and len(top) == 2
    label, probability, index = top[0]
    assert label == "dog" and 0.5 < probability <= 1.0 and model.labels[index] == label
    several = model.classify([str(images["dog"]), images["ship"]])
    assert [predictions[0].label for predictions in several] == ["dog", "ship"]
    assert len(several[0]) == 5 and several[0][:2] == top
    assert model.classify([]) == []
    assert "Model(" in repr(model) and "cifar10" in repr(model)


def test_every_form_of_an_image_gives_the_same_logits(model, images):
    image = pytest.importorskip("PIL.Image")
    path = images["ship"]
    expected = model(path)
    assert expected.shape == (10,) and expected.dtype == np.float32
    array = pixels(path)
    encoded = path.read_bytes()
    # A decoder may differ from Pillow's in the last bit of a pixel.
    same = [str(path), encoded, bytearray(encoded), memoryview(encoded), np.frombuffer(encoded, np.uint8)]
    for form in same:
        np.testing.assert_array_equal(model(form), expected)
    close = [image.open(path), array, np.asfortranarray(array), memoryview(array), Dlpack(array)]
    close.append(np.dstack([array, np.full(array.shape[:2], 7, np.uint8)]))
    for form in close:
        np.testing.assert_allclose(model(form), expected, atol=0.05)
        np.testing.assert_array_equal(model([form])[0], model(form))


class Dlpack:
    """A tensor of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_grey_images_and_batches_of_pixels(model, images):
    array = pixels(images["dog"])
    grey = array[..., 0]
    np.testing.assert_array_equal(model(grey), model(np.dstack([grey] * 3)))
    batch = np.stack([array[:64, :64], array[-64:, -64:]] * 5)
    logits = model(batch)
    assert logits.shape == (10, 10)
    np.testing.assert_array_equal(logits[1], model(batch[1]))
    assert model(iter(batch)).shape == (10, 10)


def test_preprocessed_batches(model, images):
    paths = list(images.values()) * 3
    prepared = model.preprocess(paths)
    assert prepared.shape == (len(paths), 3, 32, 32) and prepared.flags.writeable
    np.testing.assert_array_equal(model(prepared), model(paths))
    np.testing.assert_array_equal(model(prepared[:, :, :, ::-1][:, :, :, ::-1]), model(paths))
    np.testing.assert_array_equal(model(prepared[0]), model(paths[0]))
    with pytest.raises(ValueError, match=r"\[3, 32, 32\]"):
        model(np.zeros((2, 3, 16, 16), np.float32))
    with pytest.raises(ValueError, match="3072"):
        model(np.zeros((3, 16, 16), np.float32))


def test_columns_of_paths(model, images):
    column = np.array([str(path) for path in images.values()])
    np.testing.assert_array_equal(model(column), model(list(images.values())))
    np.testing.assert_array_equal(model(column.astype(object)), model(column))


def test_embeddings(model, images):
    paths = [images["dog"], images["ship"], images["dog"]]
    vectors = model.embed(paths, normalise=True)
    assert vectors.shape == (3, 256)
    similar = vectors @ vectors.T
    assert similar[0, 2] == pytest.approx(1, abs=1e-6) and similar[0, 1] < 0.9
    assert model.embed(paths[0]).shape == (256,)
    assert model.embed(paths, pool="patches").shape == (3, 64, 256)
    np.testing.assert_allclose(
        model.embed(paths, pool="mean"), model.embed(paths, pool="patches").mean(1), atol=1e-5
    )
    with pytest.raises(ValueError, match="pooling"):
        model.embed(paths, pool="max")


def test_intermediates(model, images):
    weights = model(list(images.values())[:2], output="blocks.5.attn.weights")
    assert weights.shape == (2, 4, 64, 64)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="no output `attention`"):
        model(images["dog"], output="attention")


def test_explanations(model, images, tmp_path):
    explanation = model.explain(images["dog"], top=2)
    assert explanation.map.shape == (8, 8) and explanation.maps.shape == (3, 8, 8)
    assert explanation.names[:2] == ["attention rollout", "dog"]
    assert explanation.png.startswith(b"\x89PNG") and explanation._repr_png_() == explanation.png
    explanation.save(tmp_path / "dog.png")
    assert (tmp_path / "dog.png").read_bytes() == explanation.png
    cat = model.explain([images["dog"], images["ship"]], classes=["cat", 8])
    assert [one.names[1:] for one in cat] == [["cat", "ship"]] * 2
    with pytest.raises(ValueError, match="no class `lion`"):
        model.explain(images["dog"], classes=["lion"])
    with pytest.raises(ValueError, match="images"):
        model.explain(np.zeros((3, 32, 32), np.float32))


def test_a_shown_explanation_is_a_file_for_the_viewer(model, images, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    model.explain(images["dog"]).show()
    path = pathlib.Path(opened[0].removeprefix("file://"))
    assert path.read_bytes().startswith(b"\x89PNG")
    path.unlink()


def test_errors_are_the_exceptions_that_a_programmer_expects(model, images, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.jpg"):
        model.classify("nowhere.jpg")
    with pytest.raises(FileNotFoundError, match="nowhere: no such file or folder; give a checkpoint folder"):
        vit.open("nowhere")
    with pytest.raises(ValueError, match="`B/16` is an architecture without weights"):
        vit.open("B/16")
    with pytest.raises(ValueError, match="not a device"):
        vit.open("cifar10", device="gpu")
    with pytest.raises(vit.Error, match="bf16 needs a GPU"):
        vit.open("cifar10", device="cpu", precision="bf16")
    for wrong, what in [(3, "int"), (None, "NoneType"), ([images["dog"], 3.5], r"images\[1\] is of type float")]:
        with pytest.raises(TypeError, match=what):
            model(wrong)
    with pytest.raises(TypeError, match="float64"):
        model(np.zeros((3, 32, 32)))
    with pytest.raises(ValueError, match=r"\[3, 32, 32\]"):
        model(np.zeros((3, 32, 32), np.uint8))
    with pytest.raises(vit.Error, match=r"images\[1\]: not an image"):
        model([images["dog"], b"words"])
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(images["dog"].read_bytes()[:500])
    with pytest.raises(vit.Error, match="damaged.jpg: JPEG"):
        model(damaged)


def test_other_sizes_and_precisions(images):
    larger = vit.open("cifar10", device="cpu", image_size=(32, 64), threads=1)
    assert larger.image_size == (32, 64) and any("resampled" in line for line in larger.report)
    int8 = vit.open("cifar10", device="cpu", precision="int8")
    assert int8.precision == "int8" and int8.classify(images["dog"])[0].label == "dog"


def test_a_state_dict_in_memory(model, images, tmp_path):
    model.save(tmp_path / "saved")
    tensors = safetensors(tmp_path / "saved" / "model.safetensors")
    name = "vit_tiny_patch4_32"
    with pytest.raises(vit.Error, match="do not match the model"):
        vit.from_state_dict(name, tensors)
    with pytest.raises(ValueError, match="did you mean"):
        vit.from_state_dict("vit_tny_patch4_32", tensors)
    rng = np.random.default_rng(0)
    shapes = tiny_shapes(classes=3)
    state = {name: Tensor(rng.normal(0, 0.02, shape)) for name, shape in shapes.items()}
    made = vit.from_state_dict(name, state, labels=["a", "b", "c"], device="cpu")
    assert made.classes == 3 and any(line.startswith("classes: 3") for line in made.report)
    made.save(tmp_path / "made")
    again = vit.open(tmp_path / "made", device="cpu")
    assert again.labels == ["a", "b", "c"] and again.name == name
    np.testing.assert_array_equal(again(images["dog"]), made(images["dog"]))
    del state["head.weight"], state["head.bias"]
    headless = vit.from_state_dict(name, state, device="cpu")
    assert headless.classes == 0 and headless.embed(images["dog"]).shape == (192,)
    with pytest.raises(vit.Error, match="no classification head"):
        headless(images["dog"])
    with pytest.raises(ValueError, match="1 labels"):
        vit.from_state_dict(name, state, labels=["a"])


class Tensor:
    """As PyTorch's, whose bfloat16 NumPy does not have."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = float = detach

    def numpy(self):
        return self.array


def tiny_shapes(classes, dim=192, depth=12):
    shapes = {"cls_token": (1, 1, dim), "pos_embed": (1, 65, dim), "norm.weight": (dim,), "norm.bias": (dim,)}
    shapes |= {"patch_embed.proj.weight": (dim, 3, 4, 4), "patch_embed.proj.bias": (dim,)}
    shapes |= {"head.weight": (classes, dim), "head.bias": (classes,)}
    linear = {"attn.qkv": (3 * dim, dim), "attn.proj": (dim, dim), "mlp.fc1": (4 * dim, dim), "mlp.fc2": (dim, 4 * dim)}
    for block in range(depth):
        for layer, (rows, columns) in linear.items():
            shapes[f"blocks.{block}.{layer}.weight"] = (rows, columns)
            shapes[f"blocks.{block}.{layer}.bias"] = (rows,)
        for norm in ["norm1", "norm2"]:
            shapes[f"blocks.{block}.{norm}.weight"] = (dim,)
            shapes[f"blocks.{block}.{norm}.bias"] = (dim,)
    return shapes


def safetensors(path):
    import json

    bytes = path.read_bytes()
    start = 8 + int.from_bytes(bytes[:8], "little")
    header = json.loads(bytes[8:start])
    header.pop("__metadata__", None)

    def tensor(entry):
        begin, end = (start + offset for offset in entry["data_offsets"])
        return np.frombuffer(bytes[begin:end], np.float32).reshape(entry["shape"])

    return {name: tensor(entry) for name, entry in header.items()}


def test_threads_share_a_model(model, images):
    expected = model(images["dog"])
    found = [None] * 4

    def work(number):
        found[number] = model([images["dog"]] * 5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for logits in found:
        np.testing.assert_array_equal(logits[4], expected)


def test_the_interpreter_goes_on_meanwhile(model, images):
    ticks, done = 0, threading.Event()
    thread = threading.Thread(target=lambda: (model([images["dog"]] * 200), done.set()))
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 10


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_long_work(model, images):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        model.embed(images["dog"] for _ in range(10**9))
    assert model.classify(images["dog"])[0].label == "dog"


def test_progress_is_shown_if_asked(model, images, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    model.embed([images["dog"]] * 9)
    assert written.getvalue() == ""
    model.embed([images["dog"]] * 9, progress=True)
    assert "/9 images" in written.getvalue() and written.getvalue().endswith(" \r")


def test_the_module_is_light_and_described():
    code = "import sys, vit; assert 'numpy' not in sys.modules; print(vit.__version__)"
    version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert version == vit.__version__ and version.count(".") == 2
    assert vit.devices()[0]["device"] == "cpu"
    for name in vit.__all__:
        assert name == "__version__" or getattr(vit, name).__doc__, name


def test_the_stubs_have_every_name():
    import ast

    stubs = ast.parse(pathlib.Path(vit.__file__).with_name("__init__.pyi").read_text())
    classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in stubs.body if isinstance(node, ast.FunctionDef)}
    assert set(vit.__all__) - {"__version__"} == set(classes) | functions
    for name in ["Model", "Explanation", "Run", "Dataset"]:
        described = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        real = {key for key in vars(getattr(vit, name)) if not key.startswith("__")}
        assert real - {"_repr_png_"} == {key for key in described if not key.startswith("_")}, name
