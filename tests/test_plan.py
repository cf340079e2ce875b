# SPDX-License-Identifier: Apache-2.0
"""Plans: what is asked of the compiler, and what is told of its answer."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import jax
import pytest

from vit_jax import config as config_lib, planning
from vit_jax.errors import UserError
from vit_jax.planning import fit, plan as plan_lib, published
from vit_jax.tpu import chips, compiler, cost

ROOT = pathlib.Path(__file__).parent.parent
GIB = 2**30


def a_slice(devices: int = 32) -> compiler.Slice:
    chip = chips.find_chip("v3:4x4")
    return compiler.Slice("v3:4x4", chip, [object()] * devices)


def a_plan(**fields: Any) -> planning.Plan:
    found = cost.Cost(
        argument_bytes=GIB,
        temp_bytes=2 * GIB,
        code_bytes=GIB // 2,
        flops=2 * 52 * 10**9 * 1024,
        hbm_bytes=500 * 10**6 * 32,
        collectives={"all-reduce": (3, 170 * 10**6)},
        compiler_seconds=0.08,
        roofline=chips.Roofline(0.055, 0.036, 0.002),
        compile_seconds=61.0,
    )
    whole: dict[str, Any] = {
        "slice": a_slice(),
        "model": "ViT-L/16",
        "dataset": "tfds:imagenet21k",
        "batch_size": 1024,
        "total_steps": 108_000,
        "state_bytes": GIB,
        "mesh": {"data": 32, "fsdp": 1, "tensor": 1},
        "changes": {},
        "cost": found,
    }
    return planning.Plan(**whole | fields)


TOO_LARGE = compiler.OutOfMemoryError(20 * GIB, 15 * GIB)


def test_json_has_the_promised_keys_and_bytes_are_those_of_a_core():
    found = planning.to_json(a_plan(), "configs/vit_l16.py")
    assert found["fits"] is True
    assert (found["cores"], found["topology"]) == (32, "v3:4x4")
    assert found["flops_per_image"] == 2 * 52e9
    assert found["hbm_bytes_per_image"] == 500e6
    assert found["collectives"] == {"all-reduce": {"count": 3, "bytes": 170_000_000}}
    # The compiler's sum is the longest estimate: 1,024 images in 80 ms.
    assert found["images_per_second"] == pytest.approx(12_800)
    assert found["days"] == pytest.approx(0.1)
    assert found["core_days"] == pytest.approx(3.2)
    assert found["paper_core_days"] == 230  # Table 2
    promised = """config topology cores fits argument_bytes temp_bytes code_bytes
        flops_per_image hbm_bytes_per_image collectives compile_seconds
        roofline_seconds compiler_optimal_seconds images_per_second core_days"""
    assert set(promised.split()) <= set(json.loads(json.dumps(found)))


def test_text_tells_the_same():
    text = planning.to_text(a_plan(), "configs/vit_l16.py")
    for part in (
        "ViT-L/16, batch 1024, 32 images a core",
        "fits: 3.50 of 16 GiB a core",
        "52.00 G multiply-adds, 500 MB",
        "all-reduce: 3 a step, 170.0 MB a core",
        "12,800 images/s",
        "3 core-days (the paper reports 230)",
    ):
        assert part in text


def test_what_does_not_fit_says_what_to_try():
    plan = a_plan(cost=TOO_LARGE)
    text = planning.to_text(plan, "x")
    assert "DOES NOT FIT: needs 20.00 of 15.00 GiB" in text
    assert text.index("accumulation_steps=2") < text.index("remat=full")
    assert text.index("remat=full") < text.index("fsdp=8")
    found = planning.to_json(plan, "x")
    assert found["fits"] is False
    assert found["needed_bytes"] == 20 * GIB
    assert found["temp_bytes"] is None


def test_accumulation_is_tried_where_it_can_be_enough():
    tried = list(fit.candidates(a_plan(cost=TOO_LARGE, state_bytes=12 * GIB)))
    # 12 + 8 / 2 is too much, 12 + 8 / 4 may do.
    assert tried[0] == {"optimizer.accumulation_steps": 4}
    assert {"mesh.data": -1, "mesh.fsdp": 32} in tried


def test_a_state_that_is_too_large_itself_is_split_at_once():
    tried = list(fit.candidates(a_plan(cost=TOO_LARGE, state_bytes=16 * GIB)))
    assert tried[0] == {"mesh.data": -1, "mesh.fsdp": 8}


def test_fitting_stops_at_the_first_plan_that_fits(monkeypatch: pytest.MonkeyPatch):
    made = []

    def make_plan(config: Any, slice_: Any, changes: Any) -> planning.Plan:
        made.append(changes)
        fits = "mesh.remat" in changes
        return a_plan(changes=changes, **({} if fits else {"cost": TOO_LARGE}))

    monkeypatch.setattr(fit, "make_plan", make_plan)
    config = config_lib.load(str(ROOT / "configs/vit_l16.py"))
    plan = planning.find_fitting(config, a_slice(), a_plan(cost=TOO_LARGE))
    assert plan.changes == {"mesh.remat": "dots"}
    assert made[-1] == plan.changes
    assert "changed to fit: --config.mesh.remat=dots" in planning.to_text(plan, "x")


def test_sizes_of_data_that_is_not_here_give_the_length():
    # 99 % of ImageNet's 1,281,167 training images.
    assert published.count_examples("tfds:imagenet2012:5.*", "train[:99%]") == 1_268_355
    assert published.count_examples("tfds:imagenet21k", "full[51200:]") == 14_145_922
    assert published.count_examples("folder:/data", "train") is None
    config = config_lib.load(str(ROOT / "configs/vit_b16.py:dataset=i1k"))
    fields = config.to_dict()
    # 300 epochs in batches of 4,096, as section 2 of the notes on the paper has them.
    assert plan_lib._replace_durations(fields) == round(300 * 1_268_355 / 4096)


def test_a_run_of_unknown_data_has_no_length():
    fields = config_lib.load(str(ROOT / "configs/vit_b16.py")).to_dict()
    fields["data"]["dataset"] = "tar:/data/*.tar"
    assert plan_lib._replace_durations(fields) is None
    assert fields["total_steps"] > 0
    text = planning.to_text(a_plan(total_steps=None, dataset="tar:x"), "x")
    assert "give --config.total_steps" in text


def test_the_step_of_a_config_is_compiled_without_its_data(
    monkeypatch: pytest.MonkeyPatch,
):
    """On eight CPUs in the place of cores; the data set is not here."""
    seen = {}

    def compile_for_tpu(function: Any, arguments: Any, **options: Any) -> Any:
        seen["state"], seen["batch"] = arguments
        raise TOO_LARGE

    monkeypatch.setattr(compiler, "compile_for_tpu", compile_for_tpu)
    config = config_lib.load(str(ROOT / "configs/vit_b16.py:dataset=i1k"))
    config.model.update(width=16, depth=1, num_heads=2, mlp_dim=32)
    slice_ = a_slice()._replace(devices=jax.devices())
    plan = plan_lib.make_plan(config, slice_, {"mesh.fsdp": 8})
    assert plan.cost is TOO_LARGE
    assert plan.mesh == {"data": 1, "fsdp": 8, "tensor": 1}
    assert seen["batch"]["image"].shape == (4096, 224, 224, 3)
    assert seen["batch"]["label"].shape == (4096,)
    held = plan.state_bytes
    whole = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(seen["state"])
    )
    assert held < whole / 4


def test_a_config_that_leaves_its_model_to_a_checkpoint_asks_for_a_name():
    config = config_lib.load(str(ROOT / "configs/finetune.py"))
    with pytest.raises(UserError, match=r"--config\.model\.name=ViT-L/16"):
        plan_lib.make_plan(config, a_slice())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v9:2x2"], "unknown TPU generation 'v9'"),
        (["--topology=v3:2x2", "extra"], "unexpected argument 'extra'"),
    ],
)
def test_the_command_names_mistakes(arguments: list[str], message: str):
    done = run("--config=configs/vit_b16.py", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vit_jax.plan", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


L16, H14 = "--config.model.name=ViT-L/16", "--config.model.name=ViT-H/14"
LAUNCHED = "--config.optimizer.accumulation_steps=8"

# Each recipe on the slices that its docstring names, and what else is asked for there.
RECIPES = (
    ("vit_b32.py", "v3:4x4"),
    ("vit_b16.py", "v3:4x4"),
    ("vit_l32.py", "v3:4x8"),
    ("vit_l16.py", "v3:8x8"),
    ("vit_h14.py", "v3:16x16"),
    ("vit_s16_i1k.py", "v3:2x2"),
    ("finetune.py:dataset=imagenet,resolution=512,polyak", "v3:4x8", L16),
    ("finetune.py:dataset=imagenet,resolution=518,polyak", "v3:4x8", H14),
    ("vtab.py:task=dtd", "v3:2x2", L16, LAUNCHED),
    ("masked_patch_b16.py", "v3:4x4"),
    ("ablation_axial.py:patch=32", "v3:4x4"),
    ("ablation_axial.py:patch=16", "v3:4x8"),
    ("ablation_head.py:head=mean", "v3:4x4"),
    ("ablation_optimizer.py:model=r50x1", "v3:4x4"),
    ("ablation_optimizer.py:model=r152x2", "v3:8x8"),
    ("ablation_positions.py:positions=learned2d,injection=every_layer", "v3:4x4"),
    ("ablation_positions.py:positions=relative", "v3:4x8"),
    ("ablation_shape.py:factor=1", "v3:4x4"),
    ("ablation_shape.py:factor=4", "v3:8x8"),
    ("ablation_windows.py:positions=absolute+relative", "v3:4x4"),
    ("ablation_windows.py:windows=sliding", "v3:4x8"),
    # The first training that launch/README.md starts.
    ("vit_l16.py:dataset=i1k", "v3:4x4", LAUNCHED),
)
NOT_NAMED = {("vit_l16.py", 32)}


def cores_of(topology: str) -> int:
    """Cores of a slice of v3, whose chips have two."""
    return 2 * math.prod(int(side) for side in topology.partition(":")[2].split("x"))


def test_every_slice_that_a_recipe_names_is_planned():
    named = set()
    for path in (ROOT / "configs").glob("*.py"):
        (hardware,) = re.findall(
            r"^Hardware: (.*?)\n\n", path.read_text(), re.M | re.S
        ) or [""]
        named |= {
            (path.name, int(cores)) for cores in re.findall(r"v3-(\d+)", hardware)
        }
    planned = {(row[0].partition(":")[0], cores_of(row[1])) for row in RECIPES}
    assert planned - NOT_NAMED == named


def test_the_slice_of_the_first_training_is_planned():
    page = (ROOT / "launch/README.md").read_text()
    spec, topology, flag = RECIPES[-1]
    assert f"--config=configs/{spec} --topology={topology} {flag}" in page.replace(
        " \\\n  ", " "
    )
    assert f"--accelerator_type=v3-{cores_of(topology)} " in page


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: "-".join(recipe[:2]))
def test_a_recipe_fits_the_slice_that_it_names(recipe: tuple[str, ...]):
    pytest.importorskip("libtpu")
    spec, topology, *others = recipe
    done = run(f"--config=configs/{spec}", f"--topology={topology}", "--json", *others)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cores"] == cores_of(topology)
    assert found["fits"], found
    assert found["days"] > 0
