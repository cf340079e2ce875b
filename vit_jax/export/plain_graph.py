# SPDX-License-Identifier: Apache-2.0
"""A traced function in the operations that other frameworks have as well.

Functions within functions are written out. Where a platform has a form of its own, the
one for all others is taken. Padding becomes concatenation and a maximum over windows
the maximum of shifted slices: jax2onnx 0.17 cannot pad a batch of unknown size, and
writes maxima that ONNX Runtime refuses.
"""

import functools
from collections.abc import Sequence
from typing import Any, SupportsInt

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal

from vit_jax.errors import UserError

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Operations that only call a function, by the field that holds it."""


def evaluate(graph: Any, *arguments: Any) -> list[Any]:
    """Returns what a traced function gives for some arguments.

    Args:
      graph: What `jax.make_jaxpr` returned.
      *arguments: Its inputs, arrays or what stands for them while JAX traces.

    Raises:
      UserError: An operation that has no plain form.
    """
    closed = graph if hasattr(graph, "consts") else ClosedJaxpr(graph, ())
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        outputs = _apply(equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> Sequence[Any]:
    name, fields = equation.primitive.name, equation.params
    if name == "name":  # of a value, for a backward pass
        return inputs
    if name in CALLS:
        return evaluate(fields[CALLS[name]], *inputs)
    if name == "platform_index":
        return [np.int32(fields["platforms"].index(None))]
    known = not any(isinstance(value, Tracer) for value in inputs)
    if name == "cond" and not isinstance(inputs[0], Tracer):
        return evaluate(fields["branches"][int(inputs[0])], *inputs[1:])
    if name == "pad":
        return [_pad(inputs[0], inputs[1], fields["padding_config"])]
    if name == "reduce_window_max":
        return [_max_windows(inputs[0], **fields)]
    if known and name in ("clamp", "convert_element_type"):  # of a platform's index
        with jax.ensure_compile_time_eval():
            return [equation.primitive.bind(*inputs, **fields)]
    outputs = equation.primitive.bind(*inputs, **fields)
    return outputs if equation.primitive.multiple_results else [outputs]


def _pad(x: Any, value: Any, padding: Sequence[Sequence[SupportsInt]]) -> Any:
    """Puts borders around an array."""
    for axis, border in enumerate(padding):
        before, after, between = map(int, border)
        if between or before < 0 or after < 0:
            raise UserError(
                "the model pads between values or by less than nothing, which has no "
                "plain form in ONNX; export it to stablehlo"
            )
        parts = [_border(x, value, axis, before), x, _border(x, value, axis, after)]
        parts = [part for part in parts if part is not None]
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
    return x


def _border(x: Any, value: Any, axis: int, size: int) -> Any:
    if not size:
        return None
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), shape)


def _max_windows(
    x: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[SupportsInt]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
    **_: Any,
) -> Any:
    """Returns the maximum of each window, one axis after the other."""
    if {*base_dilation, *window_dilation} != {1}:
        raise UserError(
            "the model takes maxima over windows with holes, which have no plain form "
            "in ONNX; export it to stablehlo"
        )
    x = _pad(x, -np.inf, [(before, after, 0) for before, after in padding])
    for axis, (size, stride) in enumerate(
        zip(window_dimensions, window_strides, strict=True)
    ):
        if size == stride == 1:
            continue
        count = (x.shape[axis] - size) // stride + 1
        slices = [
            lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis)
            for start in range(size)
        ]
        x = functools.reduce(jnp.maximum, slices)
    return x
