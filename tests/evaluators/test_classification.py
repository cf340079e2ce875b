# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import losses, sharding
from vit_jax.evaluators.classification import Evaluator

LABELS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])


def predict(params: dict, image: jax.Array) -> jax.Array:
    """Logits that the first pixels of an image spell out."""
    del params
    return image[:, 0, 0, :]


def images(logits: np.ndarray) -> np.ndarray:
    return logits[:, None, None, :].astype(np.float32)


def batches(arrays: dict, batch_size: int, devices: int):
    """Padded and masked batches on a mesh, NaN where nothing is."""
    mesh = sharding.make_mesh(devices=jax.devices()[:devices])
    size = -(-batch_size // devices) * devices
    n = len(arrays["image"])
    for start in range(0, n, size):
        batch = {k: v[start : start + size] for k, v in arrays.items()}
        missing = size - len(batch["image"])
        batch["mask"] = np.pad(np.ones(size - missing, np.float32), (0, missing))
        batch = {
            k: np.pad(v, [(0, missing)] + [(0, 0)] * (v.ndim - 1)) if k != "mask" else v
            for k, v in batch.items()
        }
        if missing:
            batch["image"][-missing:] = np.nan
        yield jax.device_put(batch, sharding.batch_sharding(mesh))


def evaluate(arrays: dict, batch_size: int = 4, devices: int = 1, **loss) -> dict:
    evaluator = Evaluator(
        predict,
        losses.build_loss(**loss),
        lambda: batches(arrays, batch_size, devices),
    )
    return dict(evaluator.run({}))


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 64])
def test_eight_of_ten_right_is_four_fifths(batch_size: int, devices: int):
    # Right on the first eight: a dropped last batch would give 1.0, a wrapped one
    # 0.8333, a mean of batch means 0.6667.
    answers = np.where(LABELS < 8, LABELS, 0)
    logits = 5.0 * np.eye(10)[answers]
    found = evaluate({"image": images(logits), "label": LABELS}, batch_size, devices)
    assert found["top1"] == pytest.approx(0.8, abs=1e-7)
    assert found["examples"] == 10
    z = np.log(np.exp(5.0) + 9)
    expected = (8 * (z - 5.0) + 2 * z) / 10
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_loss_is_a_mean_over_examples_not_batches():
    # Losses 0..9 in batches of 4 + 4 + 2: 4.5, where a mean of means gives 5.1667.
    targets = np.sqrt(np.arange(10.0))
    arrays = {"image": images(np.zeros((10, 1))), "label": targets.astype(np.float32)}
    evaluator = Evaluator(
        predict,
        losses.build_loss("mse"),
        lambda: batches({**arrays, "labels": targets[:, None]}, 4, 1),
    )
    # An example of a positive target counts; the first target is 0, its loss is 0 too.
    found = dict(evaluator.run({}))
    assert found["loss"] * found["examples"] == pytest.approx(45.0)


def test_top5_counts_the_five_best():
    rank = np.array([1, 5, 6, 10])  # place of the right class among the logits
    logits = np.stack([np.roll(-np.arange(10.0), 11 - r) for r in rank])
    label = np.zeros(4, np.int32)
    place = (logits > logits[:, :1]).sum(-1) + 1
    found = evaluate({"image": images(logits), "label": label})
    assert found["top5"] == pytest.approx((place <= 5).mean())
    assert found["top1"] == pytest.approx((place == 1).mean())


def test_any_of_several_labels_counts_and_none_is_left_out():
    logits = np.eye(4)[[0, 1, 2, 3]]
    several = np.float32([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
    found = evaluate({"image": images(logits), "labels": several}, name="sigmoid")
    assert found["examples"] == 3
    assert found["top1"] == pytest.approx(2 / 3)
    z = np.log1p(np.exp(-1.0)), np.log1p(np.exp(1.0)), np.log(2.0)
    # right at 1: z0; wrong at 1: z1; any at 0: log 2
    rows = [z[0] + 3 * z[2], z[1] + 3 * z[2], z[0] + 3 * z[2]]
    assert found["loss"] == pytest.approx(np.mean(rows), rel=1e-6)


def test_fewer_than_five_classes_have_a_top5_of_one():
    logits = jnp.eye(3)
    found = evaluate(
        {"image": images(np.asarray(logits)), "label": np.array([2, 2, 2])}
    )
    assert found["top5"] == 1.0
    assert found["top1"] == pytest.approx(1 / 3)


def test_flip_averages_the_logits_of_an_image_and_its_mirror_image():
    def left_minus_right(params: dict, image: jax.Array) -> jax.Array:
        del params
        return image[:, 0, 0, :] - 3 * image[:, 0, -1, :]

    pixels = np.random.default_rng(0).normal(size=(6, 1, 4, 5)).astype(np.float32)
    # left - 3 right, and right - 3 left for the mirror image: the mean is -(l + r).
    expected = -(pixels[:, 0, 0] + pixels[:, 0, -1])
    label = expected.argmax(-1).astype(np.int32)
    assert (label != (pixels[:, 0, 0] - 3 * pixels[:, 0, -1]).argmax(-1)).any()
    arrays = {"image": pixels, "label": label}
    found = {
        flip: dict(
            Evaluator(
                left_minus_right,
                losses.build_loss(),
                lambda: batches(arrays, 4, 2),
                flip=flip,
            ).run({})
        )
        for flip in (True, False)
    }
    assert found[True]["top1"] == 1.0
    assert found[False]["top1"] < 1.0
    assert found[True]["examples"] == 6
    log_sums = np.log(np.exp(expected).sum(-1))
    loss = (log_sums - expected[np.arange(6), label]).mean()
    assert found[True]["loss"] == pytest.approx(loss, rel=1e-5)
