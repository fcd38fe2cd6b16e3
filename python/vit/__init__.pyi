from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

__version__: str

StrPath: TypeAlias = str | PathLike[str]
Images: TypeAlias = Any
"""A path, encoded bytes, an image of Pillow, an array of uint8 [height, width, channels], any buffer or tensor with DLPack
like that, an array of float32 [channels, height, width] that is preprocessed already, or an iterable or a batch of these."""
Size: TypeAlias = int | tuple[int, int]
Floats: TypeAlias = NDArray[np.float32]

class Error(Exception):
    """What the library could not do, in one sentence."""

class Prediction(NamedTuple):
    """A class of an image: its name, its probability, and its index in `Model.labels`."""

    label: str
    probability: float
    index: int

def open(
    model: StrPath,
    *,
    device: str = "auto",
    precision: str = "f32",
    threads: int | None = None,
    batch: int | None = None,
    image_size: Size | None = None,
    allow_unmatched: bool = False,
) -> Model:
    """Opens a checkpoint folder, a weights file, a run's folder, or "cifar10", the built-in model."""

def from_state_dict(
    model: str,
    state_dict: Any,
    *,
    labels: list[str] | None = None,
    device: str = "auto",
    precision: str = "f32",
    threads: int | None = None,
    batch: int | None = None,
    image_size: Size | None = None,
    allow_unmatched: bool = False,
) -> Model:
    """A model by name with the weights of a state dict of PyTorch's tensors or NumPy's arrays."""

def devices() -> list[dict[str, Any]]:
    """The devices that models can run on."""

def load_dataset(
    data: StrPath,
    *,
    batch: int = 32,
    split: Literal["train", "val", "test"] | None = None,
    model: Model | None = None,
    image_size: Size | None = None,
    augment: str | None = None,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = 1,
    drop_last: bool = False,
    threads: int | None = None,
) -> Dataset:
    """Opens a dataset as batches of images and labels."""

def train(
    data: StrPath,
    *,
    model: str | None = None,
    finetune: StrPath | None = None,
    recipe: str | None = None,
    settings: dict[str, Any] | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    seed: int | None = None,
    image_size: Size | None = None,
    validation: StrPath | None = None,
    validation_fraction: float = 0.1,
    out: StrPath | None = None,
    overwrite: bool = False,
    device: str = "auto",
    precision: str | None = None,
    threads: int | None = None,
) -> Run:
    """Trains a model on a dataset, in the background, and returns the run at once."""

def resume(folder: StrPath) -> Run:
    """Continues a run that was stopped."""

class Model:
    """A model on a device."""

    def __call__(self, images: Images, *, output: str = "logits", progress: bool | None = None) -> Floats:
        """The logits of images, or any other output."""
    @overload
    def classify(self, images: StrPath | bytes, top: int = 5, *, progress: bool | None = None) -> list[Prediction]:
        """The likeliest classes of an image, or of each of several."""
    @overload
    def classify(self, images: Iterable[StrPath | bytes], top: int = 5, *, progress: bool | None = None) -> list[list[Prediction]]: ...
    @overload
    def classify(self, images: Images, top: int = 5, *, progress: bool | None = None) -> Any: ...
    def embed(
        self,
        images: Images,
        *,
        pool: Literal["features", "class", "mean", "patches"] = "features",
        normalise: bool = False,
        progress: bool | None = None,
    ) -> Floats:
        """Embeddings of images, [n, dim]."""
    @overload
    def explain(
        self,
        images: StrPath | bytes,
        *,
        method: Literal["rollout", "gradient", "gradcam", "attention"] | None = None,
        top: int = 1,
        classes: list[str | int] | None = None,
    ) -> Explanation:
        """What the model's answer depends on."""
    @overload
    def explain(
        self,
        images: Images,
        *,
        method: Literal["rollout", "gradient", "gradcam", "attention"] | None = None,
        top: int = 1,
        classes: list[str | int] | None = None,
    ) -> Any: ...
    def preprocess(self, images: Images) -> Floats:
        """Images as the model takes them, [n, channels, height, width]."""
    def save(self, folder: StrPath) -> None:
        """Writes the model as a checkpoint folder, which timm opens, too."""
    @property
    def labels(self) -> list[str]: ...
    @property
    def classes(self) -> int: ...
    @property
    def image_size(self) -> tuple[int, int]: ...
    @property
    def name(self) -> str | None: ...
    @property
    def source(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def report(self) -> list[str]: ...

class Explanation:
    """What a model's answer depends on in an image: maps over it."""

    @property
    def png(self) -> bytes: ...
    @property
    def map(self) -> Floats: ...
    @property
    def maps(self) -> Floats: ...
    @property
    def names(self) -> list[str]: ...
    def show(self) -> None:
        """Shows the figure: in the notebook, or in the system's viewer of images."""
    def save(self, path: StrPath) -> None:
        """Writes the figure as a PNG file."""

class Dataset:
    """A dataset as batches."""

    @property
    def epoch(self) -> int: ...
    @epoch.setter
    def epoch(self, epoch: int) -> None: ...
    def __iter__(self) -> Iterator[tuple[Floats, NDArray[Any]]]: ...
    def __len__(self) -> int: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def images(self) -> int: ...
    @property
    def unreadable(self) -> list[tuple[str, str]]: ...

class Run:
    """A training run."""

    def __iter__(self) -> Iterator[dict[str, float]]: ...
    def wait(self, *, progress: bool | None = None) -> Run:
        """Waits until the run ended, and returns it."""
    def stop(self) -> None:
        """Stops the run after its current step and saves it."""
    def resume(self) -> Run:
        """Continues the run after it was stopped."""
    def model(self, **options: Any) -> Model:
        """Opens the best model so far."""
    @property
    def metrics(self) -> list[dict[str, float]]: ...
    @property
    def folder(self) -> Path: ...
    @property
    def report(self) -> list[str]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def best(self) -> dict[str, Any] | None: ...
