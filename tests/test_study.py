# SPDX-License-Identifier: Apache-2.0
"""The scaling study: its cells, what they cost, and what is made of their results."""

import fnmatch
import itertools
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vit_jax import cells, command, config as config_lib, study
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError
from vit_jax.scaling import costs, figures, grid, results, tables
from vit_jax.train.early_stopping import EarlyStopping

ROOT = pathlib.Path(__file__).parent.parent
LARGE = str(ROOT / "configs" / "scaling_study.py")
SMALL = str(ROOT / "configs" / "scaling_study_small.py")

# Table 6 of arXiv:2010.11929: model, epochs and exaFLOPs.
TABLE_6 = {
    ("ViT-B/32", 7): 55,
    ("ViT-B/16", 7): 224,
    ("ViT-L/32", 7): 196,
    ("ViT-L/16", 7): 783,
    ("ViT-L/16", 14): 1567,
    ("ViT-H/14", 14): 4262,
    ("BiT-R50x1", 7): 50,
    ("BiT-R50x2", 7): 199,
    ("BiT-R101x1", 7): 96,
    ("BiT-R152x1", 7): 141,
    ("BiT-R152x2", 7): 563,
    ("BiT-R152x2", 14): 1126,
    ("BiT-R200x3", 14): 3306,
    ("R50+ViT-B/32", 7): 106,
    ("R50+ViT-B/16", 7): 274,
    ("R50+ViT-L/32", 7): 246,
    ("R50+ViT-L/16", 7): 859,
    ("R50+ViT-L/16", 14): 1668,
}


def make_study(spec: str, **changes: Any) -> grid.Study:
    fields = config_lib.load(spec).to_dict()
    fields["study"] |= changes
    return grid.make_study(spec, fields)


@pytest.fixture(scope="module")
def large() -> dict[grid.Cell, dict[str, Any]]:
    """The cells of the large study with their configs."""
    return {
        cell: config_lib.load(cell.spec).to_dict() for cell in make_study(LARGE).cells
    }


def test_the_runs_of_table_6_cost_what_the_paper_says(large):
    found = {}
    for cell, fields in large.items():
        if cell.data != "JFT" or cell.model == "ViT-b/32":
            continue
        cost = costs.estimate(fields, data_is_here=False)
        key = (cost.model, round(cost.epochs))
        found[key] = cost
        # ResNets halve their maps one convolution later than the paper's, see
        # tests/models/test_flops.py.
        tolerance = 0.055 if cost.family == "bit" else 0.03
        assert cost.exaflops == pytest.approx(TABLE_6[key], rel=tolerance)
        assert cost.paper == TABLE_6[key]
        assert len(cell.transfers) == 5
    assert found.keys() == TABLE_6.keys()
    # 55 exaFLOPs at 0.4 of 61.5 TFLOP/s, the half of a chip's 123.
    cost = found["ViT-B/32", 7]
    assert cost.core_days == pytest.approx(
        cost.exaflops * 1e18 / (0.4 * 61.5e12) / (24 * 3600)
    )
    # Table 2: 680 core-days; the estimate is to be of that size.
    assert found["ViT-L/16", 14].core_days == pytest.approx(680, rel=0.2)
    # 86.6 million with 1,000 classes, and the tanh layer and the larger head.
    head = 768 * 768 + 768 + (18_291 - 1000) * 769
    assert found["ViT-B/16", 7].parameters == 86_567_656 + head


# Table 3 of arXiv:2010.11929, by the first letters of the model.
JFT_LR = {
    "ViT-B": 8e-4,
    "ViT-L/32": 6e-4,
    "ViT-L/16": 4e-4,
    "ViT-H/14": 3e-4,
    "BiT-R50x": 1e-3,
    "BiT-R101x1": 8e-4,
    "BiT-R152": 6e-4,
    "R50+ViT-B": 8e-4,
    "R50+ViT-L/32": 2e-4,
    "R50+ViT-L/16": 4e-4,
}


def test_the_large_study_has_the_rates_of_table_3(large):
    seen = set()
    for cell, fields in large.items():
        optimizer = fields["optimizer"]
        if not cell.data.startswith("JFT"):
            assert (
                optimizer["lr"] == {"ImageNet": 3e-3, "ImageNet-21k": 1e-3}[cell.data]
            )
            continue
        assert (optimizer["weight_decay"], optimizer["schedule"]) == (0.1, "linear")
        name = fields["model"]["name"]
        for start, lr in JFT_LR.items():
            if name.startswith(start):
                assert optimizer["lr"] == lr
                seen.add(start)
    assert seen == JFT_LR.keys()


def test_the_large_studys_subsets_are_parts_of_each_other(large):
    sizes = {}
    for cell, fields in large.items():
        if cell.model == "BiT-R152x2, 7 epochs":
            assert fields["early_stopping"]["metric"] == "val/top1"
            cost = costs.estimate(fields, data_is_here=False)
            sizes[cell.data] = (fields["data"]["split"], cost.examples, cost.steps)
    steps = round(7 * 303e6 / 4096)
    assert sizes == {
        "JFT 9M": ("train[:9000000]", 9_000_000, steps),
        "JFT 30M": ("train[:30000000]", 30_000_000, steps),
        "JFT 90M": ("train[:90000000]", 90_000_000, steps),
        "JFT": ("train", 303_000_000, steps),
    }


def test_the_small_studys_subsets_are_parts_of_each_other():
    splits = {}
    for cell in make_study(SMALL).cells:
        fields = config_lib.load(cell.spec).to_dict()
        splits[cell.data] = fields["data"]["split"]
        assert fields["evaluators"]["val"]["split"] == "train[55000:]"
    sources = [
        open_source("bundled:mnist", splits[data])
        for data in ("1k", "3k", "10k", "55k")
    ]
    assert [len(source) for source in sources] == [1000, 3000, 10_000, 55_000]
    for small, big in itertools.pairwise(sources):
        rows = np.arange(len(small))
        np.testing.assert_array_equal(small.read(rows), big.read(rows))
    held_out = open_source("bundled:mnist", "train[55000:]")
    assert len(held_out) == 5000


def test_a_cell_is_in_the_grid_once_whatever_needs_it():
    study = make_study(
        SMALL,
        models={"A": "model=vit", "B": "model=bit"},
        data={"x": "data=1k", "y": "", "z": "data=3k"},
        grids={
            "lines": {"models": ("A",), "data": ("x", "y")},
            "column": {"data": ("y",)},
        },
        seeds=(0, 1),
    )
    assert {(cell.model, cell.data, cell.seed) for cell in study.cells} == {
        (model, data, seed) for model, data in ("Ax", "Ay", "By") for seed in (0, 1)
    }
    assert len(study.cells) == 6
    specs = {cell.name: cell.spec for cell in study.cells}
    assert specs["A/x/seed_1"] == f"{SMALL}:model=vit,data=1k"
    assert specs["B/y/seed_0"] == f"{SMALL}:model=bit"
    everything = make_study(SMALL, grids=None)
    assert len(everything.cells) == len(everything.models) * len(everything.data)


def brute_force_front(points: list[tuple[float, float]]) -> set[tuple[float, float]]:
    return {
        (cost, score)
        for cost, score in points
        if not any(
            c <= cost and s >= score and (c, s) != (cost, score) for c, s in points
        )
    }


def test_the_pareto_front_is_that_of_brute_force(rng):
    for size in (1, 2, 10, 200):
        for levels in (3, 1000):  # with and without equal numbers
            pairs = rng.integers(levels, size=(size, 2)).tolist()
            front = results.pareto_front(*zip(*pairs, strict=True))
            found = [tuple(pairs[i]) for i in front]
            assert found == sorted(brute_force_front([tuple(p) for p in pairs]))


# --- The command, with stand-ins for the processes of its cells.


class Ended:
    """A process that has ended."""

    def __init__(self, status: int):
        self.status = status

    def wait(self) -> int:
        return self.status


def accuracy(workdir: str) -> float:
    """What the stand-in for the cell in this directory reaches."""
    return 0.5 + 0.001 * (sum(map(ord, workdir.rsplit("/", 4)[-3])) % 400)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Stands in for the processes: writes what the run of a command would."""
    done: list[dict[str, str]] = []

    def run(command: list[str], **settings: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "vit_jax.main"]
        flags = dict(arg[2:].split("=", 1) for arg in command if "=" in arg)
        done.append(flags)
        workdir = pathlib.Path(flags["workdir"])
        if any(fnmatch.fnmatch(str(workdir), p) for p in FAILING):
            settings["stdout"].write(b"starting\nerror: out of luck; try again\n\n")
            return Ended(1)
        workdir.mkdir(parents=True)
        top1 = accuracy(str(workdir))
        lines = [
            {"step": 10, "val/top1": 0.9, "val/loss": 1.0},
            {"step": 10, "test/top1": top1, "fewshot/5shot/top1": top1 / 2},
            {"step": 20, "val/top1": 0.8, "test/top1": 0.1, "train/loss": 1.0},
        ]
        text = "".join(json.dumps({"time": 0.0, **line}) + "\n" for line in lines)
        (workdir / "metrics.jsonl").write_text(text)
        (workdir / "run.json").write_text('{"finished_step": 20}')
        return Ended(0)

    monkeypatch.setattr(subprocess, "Popen", run)
    monkeypatch.setattr(sys.modules[__name__], "FAILING", [])
    return done


FAILING: list[str] = []


def start(monkeypatch: pytest.MonkeyPatch, spec: str, *more: str) -> int:
    """Runs the command in this process; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["study", spec, *more])
    monkeypatch.setattr(command, "_set_up_logging", lambda: None)
    try:
        with pytest.raises(SystemExit) as ended:
            command.run(study.main, study.__doc__, study.FLAGS)
    finally:
        # As a new process would find them.
        study.FLAGS.remove_flag_values(command._SHARED)
        study.FLAGS.unparse_flags()
        for name in [*study.FLAGS, *command._SHARED]:
            (study.FLAGS if name in study.FLAGS else command._SHARED)[name].unparse()
    return int(ended.value.code or 0)


def test_a_study_runs_each_cell_once_and_tells_what_is_missing(
    workdir, runs, monkeypatch, capsys
):
    flags = (f"--workdir={workdir}", "--config.log_steps=7")
    FAILING.append("*/ResNet/3k/*")
    some = "--cells=ViT/*,ResNet/*"
    assert start(monkeypatch, SMALL, *flags, some) == 1
    captured = capsys.readouterr()
    error = captured.err.strip().splitlines()[-1]
    assert error.startswith("error: 1 of the runs failed: ResNet/3k/seed_0 (exit")
    assert "error: out of luck; try again; its log is " in error
    assert f"{workdir}/ResNet/3k/seed_0.log" in error
    # The plan comes first: 64 wide, 4 blocks, 17 tokens.
    vit = 49 * 3 * 64 + 64 + 64 + 17 * 64 + 2 * 64 + 10 * 65
    vit += 4 * (4 * 64 * 65 + 4 * 64 + 2 * 64 * 128 + 128 + 64)
    plan = [line for line in captured.out.splitlines() if line.startswith("| ViT  ")]
    assert f"| {vit:,} " in plan[0]
    # Five sets of pictures for each of the two.
    names = {flags["workdir"].removeprefix(f"{workdir}/") for flags in runs}
    assert len(runs) == len(names) == 10
    assert all(flags["config.log_steps"] == "7" for flags in runs)
    kept = json.loads((workdir / "study.json").read_text())
    states = {cell["name"]: cell["state"] for cell in kept["cells"]}
    assert [name for name, state in states.items() if state == "finished"] == [
        name for name in states if name in names - {"ResNet/3k/seed_0"}
    ]
    table = (workdir / "study.md").read_text()
    (missing,) = [x for x in table.splitlines() if x.startswith("Missing: ")]
    assert set(missing.removeprefix("Missing: ").split(", ")) == {
        name for name, state in states.items() if state == "missing"
    }
    assert "ResNet/3k/seed_0" in missing
    assert "hybrid/1k/seed_0" in missing
    assert f"9 of {len(states)} runs are finished." in table

    FAILING.clear()
    assert start(monkeypatch, SMALL, *flags) == 0
    again = [each["workdir"] for each in runs]
    assert len(again) == len(states) + 1  # the one that had failed
    assert len(set(again)) == len(states)
    assert start(monkeypatch, SMALL, *flags) == 0
    assert len(runs) == len(again)
    table = (workdir / "study.md").read_text()
    assert "Missing" not in table
    assert table in capsys.readouterr().out
    # The weights with the best validation accuracy count, and are from update 10.
    top1 = accuracy(f"{workdir}/ViT/1k/seed_0")
    (row,) = [x for x in table.splitlines() if x.startswith("| ViT/1k/seed_0 ")]
    assert [text.strip() for text in row.split("|")][5:7] == ["400", "10"]
    assert f"| {100 * top1:.2f} " in row
    assert f"| {50 * top1:.2f} " in row
    assert (workdir / "study.png").read_bytes()[:4] == b"\x89PNG"
    # Pareto front: brute force over the cells with all the data.
    kept = json.loads((workdir / "study.json").read_text())
    dots = {
        (cell["model_label"], cell["data_label"]): (
            cell["exaflops_spent"],
            cell["values"]["test/top1"],
        )
        for cell in kept["cells"]
        if cell["examples"] == 55_000
    }
    front = brute_force_front(list(dots.values()))
    assert {dots[each["model"], each["data"]] for each in kept["pareto_front"]} == (
        front
    )


def test_commands_are_printed_as_they_are_or_for_a_launcher(
    workdir, runs, monkeypatch, capsys
):
    finished = workdir / "ViT" / "1k" / "seed_0"
    finished.mkdir(parents=True)
    (finished / "run.json").write_text('{"finished_step": 20}')
    flags = (f"--workdir={workdir}", "--dry_run", "--cells=ViT/1k/*,ViT/3k/*")
    assert start(monkeypatch, SMALL, *flags) == 0
    (line,) = capsys.readouterr().out.splitlines()
    words = shlex.split(line)
    assert words[:3] == [sys.executable, "-m", "vit_jax.main"]
    assert words[3:] == [
        f"--config={SMALL}:model=vit,data=3k",
        f"--workdir={workdir}/ViT/3k/seed_0",
        "--config.seed=0",
    ]
    launcher = "--launcher=python launch/slurm.py --name={name} --time=1:00 --"
    assert start(monkeypatch, SMALL, *flags, launcher) == 0
    (line,) = capsys.readouterr().out.splitlines()
    start_of_line = (
        "python launch/slurm.py --name=vit-3k-seed-0 --time=1:00 -- --config="
    )
    assert line.startswith(start_of_line)
    assert shlex.split(line)[-3:] == words[-3:]
    assert runs == []


OWN_STUDY = """
from ml_collections import ConfigDict
import vit_jax.config as c

def get_config(arg=""):
    args = c.parse_arg(arg, data=("small", "big"), model=("Ti", "S"))
    images = {{"small": 16, "big": 64}}[args.data]
    config = c.load("{small}:smoke")
    config.data.dataset = "synthetic:3@size=28;train=64"
    config.data.split = f"train[:{{images}}]"
    config.model = ConfigDict(dict(name=f"ViT-{{args.model}}/7", num_classes=3))
    config.model.depth = 1
    config.study = ConfigDict()
    config.study.models = {{"Ti": "model=Ti", "S": "model=S"}}
    config.study.data = {{"pictures": "data=small", "more pictures": "data=big"}}
    config.study.transfers = {{"Pets": "{finetune}:dataset=pets", "C-10": "{finetune}"}}
    config.study.metric = "Pets"
    config.study.few_shot = "fewshot/5shot/top1"
    config.study.seeds = (0, 1)
    return config
"""


@pytest.fixture
def own(tmp_path: pathlib.Path) -> str:
    """A study with fine-tunings."""
    file = tmp_path / "own.py"
    finetune = ROOT / "configs" / "finetune.py"
    file.write_text(OWN_STUDY.format(small=SMALL, finetune=finetune))
    return str(file)


def test_fine_tunings_follow_from_the_best_weights(own, workdir, runs, monkeypatch):
    FAILING.append(f"{workdir}/S/pictures/seed_1")
    assert start(monkeypatch, own, f"--workdir={workdir}") == 1
    trainings, tunings = runs[:8], runs[8:]
    assert all("config.init.checkpoint" not in flags for flags in trainings)
    # Two for each training but the one that failed.
    assert len(tunings) == 2 * 7
    starts = {
        flags["workdir"]: flags["config.init.checkpoint"]
        for flags in tunings
        if "dataset=pets" in flags["config"]
    }
    assert starts == {
        f"{workdir}/{model}/{data}/seed_{seed}-Pets": (
            f"{workdir}/{model}/{data}/seed_{seed}@best"
        )
        for model, data, seed in [
            (model, data, seed)
            for model in ("Ti", "S")
            for data in ("pictures", "more_pictures")
            for seed in (0, 1)
        ]
        if (model, data, seed) != ("S", "pictures", 1)
    }
    table = (workdir / "study.md").read_text()
    assert "Pets, fine-tuned" in table
    assert "Missing: S/pictures/seed_1, " in table
    assert "S/pictures/seed_1-Pets" in table
    assert f"{8 + 16 - 3} of 24 runs are finished." in table


def test_the_figures_panels_are_the_cells(own):
    study = make_study(own)
    fields = {cell: config_lib.load(cell.spec).to_dict() for cell in study.cells}
    found = []
    for cell in study.cells:
        cost = costs.estimate(fields[cell], data_is_here=True)
        value = 0.5 + 0.1 * cell.seed + (0.2 if cell.model == "S" else 0.0)
        values = {"Pets": value, "fewshot/5shot/top1": value / 2}
        found.append(results.Result(cell, cost, "finished", 2, 2, values, ()))
    by_data, by_examples, by_compute = figures.make_panels(study, results.points(found))
    assert by_data.x_names == ("pictures", "more pictures")
    assert by_data.y_label == "Pets top-1, fine-tuned (%)"
    lines = {series.label: series for series in by_data.series}
    assert lines["Ti"].x == (0, 1)
    assert lines["Ti"].y == pytest.approx((55, 55))
    assert lines["S"].y == pytest.approx((75, 75))
    # Of two numbers that lie 10 apart: 12.706 of Student's t times 10 / sqrt(2) over
    # sqrt(2).
    assert lines["S"].spread == pytest.approx((63.53, 63.53), rel=1e-3)
    assert by_examples.log_x
    assert [series.x for series in by_examples.series] == [(16, 64), (16, 64)]
    assert by_examples.y_label == "5-shot top-1 (%)"
    front, dots = by_compute.series
    assert not dots.joined
    assert dots.label == "ViT"
    # Of the trainings on all the data, that is one of each model, both on the front.
    assert len(dots.x) == len(front.x) == 2
    assert front.y == pytest.approx((55, 75))


def test_the_weights_that_count_are_the_best(workdir):
    study = make_study(SMALL)
    (cell,) = [c for c in study.cells if c.name == "ViT/1k/seed_0"]
    cost = costs.estimate(config_lib.load(cell.spec).to_dict(), data_is_here=True)
    stopping = EarlyStopping(metric="val/top1", patience=1)
    missing = results.read(cell, cost, study, stopping, str(workdir))
    assert (missing.state, missing.step, missing.missing) == (
        "missing",
        0,
        (cell.name,),
    )
    path = workdir / cell.name
    path.mkdir(parents=True)
    lines = [
        {"step": step, "time": 0.0, "val/top1": val, "test/top1": test}
        for step, val, test in ((50, 0.7, 0.6), (100, 0.8, 0.65), (150, 0.75, 0.9))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    begun = results.read(cell, cost, study, stopping, str(workdir))
    assert (begun.state, begun.step, begun.best_step) == ("not finished", 150, 100)
    assert begun.values == {"test/top1": 0.65}
    # Three operations of forward and backward, two for a multiply-add.
    assert begun.spent == pytest.approx(cost.exaflops * 150 / cost.steps)
    last = results.read(cell, cost, study, None, str(workdir))
    assert last.values == {"test/top1": 0.9}
    table = tables.result_table(study, [begun], [])
    assert f"0 of 1 runs are finished.\nMissing: {cell.name}" in table


def write_study(path: pathlib.Path, change: str) -> str:
    """Writes the small study with a line more at its end; returns its path."""
    path.write_text(
        "import vit_jax.config as c\n\n\ndef get_config(arg=''):\n"
        f"    config = c.load('{SMALL}:' + arg)\n    {change}\n    return config\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("del config.study", r"has no section config.study; a study needs its models"),
        ("del config.study.models", r"config.study.models is missing"),
        ("config.study.model = {}", r"field of config.study: 'model'; did you mean"),
        ("config.study.seeds = ()", "at least one of models, one of data and one of"),
        ("config.study.seeds = (0.5,)", r"seeds=\(0.5,\) must be whole numbers"),
        (
            "config.study.models = {'a b': '', 'a_b': ''}",
            "'a b' and 'a_b', whose runs would share a folder",
        ),
        ("config.study.data = {'a': 3}", "data\\['a'\\] is 3; give it as text"),
        (
            "config.study.grids = {'x': {'models': ('ViTs',)}}",
            "'ViTs'; did you mean 'ViT'",
        ),
        ("config.study.grids = {'x': {'model': ()}}", "'model'; did you mean 'models'"),
        (
            "config.study.metric = 'tests/top1'",
            "'tests/top1', which is of no evaluator",
        ),
        (
            f"config.study.transfers = {{'x': '{ROOT}/configs/quickstart.py'}}",
            "has no evaluator 'val', whose val/top1",
        ),
        ("config.model.name = 'ViT-Tiny/7'", "'ViT-Tiny/7'; did you mean 'ViT-Ti/16'"),
        ("config.model.name = None", "config.model.name is missing; a study trains"),
        (
            "config.data.split = 'train[:70000]'",
            "70000 in .*'train\\[:70000\\]' lies outside 'train', which has 60000",
        ),
        ("config.study.models.other = 'modle=vit'", "'modle'; did you mean 'model'"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(
    change, message, tmp_path, workdir, monkeypatch, capsys
):
    spec = write_study(tmp_path / "own.py", change)
    assert start(monkeypatch, spec, f"--workdir={workdir}") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    with pytest.raises(UserError, match=message):
        raise UserError(line)
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((SMALL, SMALL), "name one FILE or FILE:ARGS of a study"),
        ((SMALL, "--plan", "--collect"), "one of --plan, --dry_run and --collect"),
        ((SMALL, "--launcher=x"), "add --dry_run"),
        ((SMALL, "--figure=a.gif"), "must end in .png or .svg"),
        ((SMALL, "--cells=Vit/*/*"), "unknown cell 'Vit/*/*'; did you mean"),
        (("configs/nothing.py",), "unknown config file 'configs/nothing.py'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    flags, message, workdir, monkeypatch, capsys
):
    assert start(monkeypatch, *flags, f"--workdir={workdir}") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_two_studies_do_not_mix(workdir, runs, monkeypatch, capsys):
    flags = (f"--workdir={workdir}", "--cells=ViT/1k/*")
    assert start(monkeypatch, SMALL, *flags, "--config.study.seeds=(0,1)") == 0
    assert len(runs) == 2
    capsys.readouterr()
    change = "--config.optimizer.lr=0.1"
    assert start(monkeypatch, SMALL, *flags, change) == 1
    assert "now it is" in capsys.readouterr().err
    # A larger grid is the same study.
    seeds = "--config.study.seeds=(0,1,2)"
    assert start(monkeypatch, SMALL, *flags, seeds, "--notraceback") == 0
    assert len(runs) == 3
    (workdir / "study.json").write_text("[")
    assert start(monkeypatch, SMALL, *flags) == 1
    assert "study.json" in capsys.readouterr().err


def test_data_that_is_not_here_is_planned_without_its_size(
    workdir, monkeypatch, capsys, tmp_path
):
    change = "config.data.dataset = 'folder:/nowhere'; config.total_epochs = 3"
    spec = write_study(tmp_path / "own.py", f"{change}; config.total_steps = None")
    flags = (f"--workdir={workdir}", "--cells=ViT/1k/*")
    assert start(monkeypatch, spec, *flags, "--plan") == 0
    assert "some of unknown length" in capsys.readouterr().out
    assert start(monkeypatch, spec, *flags) == 1
    assert "/nowhere" in capsys.readouterr().err


# --- Real cells.

FLAGS = (
    "--cells=ViT_small/55k-short/*",
    "--config.study.seeds=(0,1)",
    "--config.data.batch_size=16",
    "--config.checkpoint_steps=20",
    "--config.log_steps=10",
    "--config.total_steps=400",
    "--config.evaluators.val.every_steps=200",
    "--config.evaluators.test.every_steps=200",
    "--config.evaluators.test.split=test[:100]",
    "--config.evaluators.val.split=train[59900:]",
    "--config.evaluators.fewshot.every_steps=200",
    "--config.evaluators.fewshot.split=test[:100]",
)


def launch(workdir: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "vit_jax.study", SMALL),
            *(f"--workdir={workdir}", *FLAGS),
        ],
        cwd=ROOT,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_killed_study_of_real_cells_goes_on(workdir: pathlib.Path):
    first, second = (
        workdir / "ViT_small" / "55k-short" / f"seed_{seed}" for seed in (0, 1)
    )

    def steps(run: pathlib.Path) -> list[int]:
        folder = run / "checkpoints"
        found = folder.iterdir() if folder.exists() else ()
        return [int(path.name) for path in found if path.name.isdigit()]

    process = launch(workdir)
    wait_for(lambda: max(steps(second), default=0) >= 40, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert cells.finished_step(str(first)) == 400
    assert cells.finished_step(str(second)) is None
    stamp = (first / "run.json").stat().st_mtime_ns
    assert launch(workdir).wait() == 0
    assert cells.finished_step(str(second)) == 400
    assert (first / "run.json").stat().st_mtime_ns == stamp
    log = cells.log_of(str(second)).read_text()
    assert log.count("starting at step 0") == 1
    assert log.count("resuming after step ") == 1
    assert cells.log_of(str(first)).read_text().count("starting at step") == 1
    kept = json.loads((workdir / "study.json").read_text())
    values = {cell["name"]: cell["values"] for cell in kept["cells"]}
    for seed in (0, 1):
        name = f"ViT_small/55k-short/seed_{seed}"
        assert values[name].keys() == {"test/top1", "fewshot/5shot/top1"}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None
        time.sleep(0.05)
