# SPDX-License-Identifier: Apache-2.0
"""Training with broken images: an error by default, else a fixed replacement."""

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encode, photo
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.order import Mixture, Plan
from vit_jax.data.pipeline import eval_batches, train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

GOOD = encode(photo(8, 8), "PNG")
NUM = 24
BROKEN = {3: b"<html>gone</html>", 10: b"", 17: GOOD[:60]}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A list of pictures whose target is the row; some are broken."""
    lines = ["image,target"]
    for row in range(NUM):
        (tmp_path / f"{row}.png").write_bytes(BROKEN.get(row, GOOD))
        lines.append(f"{row}.png,{row}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return tmp_path


def rows_seen(folder: Path, count: int, **options) -> list[list[int]]:
    source = open_source(f"csv:{folder}/list.csv", "train")
    options = {"batch_size": 8, "ops": "decode", "seed": 1, **options}
    with train_batches(source, skip_errors=True, **options) as batches:
        taken = list(itertools.islice(batches, count))
    return [batch["label"].astype(int).tolist() for batch in taken]


def test_a_broken_image_ends_training_by_default(listed):
    source = open_source(f"csv:{listed}/list.csv", "train")
    with (
        train_batches(source, batch_size=8, ops="decode", seed=1) as batches,
        pytest.raises(UserError, match=r"/(3|10|17)\.png: not a picture"),
    ):
        list(itertools.islice(batches, 3))


def test_only_broken_images_are_replaced(listed):
    seen = np.array(rows_seen(listed, 6)).ravel()
    plan = Plan(NUM, 8, 0, 1, 1)
    planned = np.concatenate([plan.rows(step) for step in range(6)])
    whole = ~np.isin(planned, list(BROKEN))
    np.testing.assert_array_equal(seen[whole], planned[whole])
    assert not np.isin(seen, list(BROKEN)).any()
    assert (~whole).sum() == 6  # three in each of two epochs


@pytest.mark.parametrize("process_count", [2, 4])
def test_replacements_are_the_same_for_any_number_of_processes(listed, process_count):
    whole = rows_seen(listed, 4)
    shares = [
        rows_seen(listed, 4, process_index=index, process_count=process_count)
        for index in range(process_count)
    ]
    assert [[*itertools.chain(*parts)] for parts in zip(*shares, strict=True)] == whole


def test_replacements_are_the_same_after_a_resumption(listed):
    whole = rows_seen(listed, 6)
    for start in (1, 2, 5):
        assert rows_seen(listed, 6 - start, start_step=start) == whole[start:]


def test_what_is_skipped_is_named_and_counted_once(listed, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        rows_seen(listed, 9)
    lines = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert len(lines) == 3
    for row in BROKEN:
        assert any(f"/{row}.png: not a picture" in line for line in lines)
    assert any("(3 skipped so far)" in line for line in lines)


def test_a_missing_file_and_an_image_that_ops_refuse_are_skipped(listed):
    source = open_source(f"csv:{listed}/list.csv", "train")
    (listed / "5.png").unlink()
    (listed / "6.png").write_bytes(encode(photo(3, 8), "PNG"))
    with train_batches(
        source, batch_size=6, ops="decode|central_crop(5)", seed=0, skip_errors=True
    ) as batches:
        seen = np.concatenate([next(batches)["label"] for _ in range(8)]).astype(int)
    assert set(seen.tolist()) == set(range(NUM)) - {*BROKEN, 5, 6}
    assert set(source.broken) == {*BROKEN, 5, 6}
    assert "central_crop" in source.broken[6]


def test_a_source_that_is_all_broken_ends_training(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(4):
        (tmp_path / "a" / f"{number}.png").write_bytes(b"nothing")
    source = open_source(f"folder:{tmp_path}", "train")
    with (
        train_batches(
            source, batch_size=2, ops="decode", seed=0, skip_errors=True
        ) as batches,
        pytest.raises(UserError, match=r"broken themselves \(4 of 4 .*data\.scan"),
    ):
        next(batches)


def test_replacements_come_from_the_same_part_of_a_mixture():
    mixture = Mixture((50, 3), (1, 1))
    plan = Plan(53, 40, 0, 1, 0, mixture)
    broken = {*range(0, 50, 2), 51}
    for step in range(5):
        before, after = plan.rows(step), plan.rows(step, broken)
        np.testing.assert_array_equal(before < 50, after < 50)
        assert not broken & set(after.tolist())
    # Replacements are spread over the source.
    assert len(set(np.concatenate([plan.rows(s, broken) for s in range(5)]))) > 20


def test_a_mixture_with_broken_images_is_trained_on(listed, tmp_path):
    part = {"dataset": f"csv:{listed}/list.csv", "split": "train", "weight": 1}
    source = open_mixture({"a": part, "b": part})
    with train_batches(
        source, batch_size=8, ops="decode", seed=0, skip_errors=True
    ) as batches:
        seen = np.concatenate([next(batches)["label"] for _ in range(12)])
    assert len(seen) == 96
    assert not set(BROKEN) & set(seen.astype(int).tolist())


def test_evaluation_never_skips(listed):
    source = open_source(f"csv:{listed}/list.csv", "train")
    with (
        eval_batches(source, batch_size=8, ops="decode") as batches,
        pytest.raises(UserError, match=r"/3\.png: not a picture .* HTML"),
    ):
        list(batches)
