"""What tests share: the example images, the built-in model, a small dataset."""

import pathlib
import shutil
import signal

import pytest
import vit

# A shell starts background jobs with SIGINT ignored, and Python then has no handler for Ctrl-C, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

IMAGES = pathlib.Path(__file__).parents[2] / "examples" / "images"


@pytest.fixture(scope="session")
def images():
    """The example images by the class that they show."""
    return {path.stem: path for path in sorted(IMAGES.glob("*.jpg"))}


@pytest.fixture(scope="session")
def model():
    return vit.open("cifar10", device="cpu", batch=4)


@pytest.fixture(scope="session")
def photos(tmp_path_factory, images):
    """A dataset of two classes with eight images each."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for label, names in [("animal", ["bird", "dog"]), ("vehicle", ["car", "ship"])]:
        (folder / label).mkdir(parents=True)
        for number in range(8):
            shutil.copy(images[names[number % 2]], folder / label / f"{number}.jpg")
    return folder
