# SPDX-License-Identifier: Apache-2.0
"""Named factories, and the op strings that call them.

    "decode|inception_crop(224)|flip_lr|randaug(2, magnitude=15)|onehot(1000)"

A string is a `|`-separated list of calls whose arguments are Python literals; nothing
in it is ever evaluated but literals (`ast.literal_eval`). Every error shows the whole
string with the failing part in square brackets.

The module holds the parser, `Registry`, and `OPS`, the registry of preprocessing ops.
It knows nothing of pictures: the ops register themselves (`vit_jax.data.ops.image` and
its siblings), and so can yours:

    @OPS.register(random=True)
    def my_noise(scale: float = 1.0):
        '''What the op reads and writes, and in which range.'''
        def apply(features): ...
        return apply
"""

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vit_jax.errors import UserError, unknown


@dataclasses.dataclass(frozen=True)
class Call:
    """One parsed call, such as `resize(224, method="area")`.

    Attributes:
      name: The name before the parenthesis.
      args: Positional literals.
      kwargs: Keyword literals.
      where: The whole string with this call marked, for error texts.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    where: str = dataclasses.field(default="", compare=False)


def parse_call(text: str) -> Call:
    """Parses one call; see `parse_pipeline`."""
    return _parse_segment(text, f"[{text.strip()}]")


def parse_pipeline(text: str) -> list[Call]:
    """Parses a `|`-separated list of calls.

    Args:
      text: Such as `"decode|resize(224)"`. White space around calls is ignored, a `|`
        inside quotes does not separate, and an empty string has no calls.

    Returns:
      The calls in order.

    Raises:
      UserError: An empty segment, a segment that is not a name or a call, or an
        argument that is not a literal.
    """
    if not text.strip():
        return []
    segments = _split(text)
    return [
        _parse_segment(segment, _mark(segments, index))
        for index, segment in enumerate(segments)
    ]


def _split(text: str) -> list[str]:
    """Splits at every `|` that is not inside quotes."""
    segments, start, quote, escaped = [], 0, "", False
    for position, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "|":
            segments.append(text[start:position])
            start = position + 1
    return [*segments, text[start:]]


def _mark(segments: Sequence[str], index: int) -> str:
    marked = [segment.strip() for segment in segments]
    marked[index] = f"[{marked[index]}]"
    return "|".join(marked)


def _parse_segment(segment: str, where: str) -> Call:
    segment = segment.strip()
    if not segment:
        raise UserError(f"empty op in {where}; write a name between two '|'")
    try:
        node = ast.parse(segment, mode="eval").body
    except (SyntaxError, ValueError) as err:
        reason = err.msg if isinstance(err, SyntaxError) else str(err)
        raise UserError(
            f"cannot read {where} ({reason}); write name or name(argument, key=value)"
        ) from err
    if isinstance(node, ast.Name):
        return Call(node.id, where=where)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise UserError(
            f"not a call in {where}; write name or name(argument, key=value)"
        )
    args = tuple(_literal(arg, where) for arg in node.args)
    kwargs = {k.arg or "**": _literal(k.value, where) for k in node.keywords}
    if "**" in kwargs:
        raise UserError(f"'**' in {where}; write out every key=value")
    return Call(node.func.id, args, kwargs, where)


def _literal(node: ast.expr, where: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as err:
        raise UserError(
            f"{ast.unparse(node)!r} is not a literal in {where}; write a number, "
            "a quoted text, True, False, None, or a tuple or list of these"
        ) from err


class Registry:
    """A table of named factories that op strings may call.

    Attributes:
      what: The kind of thing, for error texts, such as "op".
    """

    def __init__(self, what: str):
        self.what = what
        self._factories: dict[str, Callable[..., Any]] = {}
        self._random: set[str] = set()

    def register(self, *, random: bool = False) -> Callable[[Callable], Callable]:
        """Returns a decorator that enters a factory under its own name.

        Args:
          random: Whether what the factory makes draws random numbers.

        Raises:
          ValueError: The name is taken (by the decorator).
        """

        def enter(factory: Callable) -> Callable:
            name = factory.__name__
            if name in self._factories:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            self._factories[name] = factory
            if random:
                self._random.add(name)
            return factory

        return enter

    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted(self._factories)

    def is_random(self, name: str) -> bool:
        """Says whether the factory of that name was registered as random."""
        return name in self._random

    def signature(self, name: str) -> inspect.Signature:
        """Returns the arguments that a string may give to a factory."""
        return inspect.signature(self._factories[name])

    def build(self, call: Call) -> Any:
        """Calls the factory that `call` names with the arguments of `call`.

        Raises:
          UserError: An unknown name; an argument that the factory does not have, that
            is missing or of another type; or a value that the factory refuses.
        """
        factory = self._factories.get(call.name)
        if factory is None:
            raise _located(unknown(self.what, call.name, self._factories), call)
        try:
            bound = inspect.signature(factory).bind(*call.args, **call.kwargs)
        except TypeError as err:
            usage = f"{call.name}{_readable_signature(factory)}"
            raise _located(
                UserError(f"{self.what} {call.name!r}: {err}; write {usage}"), call
            ) from err
        _check_types(self.what, call, factory, bound)
        try:
            return factory(*call.args, **call.kwargs)
        except UserError as err:
            raise _located(err, call) from err


def _located(err: UserError, call: Call) -> UserError:
    return UserError(f"{err} (in {call.where})")


def _readable_signature(factory: Callable) -> inspect.Signature:
    signature = inspect.signature(factory)
    return signature.replace(return_annotation=inspect.Signature.empty)


def _check_types(
    what: str, call: Call, factory: Callable, bound: inspect.BoundArguments
) -> None:
    """Holds literals to the annotations of a factory."""
    hints = typing.get_type_hints(factory)
    for name, value in bound.arguments.items():
        many = bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for each in value if many else (value,):
            if not _fits(each, hints.get(name, Any)):
                usage = f"{call.name}{_readable_signature(factory)}"
                text = f"{what} {call.name!r}: {name} cannot be {each!r}; write {usage}"
                raise _located(UserError(text), call)


def _fits(value: Any, hint: Any) -> bool:
    """Says whether a literal is of the type that an annotation states."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is None:
        return hint is Any or value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin in (tuple, Sequence):
        if not isinstance(value, (tuple, list)):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:
            pairs = zip(value, inner, strict=False)
            return len(value) == len(inner) and all(_fits(v, h) for v, h in pairs)
        return all(_fits(v, inner[0]) for v in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


OPS = Registry("op")
