# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md runs, in its smoke form, where a reader would run it.

The commands are taken from the page, in its order. Each is run by the module's own
`__main__` in a folder that has stand-ins for what the page speaks of: a run of the
quickstart after two steps, pictures, a folder of made-up flowers in 102 classes, and
files of weights named as Google's that hold a tiny ViT. `RULES` says how each module's
commands are made small, and what they must leave behind or print. A command without a
rule is a failure, so that the page cannot grow untested.

What is not run in full, and why:
- `vtab` prints the commands of its runs (--dry_run): its data sets are not here.
- `study` does the same: its runs take half an hour.
- `plan` and `benchmark compiled` need libtpu, the compiler for TPUs; without it they
  are skipped.
- `make` targets are looked up in the Makefile by test_house.py.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
import runpy
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import command
from vit_jax.checkpoints import files
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import google
from vit_jax.models import build_model

ROOT = pathlib.Path(__file__).parents[1]
SHELL = re.compile(r"(\$ )?(\S*/)?(python\d?|make|pip|source|tensorboard|gcloud) ")
COMMAND = re.compile(r"(?:\$ )?(?:\S*/)?python\d? -m vit_jax\.(.*)")


def blocks(text: str) -> Iterator[list[str]]:
    """Yields the lines of each fenced block, continued lines joined."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield re.sub(r"\\\n\s*", "", block).splitlines()


def shell_lines(text: str) -> Iterator[str]:
    """Yields what a reader would type; after `$` lines stands what is printed."""
    for lines in blocks(text):
        if lines and SHELL.match(lines[0]):
            typed = [line for line in lines if line.startswith("$ ")]
            yield from typed or filter(None, lines)


README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = list(dict.fromkeys(shell_lines(README)))
COMMANDS = [match[1] for line in LINES if (match := COMMAND.match(line))]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How the commands of a module are made small, and what they must do.

    Attributes:
      small: Changes the list of arguments.
      leaves: The flag whose value is a file or folder that must exist afterwards, and
        a path in it.
      says: What it must print.
      needs: A module without which it is skipped.
    """

    small: Callable[[list[str]], list[str]] = lambda arguments: arguments
    leaves: tuple[str, str] | None = None
    says: str | None = None
    needs: str | None = None


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    found = [a for a in arguments if a.startswith(f"--{flag}=")]
    return found[0].partition("=")[2] if found else None


def smoke(arguments: list[str]) -> list[str]:
    """Two steps of the config, or on the reader's own pictures a few small ones."""
    small = []
    for argument in arguments:
        if argument.startswith("--config=") and "--check" not in arguments:
            own = "dataset=folder:" in argument
            argument += "," if ":" in argument else ":"
            argument += "resolution=32" if own else "smoke"
            if own:
                small += ["--config.total_steps=2", "--config.data.batch_size=8"]
                small += ["--config.model.dtype=float32"]
        small.append(re.sub(r"(total_epochs)=\d+", r"\1=1", argument))
    return small


def only_print(arguments: list[str]) -> list[str]:
    return [*arguments, "--dry_run"]


def evaluate(arguments: list[str]) -> list[str]:
    return [re.sub(r"(split=test)$", r"\1[:200]", a) for a in arguments]


def benchmark(arguments: list[str]) -> list[str]:
    kept = [a for a in arguments if not a.startswith(("--model", "--batch_size"))]
    small = ("--model=ViT-mu/16", "--resolution=32", "--batch_size=8", "--steps=2")
    return [*kept, *small]


RULES = {
    "main": Rule(smoke, leaves=("workdir", "config.json|augmented.png")),
    "finetune": Rule(smoke, leaves=("workdir", "checkpoint.json")),
    "evaluate": Rule(evaluate, leaves=("output", "")),
    "fewshot": Rule(lambda a: [*a, "--test_split=test[:200]"], says="5"),
    "vtab": Rule(
        lambda a: [*a, "--config=configs/vtab.py:smoke", "--dry_run"],
        says=r"vit_jax\.finetune .*task=snorb_elev,smoke.*seed=2",
    ),
    "study": Rule(only_print, says=r"vit_jax\.main --config="),
    "results": Rule(says=r"(?s)\| run \| model \|.*not yet run"),
    "convert": Rule(leaves=("output", "")),
    "predict": Rule(says=r"\d"),
    "report": Rule(says=r"wrote .*report\.html"),
    "plots": Rule(leaves=("output", "")),
    "models": Rule(says="ViT-B/16"),
    "plan": Rule(smoke, says="v3", needs="libtpu"),
    "benchmark step": Rule(benchmark, says='"images_per_second"'),
    "benchmark input": Rule(benchmark, says='"images_per_second"'),
    "benchmark compiled": Rule(benchmark, says="roofline", needs="libtpu"),
}


def split(line: str) -> tuple[str, list[str]]:
    """Returns the module and the arguments of a command."""
    module, *arguments = shlex.split(line, comments=True)
    return module, arguments


def rule_of(line: str) -> Rule | None:
    module, arguments = split(line)
    return RULES.get(module) or RULES.get(" ".join([module, *arguments[:1]]))


def test_the_page_has_commands():
    modules = {split(line)[0] for line in COMMANDS}
    assert {"main", "finetune", "evaluate", "fewshot", "convert", "predict"} <= modules
    assert {"plan", "report", "plots", "results"} <= modules


def test_every_command_of_the_page_has_a_rule():
    others = [line for line in LINES if not COMMAND.match(line)]
    assert [line for line in others if not line.startswith("make ")] == []
    assert [line for line in COMMANDS if rule_of(line) is None] == []


def test_lines_are_taken_as_a_reader_types_them():
    page = (
        "```\n$ .venv/bin/python -m vit_jax.predict a.png\n  7  99 %\n```\n"
        "```\npython -m vit_jax.main \\\n    --check\n\nmake train  # minutes\n```\n"
        "```\n21:24:31 done\n  python -m vit_jax.report runs\n```\n"
    )
    assert list(shell_lines(page)) == [
        "$ .venv/bin/python -m vit_jax.predict a.png",
        "python -m vit_jax.main --check",
        "make train  # minutes",
    ]


@dataclasses.dataclass
class Reader:
    """Runs commands as a reader does, each once, in one folder."""

    folder: pathlib.Path
    statuses: dict[str, int]

    def run(self, module: str, arguments: Sequence[str]) -> int:
        """Runs a module as `python -m` does; returns the exit status."""
        argv = [f"vit_jax.{module}", *arguments]
        handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        cache = jax.config.jax_compilation_cache_dir
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            # A test that ran before may have imported the module.
            warnings.filterwarnings("ignore", ".*found in sys.modules after import")
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", argv)
            patch.setattr(command, "_set_up_logging", lambda: None)
            # Else a command that trains would start the whole process anew.
            patch.setenv("GLIBC_TUNABLES", "")
            patch.setenv("XDG_CACHE_HOME", str(self.folder / "cache"))
            try:
                runpy.run_module(f"vit_jax.{module}", run_name="__main__")
                return 0
            except SystemExit as ended:
                return int(ended.code or 0)
            finally:
                for shared in (command._SHARED, command._CLUSTER):
                    shared.unparse_flags()
                    for name in shared:
                        shared[name].unparse()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                jax.config.update("jax_compilation_cache_dir", cache)

    def follow(self, line: str) -> int:
        """Runs a line of the page, after those that make what it reads."""
        if line not in self.statuses:
            for other in COMMANDS:
                made = [value_of(split(other)[1], f) for f in ("workdir", "output")]
                if other != line and any(m and self._reads(line, m) for m in made):
                    assert self.follow(other) == 0, other
            module, arguments = self.here(line)
            self.statuses[line] = self.run(module, arguments)
        return self.statuses[line]

    def here(self, line: str) -> tuple[str, list[str]]:
        """Returns module and arguments, made small and with paths of the folder."""
        line = line.replace("/data/", "data/").replace("gs://BUCKET", "bucket")
        rule = rule_of(line)
        assert rule is not None, line
        module, arguments = split(line)
        return module, rule.small(arguments)

    @staticmethod
    def _reads(line: str, path: str) -> bool:
        flags = ("checkpoint", "init", "input")
        return path in [value_of(split(line)[1], flag) for flag in flags]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "configs").symlink_to(ROOT / "configs")
    draw_pictures(folder)
    for name in ("ViT-B_16.npz", "ViT-L_16.npz"):
        files.write_npz(folder / name, google.tensors(tiny_vit()))
    found = Reader(folder, {})
    mnist = "dataset=bundled:mnist"
    status = found.run(
        "main",
        [
            *("--config=configs/quickstart.py:smoke", "--workdir=runs/quickstart"),
            *(f"--config.data.{mnist}", f"--config.evaluators.test.{mnist}"),
            "--config.evaluators.test.split=test[:64]",
        ],
    )
    assert status == 0
    return found


def draw_pictures(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(0)

    def draw(path: pathlib.Path, side: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8)).save(path)

    for name in ("digit.png", "a.png", "b.jpg"):
        draw(folder / name, 28)
    for number in range(102):
        for part, count in (("train", 2), ("validation", 1)):
            for picture in range(count):
                draw(folder / f"data/flowers/{part}/{number:03}/{picture}.jpg", 32)


def tiny_vit() -> Checkpoint:
    """A ViT for 32 pixels that a file in Google's names can hold."""
    fields = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
    fields = {"name": "ViT-Ti/16", "num_classes": 10, **fields}
    image = np.zeros((1, 32, 32, 3), np.float32)
    shapes = jax.eval_shape(build_model(**fields).init, jax.random.key(0), image)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(np.float32),
        shapes["params"],
    )
    return Checkpoint(params, fields, (32, 32, 3))


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: split(line)[0])
def test_the_command_runs(
    line: str, reader: Reader, capfd: pytest.CaptureFixture, monkeypatch
):
    rule = rule_of(line)
    assert rule is not None
    if rule.needs is not None and importlib.util.find_spec(rule.needs) is None:
        pytest.skip(f"{rule.needs} is not installed")
    again = line in reader.statuses
    assert reader.follow(line) == 0, capfd.readouterr().err
    if rule.leaves is not None:
        flag, inside = rule.leaves
        path = value_of(reader.here(line)[1], flag)
        assert path is not None
        paths = [reader.folder / path / each for each in inside.split("|")]
        assert any(each.exists() for each in paths), os.listdir(reader.folder)
    if rule.says is not None and not again:
        assert re.search(rule.says, capfd.readouterr().out)
