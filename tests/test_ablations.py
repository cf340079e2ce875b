# SPDX-License-Identifier: Apache-2.0
"""The ablations of the papers: numbers, recipes, and which run stands beside which."""

import json
import math
import pathlib
import statistics
from typing import Any

import pytest

from vit_jax import config as config_lib, found_runs, run_tables
from vit_jax.models import build_model, catalog
from vit_jax.published_results import FEWSHOT, JFT, PUBLISHED
from vit_jax.run_tables.ablations import ABLATIONS

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


def rows(table: int | str) -> list:
    return [each.row for each in ABLATIONS if each.row.table == table]


def test_averages_of_table_7_are_the_published_ones():
    averages = [statistics.mean(row.values.values()) for row in rows(7)]
    for ours, paper in zip(averages, (89.33, 88.79, 94.01, 93.72), strict=True):
        assert ours == pytest.approx(paper, abs=0.005)


def test_adam_in_table_7_is_table_6():
    adam = {row.model: row.values for row in rows(7) if row.optimizer == "adam"}
    assert set(adam) == {"BiT-R50x1", "BiT-R152x2"}
    for row in PUBLISHED:
        if row.table == 6 and row.epochs == 7 and row.model in adam:
            other = {name: row.values[name] for name in adam[row.model]}
            assert other == adam[row.model]


def test_table_8_has_the_papers_orders():
    values = {tuple(row.changes.items()): row.values[FEWSHOT] for row in rows(8)}
    assert len(values) == 8
    # No positions cost two to three points; all else lies within 0.4.
    none = values.pop((("positions", "none"),))
    assert none == 61.382
    assert 2.5 < min(values.values()) - none < max(values.values()) - none < 3
    assert max(values, key=values.__getitem__) == (
        ("position_injection", "every_layer_shared"),
    )
    assert values[()] == 64.206


def test_what_a_figure_alone_shows_has_no_number():
    tables = {
        each.row.table
        for each in ABLATIONS
        if all(map(math.isnan, each.row.values.values()))
    }
    assert tables == {"Appendix D.2", "Appendix D.3", "Appendix D.6"}


def test_the_swin_ablations_are_the_published_ones():
    # Section 4.4: shifts gain 1.1 points, relative positions 1.2 over none and 0.8 over
    # absolute ones.
    top1 = {
        e.what: e.row.values["ImageNet"] for e in ABLATIONS if "Swin" in e.row.title
    }
    usual = top1["shifted windows, relative positions"]
    gains = {what: round(usual - value, 1) for what, value in top1.items()}
    assert gains == {
        "shifted windows, relative positions": 0.0,
        "fixed windows": 1.1,
        "sliding windows": -0.1,
        "no positions": 1.2,
        "absolute positions": 0.8,
        "absolute and relative positions": 0.0,
    }


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda each: str(each.what))
def test_every_ablation_is_a_model_of_the_zoo(ablation):
    model = build_model(ablation.row.model, num_classes=3, **ablation.row.changes)
    assert {*ablation.row.varies} <= {*vars(model)}


def write_run(
    folder: pathlib.Path, spec: str, top1: float, metric: str, **changes: Any
) -> None:
    """Writes the files of a run of a config, as if it had ended so."""
    config = config_lib.load(f"{CONFIGS}/{spec}")
    config_lib.override(config, [(k, str(v)) for k, v in changes.items()])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    model = {k: v for k, v in config.model.items() if v is not None}
    description = {"model": model, "image_shape": [224, 224, 3]}
    (folder / "checkpoint.json").write_text(json.dumps(description))
    line = {"step": 500_000, "time": 1.0, metric: top1}
    (folder / "metrics.jsonl").write_text(json.dumps(line))


def beside(folder: pathlib.Path) -> list[tuple[str, str, int | str]]:
    """Data, model and table of each published number that runs stand beside."""
    results = run_tables.collect(found_runs.find_runs(str(folder)))
    return [
        (result.data, row.model, row.table)
        for result, row, _ in run_tables.comparisons(results)
        if row is not None
    ]


TABLE_8 = {
    ("none", "stem"): 61.38,
    ("learned", "stem"): 64.21,
    ("learned", "every_layer"): 63.96,
    ("learned", "every_layer_shared"): 64.29,
    ("learned2d", "stem"): 64.00,
    ("learned2d", "every_layer"): 64.05,
    ("learned2d", "every_layer_shared"): 64.02,
    ("relative", "stem"): 64.03,
}


@pytest.mark.parametrize(("positions", "injection"), TABLE_8)
def test_each_recipe_of_table_8_stands_beside_its_number(
    positions: str, injection: str, tmp_path: pathlib.Path
):
    spec = f"ablation_positions.py:positions={positions},injection={injection}"
    write_run(tmp_path / "run", spec, 0.65, "fewshot/5shot/top1")
    results = run_tables.collect(found_runs.find_runs(str(tmp_path)))
    found = {
        (row.table, row.values[FEWSHOT], value)
        for _, row, value in run_tables.comparisons(results)
        if row is not None and not math.isnan(row.values[FEWSHOT])
    }
    ((table, paper, ours),) = found
    assert (table, ours) == (8, 0.65)
    assert paper == pytest.approx(TABLE_8[positions, injection], abs=0.0051)
    difference = f"{65 - paper:+.2f}"
    text = run_tables.to_text(results).split("Ablations:")[1]
    assert (
        f"| Table 8 | ViT-B/16 | positions {positions}, {injection} | {FEWSHOT} | "
        f"65.00 | {paper:.2f} | {difference} |"
    ) in text
    assert text.count("not yet run") == 40 - len(beside(tmp_path))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ablation_head.py:head=mean,lr=0.0003", [("ViT-B/16", "Appendix D.3")]),
        ("ablation_shape.py", [("ViT-L/32", "Appendix D.2")]),
        ("ablation_shape.py:scale=depth,factor=8", [("ViT-L/32", "Appendix D.2")]),
        ("ablation_shape.py:factor=2", [("ViT-L/32", "Appendix D.2")]),
        ("ablation_axial.py", [("Axial-ViT-B/32", "Appendix D.6")]),
        ("ablation_axial.py:patch=16", [("Axial-ViT-B/16", "Appendix D.6")]),
        # The class token of D.3 is Table 8's usual model.
        (
            "ablation_head.py",
            [("ViT-B/16", 8), ("ViT-B/16", "Appendix D.3")],
        ),
    ],
)
def test_recipes_of_the_appendix_stand_beside_their_figures(
    spec: str, expected: list, tmp_path: pathlib.Path
):
    write_run(tmp_path / "run", spec, 0.6, "fewshot/5shot/top1")
    assert beside(tmp_path) == [(FEWSHOT, *each) for each in expected]
    text = run_tables.to_text(run_tables.collect(found_runs.find_runs(str(tmp_path))))
    assert "| 60.00 | figure only | - |" in text


@pytest.mark.parametrize(
    ("spec", "table", "paper"),
    [
        ("", 4, "81.30"),
        (":windows=fixed", 4, "80.20"),
        (":windows=sliding", 6, "81.40"),
        (":positions=none", 4, "80.10"),
        (":positions=absolute", 4, "80.50"),
        (":positions=absolute+relative", 4, "81.30"),
    ],
)
def test_recipes_of_swin_stand_beside_their_numbers(
    spec: str, table: int, paper: str, tmp_path: pathlib.Path
):
    write_run(tmp_path / "run", f"ablation_windows.py{spec}", 0.8, "val/top1")
    assert beside(tmp_path) == [("ImageNet", "Swin-T", f"Swin paper, Table {table}")]
    text = run_tables.to_text(run_tables.collect(found_runs.find_runs(str(tmp_path))))
    assert f"| ImageNet | 80.00 | {paper} | {80 - float(paper):+.2f} |" in text


@pytest.mark.parametrize(
    ("spec", "metric", "changes"),
    [
        ("ablation_windows.py", "val/top1", {"total_epochs": 100}),
        ("ablation_windows.py", "val/top1", {"model.window_size": 8}),
        ("ablation_windows.py:windows=fixed,positions=none", "val/top1", {}),
        ("ablation_positions.py", "fewshot/10shot/top1", {}),
        (
            "ablation_positions.py",
            "fewshot/5shot/top1",
            {"data.dataset": "tfds:imagenet21k"},
        ),
        (
            "ablation_positions.py",
            "fewshot/5shot/top1",
            {"data.split": "train[:9000000]"},
        ),
        ("ablation_positions.py", "fewshot/5shot/top1", {"model.mlp_dim": 768}),
        (
            "ablation_axial.py",
            "fewshot/5shot/top1",
            {"evaluators.fewshot.split": "train[99%:]"},
        ),
        ("ablation_axial.py", "fewshot/5shot/top1", {"optimizer.name": "sgd"}),
    ],
)
def test_what_no_paper_did_stands_alone(
    spec: str, metric: str, changes: dict, tmp_path: pathlib.Path
):
    if changes.get("optimizer.name") == "sgd":
        changes = {**changes, "optimizer.b1": None, "optimizer.b2": None}
    write_run(tmp_path / "run", spec, 0.6, metric, **changes)
    assert beside(tmp_path) == []
    assert "| 60.00 |" in run_tables.to_text(
        run_tables.collect(found_runs.find_runs(str(tmp_path)))
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_table_7_asks_with_what_the_checkpoint_was_trained(
    optimizer: str, tmp_path: pathlib.Path
):
    first, second = tmp_path / "first", tmp_path / "second"
    spec = f"ablation_optimizer.py:model=r152x2,optimizer={optimizer}"
    write_run(first, spec, 0.5, "val/top1")
    write_run(second, "finetune.py:dataset=pets", 0.95, "val/top1")
    config = json.loads((second / "config.json").read_text())
    config["init"]["checkpoint"] = f"{first}@500000"
    (second / "config.json").write_text(json.dumps(config))
    description = {"model": {"name": "BiT-R152x2"}, "image_shape": [384, 384, 3]}
    (second / "checkpoint.json").write_text(json.dumps(description))
    tables = {"adam": [6, 7], "sgd": [7]}[optimizer]
    assert beside(tmp_path) == [("Pets", "BiT-R152x2", table) for table in tables]
    results = run_tables.collect(found_runs.find_runs(str(tmp_path)))
    paper = {"adam": "95.37 | -0.37", "sgd": "94.79 | +0.21"}[optimizer]
    assert f"| Pets | 95.00 | {paper} |" in run_tables.to_text(results)


def test_masked_patch_prediction_is_another_pretraining(tmp_path: pathlib.Path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_run(first, "masked_patch_b16.py", 0.0, "val/loss")
    write_run(second, "finetune.py:dataset=imagenet", 0.8, "val/top1")
    config = json.loads((second / "config.json").read_text())
    config["init"]["checkpoint"] = str(first)
    (second / "config.json").write_text(json.dumps(config))
    description = {"model": {"name": "ViT-B/16"}, "image_shape": [384, 384, 3]}
    (second / "checkpoint.json").write_text(json.dumps(description))
    (run,) = [r for r in found_runs.find_runs(str(tmp_path)) if r.init]
    assert run.pretraining.name == f"{JFT}, masked patches"
    assert beside(tmp_path) == [("ImageNet", "ViT-B/16", "Appendix B.1.2")]


def test_several_runs_of_one_ablation_show_the_best(tmp_path: pathlib.Path):
    for lr, top1 in (("0.0003", 0.61), ("0.001", 0.64), ("0.003", 0.5)):
        spec = f"ablation_head.py:head=mean,lr={lr}"
        write_run(tmp_path / lr, spec, top1, "fewshot/5shot/top1")
    text = run_tables.to_text(run_tables.collect(found_runs.find_runs(str(tmp_path))))
    assert "| 64.00 (best of 3) | figure only | - |" in text


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({"name": "ViT-B/16"}, {}),
        ({"name": "ViT-B/16", "positions": "learned2d"}, {"positions": "learned2d"}),
        # How it was made and trained, and numerics of its weights, do not matter.
        (
            {
                **{"name": "ViT-B/16", "num_classes": 10, "preset": "big-vision-vit"},
                **{"dropout_rate": 0.1, "dtype": "bfloat16", "scan": True},
                **{"representation_size": 768, "positions": "learned"},
            },
            {},
        ),
        ({"name": "ViT-B/16", "preset": "siglip"}, {"pool": "map"}),
        ({"name": "ViT-B/16", "width": 768, "depth": 11}, {"depth": 11}),
        ({"name": "Swin-T", "depths": [2, 2, 6, 2], "resolution": 384}, {}),
        ({"name": "BiT-R50x1", "stages": [1, 1]}, {"stages": (1, 1)}),
    ],
)
def test_fields_that_make_another_model_are_told(model: dict, changes: dict):
    assert found_runs.changes_of(model) == changes


def test_every_row_of_the_zoo_is_itself():
    for row in catalog.VARIANTS:
        assert found_runs.changes_of({"name": row.name, **row.fields}) == {}
