# SPDX-License-Identifier: Apache-2.0
"""Runs collected into the paper's tables, from folders that are written by hand."""

import json
import pathlib
from typing import Any

import pytest

from vit_jax import config as config_lib, found_runs, results, run_tables
from vit_jax.errors import UserError
from vit_jax.published_results import IMAGENET, IMAGENET21K, JFT, VTAB_TASKS

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
I21K = "gs://vit_models/imagenet21k/ViT-B_16.npz"


def write_run(
    folder: pathlib.Path,
    spec: str,
    top1: float,
    *,
    init: str | None = I21K,
    model: str = "ViT-B/16",
    resolution: int = 384,
    fields: dict[str, Any] | None = None,
    step: int | None = None,
    seed: int = 0,
    **more: Any,
) -> None:
    """Writes the files of a run of a config of ours."""
    config = config_lib.load(f"{CONFIGS}/{spec}")
    config.seed = seed
    config.init = {"checkpoint": init} if init else None
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    (folder / "run.json").write_text("{}")
    described = {"name": model, **(fields or {})}
    description = {"model": described, "image_shape": [resolution] * 2 + [3]}
    (folder / "checkpoint.json").write_text(json.dumps(description))
    step = config.total_steps if step is None else step
    lines = [
        {"step": 1, "time": 1.0, "train/loss": 2.0, "val/top1": 0.1},
        {"step": step, "time": 2.0, "val/top1": top1, "val/top5": 1.0, **more},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


def collect(folder: pathlib.Path, pretraining: str | None = None) -> list:
    return run_tables.collect(found_runs.find_runs(str(folder)), pretraining)


def test_seeds_become_one_line_beside_the_papers_number(tmp_path):
    for seed, top1 in enumerate((0.98, 0.99, 0.994)):
        path = tmp_path / f"cifar/seed_{seed}"
        write_run(path, "finetune.py:dataset=cifar10", top1, seed=seed)
    # A trial of a sweep is no result of the benchmark.
    write_run(tmp_path / "cifar/lr_0.1", "finetune.py:dataset=cifar10", 0.97)
    config = json.loads((tmp_path / "cifar/lr_0.1/config.json").read_text())
    config["data"]["split"] = "train[:98%]"
    config["evaluators"]["val"]["split"] = "train[98%:]"
    (tmp_path / "cifar/lr_0.1/config.json").write_text(json.dumps(config))
    trial, line = collect(tmp_path)
    assert trial.data == "tfds:cifar10 train[98%:]"
    assert (line.data, len(line.runs), line.steps) == ("CIFAR-10", 3, 10_000)
    assert line.pretraining == IMAGENET21K
    text = run_tables.to_text([trial, line])
    # Mean 98.8, sample deviation sqrt((0.8² + 0.2² + 0.6²) / 2); Table 5 has 98.95.
    assert "| 3 | 98.80 ± 0.72 | - | 98.95 (Table 5) | -0.15 |" in text
    assert "| tfds:cifar10 train[98%:] | 384 | 10,000 | 1 | 97.00 | - | - | - |" in text
    assert (
        "\n- Table 5, ViT-B/16 from ImageNet-21k: CIFAR-100 91.67, ImageNet 83.97, "
        "ReaL 88.35, Flowers 99.38, Pets 94.43\n"
    ) in text


def test_one_seed_twice_is_not_two_seeds(tmp_path):
    for path, seed, top1 in (("a", 0, 0.9), ("b", 1, 0.95), ("c", 0, 0.9)):
        write_run(tmp_path / path, "finetune.py:dataset=cifar10", top1, seed=seed)
    assert [line.raw for line in collect(tmp_path)] == [(0.9, 0.95), (0.9,)]


def test_json_holds_fractions(tmp_path):
    write_run(tmp_path / "a", "finetune.py:dataset=cifar100", 0.9)
    content = run_tables.to_json(collect(tmp_path))
    (run,) = content["runs"]
    assert run["runs"] == (str(tmp_path / "a"),)
    assert (run["top1"], run["top1_ema"]) == (0.9, None)
    assert (run["table"], run["paper"], run["difference"]) == (5, 0.9167, -0.0167)
    assert len(content["ablations"]) == 4 * 5 + 8 + 6 + 6
    figure = [row for row in content["ablations"] if row["table"] == "Appendix D.3"]
    assert [(row["ours"], row["paper"]) for row in figure] == [([], None)] * 2
    # All numbers of Tables 2, 5, 6 and 9 but this one.
    assert len(content["not_run"]) == 3 * 7 + 14 * 6 + 18 * 6 + 3 * 19 - 1
    assert content["not_run"][0] == {
        "table": 2,
        "model": "ViT-H/14",
        "pretraining": JFT,
        "epochs": None,
        "data": "ImageNet",
        "paper": 0.8855,
    }


def compared(result: Any) -> list[tuple[int, int | None, float]]:
    return [
        (row.table, row.epochs, round(value, 4))
        for _, row, value in run_tables.comparisons([result])
        if row is not None and value is not None
    ]


def test_table_2_is_large_images_and_averaged_weights(tmp_path):
    spec = "finetune.py:dataset=imagenet,resolution=512,polyak"
    fields = {"init": "i21k.npz", "model": "ViT-L/16", "val_ema/top1": 0.853}
    write_run(tmp_path / "a", spec, 0.84, resolution=512, **fields)
    write_run(tmp_path / "b", spec, 0.84, resolution=384, **fields)
    del fields["val_ema/top1"]
    write_run(tmp_path / "c", spec, 0.84, resolution=512, **fields)
    large, small, raw = collect(tmp_path)
    assert compared(large) == [(2, None, 0.853)]
    assert compared(small) == [(5, None, 0.84)]
    assert compared(raw) == []


def test_a_number_may_stand_in_several_tables(tmp_path):
    write_run(
        tmp_path / "a",
        "finetune.py:dataset=pets",
        0.97,
        init="jft/L16.npz",
        model="ViT-L/16",
    )
    (line,) = collect(tmp_path)
    # The file does not tell how long it was trained on JFT.
    assert compared(line) == [
        (2, None, 0.97),
        (5, None, 0.97),
        (6, 7, 0.97),
        (6, 14, 0.97),
    ]
    assert compared(line._replace(epochs=14)) == [
        (2, None, 0.97),
        (5, None, 0.97),
        (6, 14, 0.97),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"step": 400},
        {"init": "weights.npz"},
        {"init": "imagenet21k+imagenet2012/ViT-B_16.npz"},
        {"model": "ViT-S/16"},
        {"resolution": 224},
        {"fields": {"positions": "learned2d"}},
        {"fields": {"pool": "mean"}},
        {"fields": {"width": 32, "depth": 2}},
        {"spec": "finetune.py:dataset=folder:/data/pets"},
    ],
)
def test_what_the_paper_did_not_do_stands_alone(tmp_path, change):
    fields = {"spec": "finetune.py:dataset=pets", "top1": 0.9} | change
    write_run(tmp_path / "a", **fields)
    (line,) = collect(tmp_path)
    assert compared(line) == []
    assert ("500" in run_tables.to_text([line])) or change.keys() & {"step", "spec"}
    if "step" in change:
        assert "| 400, not finished |" in run_tables.to_text([line])


def test_the_pretraining_may_be_told(tmp_path):
    write_run(tmp_path / "a", "finetune.py:dataset=pets", 0.9, init="weights.npz")
    (line,) = collect(tmp_path, IMAGENET)
    assert compared(line) == [(5, None, 0.9)]
    assert "| not known |" in run_tables.to_text(collect(tmp_path))


@pytest.mark.parametrize(
    ("init", "name"),
    [
        (None, "none"),
        ("B_16-i21k-300ep-lr_0.001-aug_medium1.npz", IMAGENET21K),
        ("/w/imagenet1k/x.safetensors:ema", IMAGENET),
        ("vit_base_patch16_224.augreg_in21k.safetensors", IMAGENET21K),
        ("imagenet21k+imagenet2012/x.npz", "ImageNet-21k, then ImageNet"),
        ("/data/imagenet21k/old/other/x.npz", None),
        ("pi1kachu.npz", None),
    ],
)
def test_a_name_may_tell_the_pretraining(init, name):
    assert found_runs.pretraining_of(init).name == name


def test_a_run_of_ours_tells_its_pretraining(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    write_run(first, "vit_b16.py:dataset=jft", 0.5, init=None, step=9)
    path = f"{first}@9:raw"
    write_run(second, "finetune.py:dataset=imagenet", 0.8, init=path)
    assert found_runs.pretraining_of(path) == (JFT, 7, "adam")
    assert found_runs.pretraining_of(str(second)).name == f"{JFT}, then {IMAGENET}"
    lines = {line.init: line for line in collect(tmp_path)}
    assert compared(lines[path]) == [(5, None, 0.8), (6, 7, 0.8)]
    assert lines[None].pretraining == "none"
    other = tmp_path / "c"
    write_run(other, "finetune.py:dataset=pets", 0.8, init="weights.npz")
    assert found_runs.pretraining_of(f"{other}@best").name is None


def test_the_19_tasks_of_vtab_become_their_mean(tmp_path):
    for number, task in enumerate(VTAB_TASKS):
        for seed in (0, 1):
            write_run(
                tmp_path / task / f"seed_{seed}",
                f"vtab.py:task={task}",
                number / 100 + seed / 50,
                init="i21k.npz",
                model="ViT-L/16",
                seed=seed,
            )
    lines = collect(tmp_path)
    assert len(lines) == 20
    # Means 0.01, 0.02, ... 0.19.
    assert compared(lines[-1]) == [(2, None, 0.1)]
    assert len(lines[-1].runs) == 38
    by_data = {line.data: line for line in lines}
    assert compared(by_data["vtab/svhn"]) == [(9, None, 0.07)]
    left = run_tables.to_text(lines)
    assert "Table 9, ViT-L/16 from ImageNet-21k" not in left
    assert "Table 9, ViT-L/16 from JFT-300M: vtab/caltech101 95.4" in left
    text = run_tables.to_text(lines)
    assert "| VTAB | 384 | 2,500 | 1 | 10.00 | - | 72.72 (Table 2) | -62.72 |" in text


def run_main(*arguments: str) -> None:
    results.FLAGS.unparse_flags()
    for name in results.FLAGS:
        results.FLAGS[name].unparse()
    results.main(results.FLAGS(["results", *arguments])[1:])


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    write_run(tmp_path / "runs/a", "finetune.py:dataset=pets", 0.9, init="w.npz")
    (tmp_path / "runs/a/checkpoints").mkdir()
    (tmp_path / "runs/empty").mkdir()
    folders = [str(tmp_path / "runs"), str(tmp_path / "runs/a")]  # the same run twice
    run_main(*folders, "--pretraining=imagenet21k")
    text = capsys.readouterr().out
    assert "| 90.00 | - | 94.43 (Table 5) | -4.43 |" in text
    assert text.count("w.npz") == 1
    for name in ("a.md", "a.json"):
        path = tmp_path / name
        run_main(*folders, "--pretraining=imagenet21k", f"--output={path}")
        assert capsys.readouterr().out == ""
    assert (tmp_path / "a.md").read_text() == text
    assert json.loads((tmp_path / "a.json").read_text())["runs"][0]["paper"] == 0.9443


def test_a_mistake_is_named(tmp_path):
    with pytest.raises(UserError, match="name at least one folder"):
        run_main()
    with pytest.raises(UserError, match=r"must end in \.md or \.json"):
        run_main(str(tmp_path), "--output=x.txt")
    with pytest.raises(UserError, match=r"no folder '.*/none'"):
        run_main(f"{tmp_path}/none")
    with pytest.raises(UserError, match="no run below"):
        run_main(str(tmp_path))
    write_run(tmp_path / "a", "finetune.py:dataset=pets", 0.9)
    with pytest.raises(UserError, match=r"cannot write .*x\.md"):
        run_main(str(tmp_path), f"--output={tmp_path}/none/x.md")
    (tmp_path / "a/checkpoint.json").write_text("{}")
    with pytest.raises(UserError, match="do not describe a run"):
        run_main(str(tmp_path))
    (tmp_path / "a/config.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read .*config\.json"):
        run_main(str(tmp_path))
