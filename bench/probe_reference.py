#!/usr/bin/env python3
"""Records what scikit-learn makes of the features of a model, for crates/train/tests/probe.rs.

    vit embed IMAGES -o vectors.npy
    bench/probe_reference.py vectors.npy crates/train/tests/fixtures/probe.safetensors

IMAGES is a folder with a folder for each class: the class of a row is the folder of its image. Some of the rows, chosen by a
fixed seed, are for training, others for testing. Needs numpy, scikit-learn and safetensors.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

WIDTH, TRAIN, FEW, TEST = 48, 200, 30, 50


def main():
    vectors, out = sys.argv[1:]
    names = Path(vectors).with_suffix(".files.txt").read_text().splitlines()
    rows = np.load(vectors)[:, :WIDTH]
    _, labels = np.unique([Path(name).parent.name for name in names], return_inverse=True)
    order = np.random.default_rng(0).permutation(len(rows))[: TRAIN + TEST]
    features, labels = rows[order].astype(np.float32), labels[order]
    train, test = features[:TRAIN], features[TRAIN:]
    classes = labels.max() + 1
    targets = 2.0 * np.eye(classes)[labels[:TRAIN]] - 1.0

    recorded = {"train": train, "test": test, "labels": labels.astype(np.float32)}
    # More samples than features, and fewer.
    for name, count in [("ridge", TRAIN), ("ridge_few", FEW)]:
        for power in [-4, 0, 4]:
            ridge = Ridge(alpha=2.0**power, solver="cholesky")
            ridge.fit(train[:count].astype(np.float64), targets[:count])
            recorded[f"{name}_{power}"] = ridge.predict(test.astype(np.float64))
    for neighbours in [1, 5, 20]:
        nearest = KNeighborsClassifier(neighbours, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
        nearest.fit(train.astype(np.float64), labels[:TRAIN])
        recorded[f"nearest_{neighbours}"] = nearest.predict_proba(test.astype(np.float64))
    scaled = [(x.astype(np.float64) - train.mean(0, np.float64)) / (train.std(0, dtype=np.float64) + 1e-5) for x in (train, test)]
    for power in [-3, -1]:
        logistic = LogisticRegression(C=1 / (TRAIN * 10.0**power), tol=1e-10, max_iter=100000)
        logistic.fit(scaled[0], labels[:TRAIN])
        recorded[f"logistic_{power}"] = logistic.predict_proba(scaled[1])
    save_file({name: value.astype(np.float32) for name, value in recorded.items()}, out)


if __name__ == "__main__":
    main()
