# SPDX-License-Identifier: Apache-2.0
import io
import sys

import pytest

from vit_jax.checkpoints import torch_file
from vit_jax.errors import UserError


def test_without_torch_the_way_around_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="torch, which is not installed") as raised:
        torch_file.read(io.BytesIO(b""), "a.pth")
    assert "\n" not in str(raised.value)
    assert torch_file.recipe("a.pth") in str(raised.value)
