# SPDX-License-Identifier: Apache-2.0
"""Learning rates that fall from the head down, in every family."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.optim.layers import decay_rules

TINY = {"width": 32, "depth": 3, "num_heads": 2, "mlp_dim": 64}


def factors(name: str, side: int, **fields) -> dict[str, float]:
    model = build_model(name, num_classes=5, **fields)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    rules = decay_rules(params, 0.5)
    return trees.flatten(trees.match_rules(params, rules, "factor"))


def test_the_factors_of_a_vit():
    found = factors("ViT-Ti/16", 32, representation_size=32, **TINY)
    block = "Transformer/encoderblock_{}/MlpBlock_0/Dense_0/kernel"
    assert [found[block.format(i)] for i in range(3)] == [0.125, 0.25, 0.5]
    before = ("embedding/kernel", "cls", "Transformer/posembed_input/pos_embedding")
    assert {found[name] for name in before} == {0.0625}
    after = ("head/kernel", "pre_logits/bias", "Transformer/encoder_norm/scale")
    assert {found[name] for name in after} == {1.0}


def test_the_resnet_of_a_hybrid_comes_before_its_transformer():
    found = factors("R50+ViT-B/16", 64, stages=(1, 1), **TINY)
    assert found["block1/unit1/conv1/kernel"] == 0.0625
    assert found["conv_root/kernel"] == 0.0625
    assert found["Transformer/encoderblock_2/LayerNorm_0/scale"] == 0.5


def test_the_blocks_of_swin_count_through_its_stages():
    found = factors(
        "Swin-T",
        32,
        width=32,
        depths=(2, 1),
        num_heads=(1, 2),
        resolution=32,
        window_size=4,
    )
    block = "layers_{}/blocks_{}/mlp/fc1/kernel"
    places = [(0, 0), (0, 1), (1, 0)]
    assert [found[block.format(*p)] for p in places] == [0.125, 0.25, 0.5]
    assert found["layers_1/downsample/reduction/kernel"] == 0.5
    assert found["patch_embed/proj/kernel"] == 0.0625
    assert found["norm/scale"] == found["head/bias"] == 1.0


def test_the_units_of_a_resnet_are_its_blocks():
    found = factors("BiT-R50x1", 32, stages=(2, 1))
    assert found["block1/unit01/conv1/kernel"] == 0.125
    assert found["block1/unit02/conv1/kernel"] == 0.25
    assert found["block2/unit01/conv1/kernel"] == 0.5
    assert found["root_block/conv_root/kernel"] == 0.0625
    assert found["norm-pre-head/scale"] == 1.0


def test_mixer_blocks_count_too():
    found = factors("Mixer-B/16", 32, width=32, depth=2, token_mlp_dim=8, mlp_dim=16)
    assert found["MixerBlock_1/LayerNorm_0/scale"] == 0.5
    assert found["stem/kernel"] == 0.125


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_a_decay_out_of_range_is_refused(decay: float):
    with pytest.raises(UserError, match=f"layer_decay={decay} must lie in 0 <"):
        decay_rules({"head": {"kernel": 1}}, decay)


def test_stacked_blocks_are_refused():
    with pytest.raises(UserError, match=r"mesh\.scan keeps all blocks in one array"):
        decay_rules({"Transformer": {"encoderblock": {"kernel": 1}}}, 0.5)
