# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings are true."""

import doctest
import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = [
    path.relative_to(ROOT)
    for path in sorted(ROOT.glob("vit_jax/**/*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_give_what_they_show(path: pathlib.Path):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted == (ROOT / path).read_text().count(">>> ")
