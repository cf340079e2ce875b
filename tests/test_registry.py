# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Literal

import pytest

from vit_jax.errors import UserError
from vit_jax.registry import Call, Registry, parse_call, parse_pipeline


@pytest.fixture
def registry() -> Registry:
    registry = Registry("op")

    @registry.register()
    def resize(size: int | Sequence[int], method: Literal["area", "cubic"] = "area"):
        if size == 0:
            raise UserError("resize of size 0; give 1 or more")
        return ("resize", size, method)

    @registry.register(random=True)
    def shake(*amounts: float):
        return ("shake", amounts)

    return registry


def test_a_call_has_positional_and_keyword_literals():
    assert parse_call("randaug(2, magnitude=15)") == Call(
        "randaug", (2,), {"magnitude": 15}
    )
    assert parse_call("value_range(-1, 1.5)") == Call("value_range", (-1, 1.5), {})
    assert parse_call("f((1, 2), [3], None, True, k={'a': 1})") == Call(
        "f", ((1, 2), [3], None, True), {"k": {"a": 1}}
    )


def test_a_name_alone_and_empty_parentheses_are_the_same_call():
    assert parse_call("flip_lr") == parse_call(" flip_lr() ") == Call("flip_lr")


def test_a_pipeline_is_split_at_bars_outside_quotes():
    calls = parse_pipeline("""decode | keep('a|b', "c)|(") |flip_lr""")
    assert [call.name for call in calls] == ["decode", "keep", "flip_lr"]
    assert calls[1].args == ("a|b", "c)|(")


def test_an_escaped_quote_does_not_end_a_text():
    assert parse_pipeline(r"keep('it\'s|one')|b")[0].args == ("it's|one",)


def test_a_pipeline_may_be_spread_over_lines():
    assert [c.name for c in parse_pipeline("a|\n  b(1,\n 2)\n")] == ["a", "b"]


def test_an_empty_string_has_no_calls():
    assert parse_pipeline("") == parse_pipeline("  ") == []


@pytest.mark.parametrize(
    ("ops", "marked"),
    [
        ("a||b", r"empty op in a\|\[\]\|b;"),
        ("a|b(1|c", r"cannot read a\|\[b\(1\]\|c \("),
        ("a|b(size=)|c", r"cannot read a\|\[b\(size=\)\]\|c \("),
        ("a|3", r"not a call in a\|\[3\];"),
        ("a.b(1)", r"not a call in \[a.b\(1\)\];"),
        ("a(**{'b': 1})", r"write out every key=value"),
        ("a|b(imagenet)", r"'imagenet' is not a literal in a\|\[b\(imagenet\)\];"),
        ("a(*[1])", "is not a literal"),
    ],
)
def test_an_unreadable_segment_is_marked_in_the_whole_string(ops: str, marked: str):
    with pytest.raises(UserError, match=marked):
        parse_pipeline(ops)


def test_arguments_are_never_evaluated():
    with pytest.raises(UserError, match="is not a literal"):
        parse_pipeline("a(__import__('os').getpid())")
    with pytest.raises(UserError, match="is not a literal"):
        parse_call("a(2 ** 8)")


def test_build_calls_the_factory(registry: Registry):
    built = registry.build(parse_call("resize((2, 3), method='cubic')"))
    assert built == ("resize", (2, 3), "cubic")
    assert registry.build(parse_call("shake(1, 2.5)")) == ("shake", (1, 2.5))


def test_random_factories_are_known(registry: Registry):
    assert registry.is_random("shake")
    assert not registry.is_random("resize")
    assert registry.names() == ["resize", "shake"]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("a|resise(1)", r"unknown op 'a'.*Known: resize, shake \(in \[a\]\|resise"),
        ("resise(1)", r"unknown op 'resise'; did you mean 'resize'\?"),
        ("shake|resize(x=1)", r"op 'resize'.* write resize\(size.*\|\[resize\(x=1"),
        ("resize(1, 'area', 3)", r"too many positional arguments; write resize\(size"),
        ("resize", "missing a required argument: 'size'"),
        ("resize('224')", r"size cannot be '224'; write resize\(size: int"),
        ("resize(1.5)", r"size cannot be 1.5"),
        ("resize(True)", r"size cannot be True"),
        ("resize((1, 2.5))", r"size cannot be \(1, 2.5\)"),
        ("resize(8, 'linear')", r"method cannot be 'linear'.*'area', 'cubic'"),
        ("shake(1, 'b')", "amounts cannot be 'b'"),
        ("shake|resize(0)", r"give 1 or more \(in shake\|\[resize\(0\)\]\)"),
    ],
)
def test_a_wrong_call_is_explained(registry: Registry, ops: str, message: str):
    with pytest.raises(UserError, match=message):
        list(map(registry.build, parse_pipeline(ops)))


def test_a_name_is_registered_once(registry: Registry):
    def shake():
        pass

    with pytest.raises(ValueError, match="op 'shake' is registered twice"):
        registry.register()(shake)
