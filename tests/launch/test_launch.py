# SPDX-License-Identifier: Apache-2.0
"""What the launchers print, and what the scripts do that they send elsewhere.

The golden texts are the output of --dry_run:
  python launch/gke.py ARGUMENTS --dry_run > tests/launch/golden/NAME.txt
"""

import importlib.util
import os
import pathlib
import subprocess
import types

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = pathlib.Path(__file__).parent / "golden"
TRAINING = ["--", "--config=configs/vit_l16.py:dataset=i1k", "--workdir=gs://B/runs/a"]
TPU = ["--name=vit-l16", "--project=P", "--zone=europe-west4-a"]
CASES = {
    "tpu_train": ["tpu_pod", "train", *TPU, "--spot", *TRAINING],
    "tpu_logs": ["tpu_pod", "logs", *TPU],
    "tpu_stop": ["tpu_pod", "stop", *TPU],
    "tpu_delete": ["tpu_pod", "delete", *TPU],
    "gke_tpu": [
        *("gke", "--name=vit-l16", "--image=IMAGE", "--tpu=tpu-v3-slice"),
        *("--topology=4x4", *TRAINING),
    ],
    "gke_gpu": [
        *("gke", "--name=vit-l16", "--image=IMAGE", "--gpu=nvidia-h100-80gb"),
        *("--hosts=4", *TRAINING),
    ],
    "gke_cpu": ["gke", "--name=vit-l16", "--image=IMAGE", "--hosts=2", *TRAINING],
    "slurm_gpu": [
        *("slurm", "--name=vit-l16", "--nodes=4", "--time=24:00:00"),
        *("--partition=big", *TRAINING),
    ],
    "slurm_cpu": [
        *("slurm", "--name=try", "--nodes=2", "--gpus=0", "--time=1:00:00", *TRAINING)
    ],
}


def launcher(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "launch" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dry_run(argv: list[str], capsys: pytest.CaptureFixture) -> str:
    name, *arguments = argv
    middle = arguments.index("--") if "--" in arguments else len(arguments)
    arguments.insert(middle, "--dry_run")
    assert launcher(name).main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("case", CASES)
def test_the_commands_are_those_that_were_looked_over(
    case: str, capsys: pytest.CaptureFixture
):
    golden = (GOLDEN / f"{case}.txt").read_text()
    assert dry_run(CASES[case], capsys) == golden


def test_each_golden_text_has_its_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", ["tpu_pod", "gke", "slurm"])
def test_launchers_need_nothing_but_python(name: str):
    lines = (ROOT / "launch" / f"{name}.py").read_text().splitlines()
    imported = {
        line.split()[1] for line in lines if line.startswith(("import", "from"))
    }
    standard = {"argparse", "json", "math", "pathlib", "shlex", "subprocess", "sys"}
    assert imported <= standard | {"time"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tpu_pod", "train", *TPU], "train needs"),
        (["tpu_pod", "fly", *TPU], "invalid choice: 'fly'"),
        (["gke", "--name=a", "--image=i", "--hosts=2"], "nothing to train"),
        (["gke", "--name=a", "--image=i", *TRAINING], "--hosts"),
        (["gke", "--name=a", "--image=i", "--tpu=t", *TRAINING], "--topology"),
        (["slurm", "--name=a", "--time=1", "--"], "nothing to train"),
    ],
)
def test_wrong_usage_is_told(
    argv: list[str], message: str, capsys: pytest.CaptureFixture
):
    with pytest.raises(SystemExit) as left:
        launcher(argv[0]).main(argv[1:])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_the_jobset_says_what_jax_and_kubernetes_need(capsys: pytest.CaptureFixture):
    jobset = yaml.safe_load(dry_run(CASES["gke_gpu"], capsys).rpartition("kubectl")[0])
    (workers,) = jobset["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    # A pod of an indexed job must be as many as take part, and fail the job at once.
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (4, 4, 0)
    assert job["completionMode"] == "Indexed"
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "vit_jax.main"]
    assert container["command"][3:] == TRAINING[1:]
    environment = {v["name"]: v for v in container["env"]}
    # NAME-JOB-0-0.NAME is what JobSet calls the first pod.
    address = "vit-l16-workers-0-0.vit-l16:8476"
    assert environment["JAX_COORDINATOR_ADDRESS"]["value"] == address
    assert environment["JAX_NUM_PROCESSES"]["value"] == "4"
    assert "valueFrom" in environment["JAX_PROCESS_ID"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert pod["restartPolicy"] == "Never"  # A podFailurePolicy asks for it.


@pytest.mark.parametrize(
    ("topology", "hosts", "chips"), [("2x2", 1, 4), ("4x4", 4, 4), ("2x2x4", 4, 4)]
)
def test_a_slice_has_a_host_for_four_chips(topology: str, hosts: int, chips: int):
    gke = launcher("gke")
    flags = ["--name=a", "--image=i", "--tpu=t", f"--topology={topology}", *TRAINING]
    jobset = yaml.safe_load(gke.manifest(gke.parse(flags)))
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    limits = job["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (job["parallelism"], limits["google.com/tpu"]) == (hosts, chips)


def programs(folder: pathlib.Path, **texts: str) -> dict[str, str]:
    """Writes programs that come before those of the system."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


# Each start of the program ends with the next status of the list.
NEXT = "n=$(cat {count} 2>/dev/null || echo 0); echo $((n + 1)) > {count}; {act}"


@pytest.mark.parametrize(
    ("statuses", "starts"), [([0], 1), ([1], 1), ([75, 134, 0], 3), ([70, 2], 2)]
)
def test_a_worker_starts_again_until_the_run_has_ended(
    tmp_path: pathlib.Path, statuses: list[int], starts: int
):
    tpu_pod = launcher("tpu_pod")
    act = f"exit $(echo {' '.join(map(str, statuses))} | cut -d' ' -f$((n + 1)))"
    home = tmp_path / "home"
    count = tmp_path / "count"
    programs(home / "vit_jax/.venv/bin", python=NEXT.format(count=count, act=act))
    environment = programs(tmp_path / "bin", sleep="exit 0", nohup='"$@"')
    args = tpu_pod.parse(["run", *TPU, *TRAINING, "--config.data.split=train[:9%]"])
    script = tpu_pod.commands(args)[0][-1].removeprefix("--command=") + "wait\n"
    environment["HOME"] = str(home)
    subprocess.run(["bash", "-c", script], env=environment, check=True, timeout=30)
    assert (home / "status").read_text() == f"{statuses[-1]}\n"
    assert int(count.read_text()) == starts
    assert f"exit status {statuses[-1]}" in (home / "train.log").read_text()


def test_arguments_reach_the_workers_as_they_are(tmp_path: pathlib.Path):
    tpu_pod = launcher("tpu_pod")
    home = tmp_path / "home"
    python = f"printf '%s\\n' \"$@\" > {tmp_path}/seen"
    programs(home / "vit_jax/.venv/bin", python=python)
    environment = {**os.environ, "HOME": str(home)}
    odd = ["--config.data.split=train[:9%]", '--x=it\'s "this" $HOME']
    args = tpu_pod.parse(["run", *TPU, "--", *odd])
    script = tpu_pod.commands(args)[0][-1].removeprefix("--command=") + "wait\n"
    subprocess.run(["bash", "-c", script], env=environment, check=True, timeout=30)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen == ["-m", "vit_jax.main", *odd]


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (75, 0, True), (143, 99, True), (75, 100, False)],
)
def test_a_slurm_job_goes_back_into_the_queue(
    tmp_path: pathlib.Path, status: int, restarts: int, requeued: bool
):
    slurm = launcher("slurm")
    environment = programs(
        tmp_path, srun=f"exit {status}", scontrol=f'echo "$@" > {tmp_path}/requeued'
    )
    environment |= {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    script = slurm.script(slurm.parse(CASES["slurm_gpu"][1:]))
    done = subprocess.run(["bash", "-c", script], env=environment, check=False)
    assert done.returncode == status
    assert (tmp_path / "requeued").exists() == requeued
    if requeued:
        assert (tmp_path / "requeued").read_text() == "requeue 17\n"


def test_training_outlives_the_slice(monkeypatch: pytest.MonkeyPatch):
    """The first slice is taken away in the middle; the second brings it to an end."""
    tpu_pod = launcher("tpu_pod")
    answers = ["", "ACTIVE", "gone", "ACTIVE", "running", "SUSPENDED", "", "ACTIVE"]
    answers += ["gone", "ACTIVE", "0"]
    done: list[str] = []
    monkeypatch.setattr(tpu_pod, "_output", lambda command: answers.pop(0))
    monkeypatch.setattr(tpu_pod.time, "sleep", lambda seconds: None)

    def run(command: list[str], check: bool) -> types.SimpleNamespace:
        del check
        words = [w for w in ("create", "bash", "scp", "ssh", "delete") if w in command]
        done.extend(words)
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr(tpu_pod.subprocess, "run", run)
    assert tpu_pod.main(["train", *TPU, *TRAINING]) == 0
    once = ["create", "bash", "scp", "ssh", "ssh"]
    assert done == [*once, "delete", *once]
    assert answers == []
