# SPDX-License-Identifier: Apache-2.0
"""All benchmarks, one after the other: what is kept, compared, left out and failed."""

import importlib.util
import json
import pathlib
import shlex
import subprocess
import sys
from typing import Any

import jax
import pytest

from vit_jax.benchmark import __main__ as benchmark, machine, suite
from vit_jax.errors import UserError


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the processes: what each prints, and what was started."""
    answers: dict[str, Any] = {}

    def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess:
        assert arguments[:3] == [sys.executable, "-m", "vit_jax.benchmark"]
        kind = arguments[3]
        answers.setdefault("started", []).append(arguments[4:])
        if isinstance(answers[kind], str):
            return subprocess.CompletedProcess(arguments, 1, "", answers[kind])
        lines = "".join(json.dumps({"benchmark": kind, **a}) for a in answers[kind])
        return subprocess.CompletedProcess(arguments, 0, lines + "\n", "log lines")

    monkeypatch.setattr(subprocess, "run", run)
    return answers


def test_results_are_written_with_the_command_that_repeats_them(
    rates: dict[str, Any], tmp_path: pathlib.Path
):
    rates["step"] = [{"images_per_second": 7.5}]
    file = tmp_path / "new" / "latest.json"
    found = suite.run_all(str(file), ["step --model=ViT-S/16 --set='x=[1, 2]'"])
    content = json.loads(file.read_text())
    assert content["results"] == found
    (result,) = found
    assert result["command"] == (
        "python -m vit_jax.benchmark step --model=ViT-S/16 --set='x=[1, 2]'"
    )
    assert rates["started"] == [["--model=ViT-S/16", "--set=x=[1, 2]"]]
    assert result["images_per_second"] == 7.5
    assert content["versions"]["jax"] == jax.__version__
    assert "GiB of memory" in content["machine"]


def test_a_second_time_tells_by_how_much_figures_changed(
    rates: dict[str, Any], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    file, line = str(tmp_path / "latest.json"), ["step --batch_size=16"]
    rates["step"] = [{"images_per_second": 8.0}]
    suite.run_all(file, line)
    rates["step"] = [{"images_per_second": 6.0}]
    with caplog.at_level("INFO"):
        suite.run_all(file, line)
    assert "images_per_second 6 (before 8, -25.0%)" in caplog.text


def test_what_needs_the_tpu_compiler_is_left_out_without_it(
    rates: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "latest.json"
    assert suite.run_all(str(file), ["compiled --model=ViT-B/16"]) == []
    (left,) = json.loads(file.read_text())["left_out"]
    assert "pip install 'jax[tpu]'" in left["why"]
    assert "started" not in rates


def test_one_failure_leaves_the_others_and_is_told_at_the_end(
    rates: dict[str, Any], tmp_path: pathlib.Path
):
    rates["step"] = "log\nerror: no such model"
    rates["startup"] = [{"help_seconds": 0.3}]
    file = tmp_path / "latest.json"
    with pytest.raises(UserError, match=r"1 of 2 benchmarks failed: .* step; .*\.json"):
        suite.run_all(str(file), ["step", "startup"])
    content = json.loads(file.read_text())
    assert [result["help_seconds"] for result in content["results"]] == [0.3]
    assert content["left_out"][0]["why"] == "exit status 1: error: no such model"


def test_a_file_that_cannot_be_used_is_told_before_anything_runs(
    rates: dict[str, Any], tmp_path: pathlib.Path
):
    (tmp_path / "latest.json").write_text("no json")
    with pytest.raises(UserError, match=r"cannot use .*name another file"):
        suite.run_all(str(tmp_path / "latest.json"), ["step"])
    assert "started" not in rates


@pytest.mark.parametrize("line", suite.LINES)
def test_every_line_is_one_that_the_command_takes(line: str):
    for name in benchmark.FLAGS:
        benchmark.FLAGS[name].unparse()
    kind, *rest = benchmark.FLAGS(["benchmark", *shlex.split(line)])[1:]
    assert rest == []
    assert kind in benchmark.BENCHMARKS
    assert kind in suite.FIGURES


def test_the_machine_is_told_in_words(monkeypatch: pytest.MonkeyPatch):
    info = "processor : 0\nmodel name\t: Some  Chip @ 2.00GHz\nmodel name\t: x\n"
    monkeypatch.setattr(pathlib.Path, "exists", lambda path: True)
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: info)
    assert "cores of Some Chip @ 2.00GHz, " in machine.describe()


def test_all_asks_for_its_file():
    for name in benchmark.FLAGS:
        benchmark.FLAGS[name].unparse()
    arguments = benchmark.FLAGS(["benchmark", "all"])[1:]
    with pytest.raises(UserError, match=r"--output=FILE"):
        benchmark.main(arguments)
