# SPDX-License-Identifier: Apache-2.0
"""The compiler itself runs in the tests that are marked `tpu`."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from vit_jax.errors import UserError
from vit_jax.tpu import compiler


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '(libtpu==|jax\[tpu)"):
        compiler.set_up()


@pytest.mark.parametrize(
    ("text", "used", "available"),
    [
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
            "memory space hbm. Used 20.51G of 15.48G hbm. Exceeded hbm capacity by "
            "5.03G.",
            20.51,
            15.48,
        ),
        ("RESOURCE_EXHAUSTED: Used 512.00M of 0.25G hbm.", 0.5, 0.25),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
            "for HLO temporaries (81.29G) exceeds available HBM (15.48G).",
            81.29,
            15.48,
        ),
    ],
)
def test_a_program_that_is_too_large_says_by_how_much(
    text: str, used: float, available: float
):
    error = compiler.parse_out_of_memory(text)
    assert error is not None
    assert error.used == pytest.approx(used * 2**30)
    assert error.available == pytest.approx(available * 2**30)
    assert f"{available:.2f} GiB" in str(error)


def test_other_complaints_are_not_taken_for_it():
    assert compiler.parse_out_of_memory("INTERNAL: Used 1G of 2G hbm") is None
    assert compiler.parse_out_of_memory("RESOURCE_EXHAUSTED: 2G of 1G sflag") is None
    assert compiler.parse_out_of_memory("RESOURCE_EXHAUSTED: no threads") is None


@functools.cache
def measure(*arguments: str) -> dict[str, Any]:
    """Compiles the reference step of a small model for eight cores."""
    pytest.importorskip("libtpu")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vit_jax.benchmark", "compiled"),
            *("--model=ViT-Ti/16", "--images_per_core=8", "--topology=v3:2x2"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("fields", [["depth=1"], ["depth=4", "scan=True"]])
@pytest.mark.parametrize("form", ["plain", "short"])
def test_a_step_compiles_for_a_slice_and_its_products_are_counted(
    fields: list[str], form: str
):
    found = measure(*(f"--set={field}" for field in (*fields, f"attention={form}")))
    assert found["cores"] == 8
    # Three times the forward pass, but for the gradient of the images.
    stem = 196 * 16 * 16 * 3 * 192
    expected = 3 * found["forward_multiply_adds"] - stem
    if form == "short":
        # Seven products of all three heads' 192 lanes instead of six of a head's 64.
        depth = int(fields[0].removeprefix("depth="))
        expected += depth * 3 * 197**2 * (7 * 192 - 6 * 64)
    assert found["multiply_adds_per_image"] == expected


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("shard_update", ["False", "True"])
def test_sums_over_devices_do_not_grow_in_number_with_the_depth(shard_update: str):
    """Those of a loop of blocks do, one a turn, and so do gathers of split weights."""
    flag = f"--shard_update={shard_update}"
    shallow, deep = (
        measure(flag, f"--set=depth={depth}")["collectives"]["all-reduce"]
        for depth in (2, 4)
    )
    assert deep[0] <= shallow[0]
    # Two more blocks of width 192: kernels and biases are summed in bfloat16, scales
    # and biases of norms in float32.
    block = 2 * (12 * 192**2 + 9 * 192) + 4 * 4 * 192
    assert deep[1] - shallow[1] == pytest.approx(2 * block, rel=1e-3)


@pytest.mark.slow
@pytest.mark.tpu
def test_what_a_loop_moves_counts_as_often_as_it_runs():
    """Two more turns move about as much as two more blocks that are no loop."""

    def two_more(*arguments: str) -> float:
        few, more = (
            measure("--shard_update=True", f"--set=depth={depth}", *arguments)
            for depth in (2, 4)
        )
        return more["hbm_mb_per_image"] - few["hbm_mb_per_image"]

    # A loop keeps what its backward pass needs in stacks: it moves more.
    assert 1 < two_more("--set=scan=True") / two_more() < 3


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    ("topology", "form", "resolution", "expected"),
    [
        ("v4:2x2x1", "flash", 224, {"splash_mha_fwd", "splash_mha_dkv"}),  # 197 tokens
        ("v4:2x2x1", "auto", 1024, {"splash_mha_fwd", "splash_mha_dkv"}),  # 4,097
        ("v4:2x2x1", "auto", 512, {"short_forward", "short_backward"}),  # 1,025
        ("v4:2x2x1", "auto", 224, {"short_forward", "short_backward"}),
        ("v3:2x2", "auto", 224, {"short_forward", "short_backward"}),
        ("v3:2x2", "plain", 224, set()),
    ],
)
def test_a_program_has_the_kernel_that_is_asked_for_or_pays(
    tmp_path: pathlib.Path,
    topology: str,
    form: str,
    resolution: int,
    expected: set[str],
):
    file = tmp_path / "program.txt"
    measure(
        *(f"--topology={topology}", "--images_per_core=2"),
        *(f"--resolution={resolution}", "--set=depth=1"),
        *(f"--set=attention={form}", f"--program={file}"),
    )
    called = re.findall(r"(\w+)[.\d]* = .*\"tpu_custom_call\"", file.read_text())
    found = {re.sub("_(segmented|residuals|no_residuals).*", "", n) for n in called}
    assert found == expected


@pytest.mark.slow
@pytest.mark.tpu
def test_a_slice_that_does_not_exist_is_refused():
    pytest.importorskip("libtpu")
    program = (
        "from vit_jax.tpu import compiler; compiler.set_up(); "
        "compiler.open_slice('v3:3x5x7')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "there is no TPU slice 'v3:3x5x7'" in done.stderr


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("topology", ["v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2"])
def test_the_short_kernel_compiles_wherever_it_says_that_it_takes_the_arrays(
    topology: str,
):
    """Widths and heads of the catalogue, and tokens of images of 224 to 592 pixels."""
    pytest.importorskip("libtpu")
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE_SHORT, topology],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = [tuple(pair) for pair in json.loads(done.stdout)]
    assert {(n, 64) for n in (50, 197, 257, 577, 1025, 1370)} <= set(taken)
    assert {(197, 80), (257, 80), (257, 104)} <= set(taken)


_COMPILE_SHORT = """
import json, sys
from vit_jax.tpu import compiler
compiler.set_up()
slice_ = compiler.open_slice(sys.argv[1])
import jax, jax.numpy as jnp
from vit_jax import sharding
from vit_jax.models.layers.short import short, takes
place = sharding.batch_sharding(sharding.make_mesh(devices=slice_.devices))
widths = [(192, 64), (768, 64), (1024, 64), (1280, 80), (1152, 72), (1664, 104)]
taken = []
for tokens in (50, 197, 257, 577, 785, 1025, 1370):
    for d, width in widths:
        shape = len(slice_.devices), tokens, d
        x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
        told = []
        def run(*arrays):
            told.append(takes(*arrays[:2], d // width))
            if not told[-1]:
                return arrays
            y, pull = jax.vjp(lambda *a: short(*a, heads=d // width), *arrays[:3])
            return pull(y + arrays[3])
        lowered = jax.jit(run).trace(x, x, x, x).lower()
        if told[-1]:
            lowered.compile()
            taken.append((tokens, width))
print(json.dumps(taken))
"""
