# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.errors import UserError
from vit_jax.models import catalog


@pytest.mark.parametrize(
    ("size", "width", "depth", "mlp_dim", "num_heads"),
    [
        # Table 1 of the paper.
        ("B", 768, 12, 3072, 12),
        ("L", 1024, 24, 4096, 16),
        ("H", 1280, 32, 5120, 16),
        # big_vision, models/vit.py.
        ("mu", 32, 1, 128, 2),
        ("Ti", 192, 12, 768, 3),
        ("S", 384, 12, 1536, 6),
        ("M", 512, 12, 2048, 8),
        ("So400m", 1152, 27, 4304, 16),
        ("g", 1408, 40, 6144, 16),
        ("g-opt", 1536, 40, 6144, 16),
        ("G", 1664, 48, 8192, 16),
        ("G-opt", 1536, 48, 8192, 16),
        ("e", 1792, 56, 15360, 16),
    ],
)
def test_sizes_are_the_published_ones(size, width, depth, mlp_dim, num_heads):
    fields = catalog.find(f"ViT-{size}/12").fields
    assert fields == {
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
        "patch_size": 12,
    }


def test_a_row_is_found_with_its_count_and_tables():
    row = catalog.find("ViT-L/16")
    assert row.parameters == 304_326_632
    assert row.tables == (2, 5, 6, 9)


def test_another_patch_size_has_no_published_count():
    assert catalog.find("ViT-L/20").parameters is None


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'ViT-L/16'"):
        catalog.find("ViTL/16")
