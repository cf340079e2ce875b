# SPDX-License-Identifier: Apache-2.0
"""The commands as a user types them: exit status, one-line errors, help."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# One device, and a compiler that makes no effort, as in the tests of this process.
ONE_DEVICE = "--xla_force_host_platform_device_count=1"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {ONE_DEVICE}",
}
QUICKSTART = str(ROOT / "configs" / "quickstart.py")


def run(*arguments: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["main", "predict", "benchmark", "vtab", "results"])
def test_help_describes_shows_an_example_and_imports_nothing_heavy(name: str):
    done = run("vit_jax." + name, "--help")
    assert done.returncode == 0
    assert f"python -m vit_jax.{name} " in done.stdout
    assert "--traceback" in done.stdout
    assert done.stderr == ""
    code = (
        f"import sys, vit_jax.{name}; "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'jax')))"
    )
    light = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert light.returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--confg=x", "--workdir=d"], "did you mean --config?"),
        ([f"--config={QUICKSTART}"], "--workdir"),
        ([f"--config={QUICKSTART}", "--workdir=d", "--config.seed"], "has no value"),
    ],
)
def test_wrong_usage_is_told_with_status_2(flags: list[str], message: str):
    done = run("vit_jax.main", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("usage error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config=configs/quikstart.py"], "did you mean 'configs/quickstart.py'"),
        ([f"--config={QUICKSTART}:smok"], "did you mean 'smoke'"),
        (
            [f"--config={QUICKSTART}", "--config.optmizer.lr=1"],
            "config has no 'optmizer'; did you mean 'optimizer'",
        ),
        (
            [f"--config={QUICKSTART}", "--config.total_steps=soon"],
            "config.total_steps='soon' is of type str",
        ),
        ([f"--config={QUICKSTART}", "extra"], "unexpected argument 'extra'"),
    ],
)
def test_a_mistake_is_one_line_with_status_1_and_loses_nothing(
    flags: list[str], message: str, tmp_path: pathlib.Path
):
    done = run("vit_jax.main", f"--workdir={tmp_path / 'run'}", *flags)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_traceback_of_a_mistake_is_there_for_who_asks(tmp_path: pathlib.Path):
    done = run("vit_jax.main", "--config=x.py", f"--workdir={tmp_path}", "--traceback")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "unknown config file 'x.py'" in done.stderr


def test_a_bug_shows_its_traceback(tmp_path: pathlib.Path):
    code = (
        "from vit_jax import command\n"
        "def main(argv): raise RuntimeError('our fault')\n"
        "command.run(main, 'doc')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert not done.stderr.startswith("error:")


@pytest.mark.slow
def test_train_and_predict_from_another_folder(tmp_path: pathlib.Path):
    from PIL import Image

    flags = [f"--config={QUICKSTART}:smoke", "--workdir=runs/a"]
    done = run("vit_jax.main", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/a/checkpoints/2").is_dir()
    for part in ("devices: ", "batch: 8 images", "data for test", "weight decay on"):
        assert part in done.stderr
    assert "100.0 %  step 2/2" in done.stderr
    # The same command again finds the run finished and evaluates it.
    again = run("vit_jax.main", *flags, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "resuming after step 2 of 2" in again.stderr

    Image.new("L", (40, 30), 200).save(tmp_path / "a.png")
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html><html></html>")
    one = run("vit_jax.predict", "--checkpoint=runs/a", "a.png", "a.png", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert one.stdout.count("a.png") == 2
    assert one.stdout.count(" %") == 10
    json = run(
        *("vit_jax.predict", "--checkpoint=runs/a:raw", "--top=2", "--json", "a.png"),
        cwd=tmp_path,
    )
    assert json.stdout.startswith('{"image": "a.png", "predictions": [{"class": ')
    timed = subprocess.run(
        [
            *(sys.executable, "-X", "importtime", "-m", "vit_jax.predict"),
            *("--checkpoint=runs/a", "a.png"),
        ],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.split("|")[-1].strip() for line in timed.stderr.splitlines()}
    assert "jax" in imported
    assert not any(name.split(".")[0] == "tensorflow" for name in imported)
    for arguments, message in [
        (["--checkpoint=runs/b", "a.png"], "no checkpoint 'runs/b'"),
        (["--checkpoint=runs", "a.png"], "has no checkpoint.json"),
        (["--checkpoint=runs/a@7", "a.png"], "no checkpoint 7"),
        (["--checkpoint=runs/a:ema", "a.png"], "kept no averaged weights"),
        (["--checkpoint=runs/a", "page.jpg"], "page.jpg: "),
        (["--checkpoint=runs/a", "none.png"], "no picture 'none.png'"),
        (["--checkpoint=runs/a"], "no picture given"),
    ]:
        wrong = run("vit_jax.predict", *arguments, cwd=tmp_path)
        assert wrong.returncode == 1
        assert message in wrong.stderr
        assert wrong.stderr.startswith("error: ")
