# SPDX-License-Identifier: Apache-2.0
"""Named parameter trees."""

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import trees
from vit_jax.errors import UserError

TREE = {"head": {"kernel": 1, "bias": 2}, "cls": 3}


def test_flatten_joins_names_with_slashes():
    assert trees.flatten(TREE) == {"cls": 3, "head/bias": 2, "head/kernel": 1}


def test_flatten_keeps_the_order_of_jax():
    assert list(trees.flatten(TREE).values()) == jax.tree.leaves(TREE)


def test_flatten_names_the_fields_of_an_optimizer_state():
    state = optax.adam(1.0).init({"head": {"kernel": jnp.zeros(1)}})
    assert set(trees.flatten(state)) >= {"0/count", "0/mu/head/kernel"}


def test_flatten_reads_a_frozen_dictionary_alike():
    assert trees.flatten(flax.core.freeze(TREE)) == trees.flatten(TREE)


def test_unflatten_is_the_inverse_of_flatten():
    assert trees.unflatten(trees.flatten(TREE)) == TREE


def test_unflatten_refuses_a_name_that_is_leaf_and_folder():
    for flat in ({"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}):
        with pytest.raises(UserError, match="'a' is both an array and a folder"):
            trees.unflatten(flat)


def test_map_with_name_keeps_the_structure():
    named = trees.map_with_name(lambda name, leaf: f"{name}={leaf}", TREE)
    assert named == {
        "head": {"kernel": "head/kernel=1", "bias": "head/bias=2"},
        "cls": "cls=3",
    }


def test_first_matching_rule_wins():
    rules = [("head/.*", "a"), (".*kernel", "b"), (".*", "c")]
    matched = trees.match_rules(TREE, rules, "test")
    assert matched == {"head": {"kernel": "a", "bias": "a"}, "cls": "c"}


def test_a_pattern_must_match_the_whole_name():
    matched = trees.match_rules(TREE, [("kernel", 1), ("head", 1), (".*", 0)], "test")
    assert set(jax.tree.leaves(matched)) == {0}


def test_false_and_none_are_values_like_others():
    matched = trees.match_rules(TREE, [("cls", None), (".*", False)], "test")
    assert matched == {"head": {"kernel": False, "bias": False}, "cls": None}


def test_parameters_without_a_rule_are_named():
    with pytest.raises(
        UserError, match=r"2 parameters match no rule for decay: head/bias, head/kernel"
    ):
        trees.match_rules(TREE, [("cls", 1)], "decay")


def test_long_lists_of_orphans_are_cut():
    tree = {f"p{i}": i for i in range(9)}
    with pytest.raises(UserError, match=r"9 parameters .*p0, p1, p2, p3, p4, \.\.\.;"):
        trees.match_rules(tree, [], "decay")


def test_bad_regular_expression_is_shown():
    with pytest.raises(UserError, match=r"bad regular expression: '\(cls'"):
        trees.match_rules(TREE, [("(cls", 1)], "decay")


def test_rules_match_shapes_as_well_as_arrays():
    shapes = jax.eval_shape(lambda: {"kernel": jnp.zeros((2, 3))})
    assert trees.match_rules(shapes, [(".*", 7)], "test") == {"kernel": 7}


def test_names_of_lists_are_numbers():
    assert trees.flatten([np.int32(4), {"a": 5}]) == {"0": 4, "1/a": 5}
