"""Vision Transformers: classify, embed, explain, train.

>>> import vit
>>> model = vit.open("cifar10")                       # or a run's folder, a checkpoint, a weights file
>>> model.classify("examples/images/dog.jpg", top=1)
[Prediction(label='dog', probability=..., index=5)]
>>> vectors = model.embed(["a.jpg", "b.jpg"])         # NumPy, [2, dim]
>>> run = vit.train("photos/", recipe="small")

Every function has its description: help(vit.open), help(vit.Model).
"""

import atexit
from collections import namedtuple

from ._vit import (
    Dataset,
    Error,
    Explanation,
    Model,
    Run,
    __version__,
    _wait_for_runs,
    devices,
    from_state_dict,
    load_dataset,
    open,
    resume,
    train,
)

__all__ = [
    "Dataset",
    "Error",
    "Explanation",
    "Model",
    "Prediction",
    "Run",
    "__version__",
    "devices",
    "from_state_dict",
    "load_dataset",
    "open",
    "resume",
    "train",
]

Prediction = namedtuple("Prediction", ["label", "probability", "index"])
Prediction.__doc__ = "A class of an image: its name, its probability, and its index in model.labels."

# A program that ends does not end the runs that it began.
atexit.register(_wait_for_runs)
