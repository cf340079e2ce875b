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


@pytest.mark.parametrize(
    ("name", "width", "depths", "first_heads", "window_size", "resolution"),
    [
        # Section 3.3 of arXiv:2103.14030 and the names of the published files.
        ("Swin-T", 96, (2, 2, 6, 2), 3, 7, 224),
        ("Swin-T-c24", 96, (2, 2, 6, 2), 4, 8, 256),
        ("Swin-S", 96, (2, 2, 18, 2), 3, 7, 224),
        ("Swin-B", 128, (2, 2, 18, 2), 4, 7, 224),
        ("Swin-L", 192, (2, 2, 18, 2), 6, 7, 224),
        ("Swin-L-w12-384", 192, (2, 2, 18, 2), 6, 12, 384),
        ("SwinV2-T-w16", 96, (2, 2, 6, 2), 3, 16, 256),
        ("SwinV2-L-w12-192", 192, (2, 2, 18, 2), 6, 12, 192),
        # arXiv:2111.09883.
        ("SwinV2-H", 352, (2, 2, 18, 2), 11, 12, 192),
        ("SwinV2-G", 512, (2, 2, 42, 4), 16, 12, 192),
    ],
)
def test_sizes_of_swin_are_the_published_ones(
    name, width, depths, first_heads, window_size, resolution
):
    row = catalog.find(name)
    assert row.fields["width"] == width
    assert row.fields["depths"] == depths
    assert row.fields["num_heads"] == tuple(first_heads * 2**i for i in range(4))
    assert row.fields["window_size"] == window_size
    assert row.fields["resolution"] == row.resolution == resolution


@pytest.mark.parametrize("name", ["SwinV2-B-w12to16", "SwinV2-L-w12to24-384"])
def test_transferred_models_know_the_windows_of_pretraining(name):
    assert catalog.find(name).fields["pretrained_window_size"] == (12, 12, 12, 6)


def test_models_for_384_pixels_see_the_whole_image():
    assert catalog.find("Swin-B").preset == "swin-v1"
    assert catalog.find("Swin-B-w12-384").preset == "swin-v1-384"
    assert catalog.find("SwinV2-B-w12to24-384").preset == "swin-v2-384"


def test_a_row_is_found_with_its_count_and_tables():
    row = catalog.find("ViT-L/16")
    assert row.parameters == 304_326_632
    assert row.tables == (2, 5, 6, 9)


def test_another_patch_size_has_no_published_count():
    assert catalog.find("ViT-L/20").parameters is None


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'ViT-L/16'"):
        catalog.find("ViTL/16")
