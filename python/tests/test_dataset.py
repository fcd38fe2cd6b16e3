"""Datasets as batches of arrays."""

import gc

import numpy as np
import pytest
import vit


def test_an_epoch_has_every_image_once(photos):
    dataset = vit.load_dataset(photos, batch=6, image_size=32)
    assert len(dataset) == 3 and dataset.images == 16 and dataset.labels == ["animal", "vehicle"]
    batches = list(dataset)
    assert [images.shape for images, _ in batches] == [(6, 3, 32, 32), (6, 3, 32, 32), (4, 3, 32, 32)]
    assert all(images.dtype == np.float32 and labels.dtype == np.int64 for images, labels in batches)
    assert sorted(np.concatenate([labels for _, labels in batches])) == [0] * 8 + [1] * 8
    assert "16 images of 2 classes" in repr(dataset) and dataset.unreadable == []


def test_batches_follow_from_seed_and_epoch(photos):
    def first(**options):
        return list(vit.load_dataset(photos, batch=8, image_size=(24, 32), augment="small", **options))

    batches = first(seed=1)
    assert batches[0][0].shape == (8, 3, 24, 32)
    for other in [first(seed=1, threads=3), first(seed=1, epochs=2)[:2]]:
        for (images, labels), (same, same_labels) in zip(batches, other, strict=True):
            np.testing.assert_array_equal(images, same)
            np.testing.assert_array_equal(labels, same_labels)
    assert not np.array_equal(batches[0][0], first(seed=2)[0][0])
    dataset = vit.load_dataset(photos, batch=8, image_size=(24, 32), augment="small", seed=1)
    list(dataset)
    second = list(dataset)
    assert dataset.epoch == 2 and not np.array_equal(batches[0][0], second[0][0])
    dataset.epoch = 1
    np.testing.assert_array_equal(next(iter(dataset))[0], second[0][0])


def test_arrays_keep_their_memory(photos):
    batches = []
    for images, labels in vit.load_dataset(photos, batch=4, image_size=16, shuffle=False):
        batches.append((images, images.copy(), labels))
    gc.collect()
    for images, copy, _ in batches:
        np.testing.assert_array_equal(images, copy)
    assert [list(labels) for *_, labels in batches] == [[0] * 4] * 2 + [[1] * 4] * 2
    images[:] = 0
    assert images.flags.writeable


def test_a_model_takes_the_batches_of_its_dataset(model, photos):
    dataset = vit.load_dataset(photos, batch=5, model=model, shuffle=False, drop_last=True)
    logits = np.concatenate([model(images) for images, _ in dataset])
    assert logits.shape == (15, 10)
    paths = [photos / label / f"{number}.jpg" for label in ["animal", "vehicle"] for number in range(8)]
    np.testing.assert_array_equal(logits, model(paths[:15]))


def test_splits_and_errors(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        vit.load_dataset(tmp_path / "nowhere")
    with pytest.raises(vit.Error, match="has no test split"):
        vit.load_dataset(photos, split="test")
    with pytest.raises(ValueError, match="not a split"):
        vit.load_dataset(photos, split="tset")
    with pytest.raises(ValueError, match="batch is 0"):
        vit.load_dataset(photos, batch=0)
    endless = iter(vit.load_dataset("contours:3x4", batch=8, image_size=16, epochs=None))
    assert sum(len(labels) for _, (_, labels) in zip(range(5), endless)) == 8 + 4 + 8 + 4 + 8


def test_images_that_cannot_be_read_are_named(photos, tmp_path):
    folder = tmp_path / "photos"
    for label in ["a", "b"]:
        (folder / label).mkdir(parents=True)
        for number in range(30):
            (folder / label / f"{number}.jpg").symlink_to(photos / "animal" / "0.jpg")
    (folder / "a" / "7.jpg").unlink()
    (folder / "a" / "7.jpg").write_bytes(b"words")
    dataset = vit.load_dataset(folder, batch=20, image_size=16)
    assert sum(len(labels) for _, labels in dataset) == 60
    [(name, reason)] = dataset.unreadable
    assert name.endswith("7.jpg") and "not an image" in reason
