# SPDX-License-Identifier: Apache-2.0
"""The call that makes timm's model of given weights: a name and what differs."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert.timm.architectures import (
    ARCHITECTURES,
    PLAIN_VIT,
    Architecture,
)
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog

# Fields that no argument of timm changes, by family: they choose the architecture.
_FIXED: Mapping[str, tuple[str, ...]] = {
    "vit": ("distillation", "mlp", "positions"),
    "hybrid": ("stages", "width_factor", "patch_size"),
    "bit": ("stages", "width_factor"),
    "mixer": ("patch_size", "width", "depth", "token_mlp_dim", "mlp_dim"),
    "swin": (),
    "swin-v2": (),
}
_POOLS = {"cls": "token", "mean": "avg", "map": "map", "none": ""}
_EPS = {"swin": 1e-5, "swin-v2": 1e-5}


class Code(str):
    """An argument that is a piece of Python, not a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclasses.dataclass(frozen=True)
class Call:
    """How to open a file in timm.

    Attributes:
      function: Such as `timm.create_model`.
      name: Of the architecture; None where timm has none and a class is called.
      arguments: By keyword.
    """

    function: str
    name: str | None
    arguments: Mapping[str, Any]

    def text(self, path: str | None = None) -> str:
        """Returns the call as Python; `path` is the file that it opens."""
        arguments = dict(self.arguments)
        if path is not None and self.name is not None:
            arguments["checkpoint_path"] = path
        parts = [] if self.name is None else [repr(self.name)]
        parts += [f"{key}={value!r}" for key, value in arguments.items()]
        return f"{self.function}({', '.join(parts)})"


def timm_name(checkpoint: Checkpoint) -> str | None:
    """Returns the architecture that holds these weights; None if timm has no name."""
    return timm_call(checkpoint).name


def timm_call(checkpoint: Checkpoint) -> Call:
    """Returns the call that makes timm's model of these weights.

    Raises:
      UserError: No model of timm is like this one.
    """
    family = catalog.find(checkpoint.model["name"]).family
    model: Any = build_model(**checkpoint.model)
    if gets_scales(checkpoint):
        model = model.clone(layer_scale=1e-5)
    fields = {
        field.name: getattr(model, field.name) for field in dataclasses.fields(model)
    }
    side: Any = checkpoint.image_shape[:2]
    side = side[0] if side[0] == side[1] else tuple(side)
    classes = {"num_classes": fields["num_classes"]}
    fields["pos_embed"] = fields.get("positions")
    if family == "vit":
        fields["class_position"] = _class_position(model)
    if fields["pos_embed"] in ("sincos2d", "none"):
        fields["positions"] = "learned"  # timm has a table, or is told that not
    calls = [
        (each.name, dict(_arguments(each, fields, side)))
        for each in ARCHITECTURES.values()
        if each.family == family and _is_like(each, fields)
    ]
    if not calls and family not in _CLASSES:
        fixed = ", ".join(f"{key} {fields[key]!r}" for key in _FIXED[family])
        raise UserError(
            f"timm has no model like {checkpoint.model['name']} with {fixed}"
        )
    if not calls:
        return Call(*_CLASSES[family](fields, side, classes))
    name, arguments = min(calls, key=lambda call: len(call[1]))
    return Call("timm.create_model", name, {**classes, **arguments})


def gets_scales(checkpoint: Checkpoint) -> bool:
    """Says whether LayerScale, folded into the weights, is written as ones.

    The files of DINOv2 have it, so a model of that preset is written with it.
    """
    model: Any = build_model(**checkpoint.model)
    return checkpoint.model.get("preset") == "dinov2" and model.layer_scale is None


def _is_like(each: Architecture, fields: Mapping[str, Any]) -> bool:
    """Says whether arguments can make a model of an architecture."""
    if each.fields.get("layer_scale") and not fields["layer_scale"]:
        return False  # create_model drops init_values=None
    return all(each.fields[key] == fields[key] for key in _FIXED[each.family])


def _class_position(model: Any) -> bool:
    """Says whether timm's table has rows for all tokens before the patches."""
    token = model.pool == "cls" or bool(model.class_token)
    if model.positions != "learned":
        return model.positions != "sincos2d" or not (token or model.num_registers)
    return model.class_position if token else not model.num_registers


def _arguments(
    each: Architecture, fields: Mapping[str, Any], side: Any
) -> Iterator[tuple[str, Any]]:
    """Yields what must be said beside the name of an architecture."""
    if side != each.side and each.family != "bit":
        yield "img_size", side
    for ours, theirs in (
        ("patch_size", "patch_size"),
        ("width", "embed_dim"),
        ("depth", "depth"),
        ("depths", "depths"),
        ("num_heads", "num_heads"),
        ("num_registers", "reg_tokens"),
        ("qk_norm", "qk_norm"),
        ("layer_scale", "init_values"),
        ("mlp_ratio", "mlp_ratio"),
        ("window_size", "window_size"),
    ):
        own, other = fields.get(ours), each.fields.get(ours)
        if ours == "layer_scale" and None not in (own, other):
            continue  # first values, which the file replaces
        if own != other:
            yield theirs, own
    if each.family in ("vit", "hybrid"):
        yield from _vit_arguments(each, fields)
    if fields.get("pretrained_window_size") != each.fields.get(
        "pretrained_window_size"
    ):
        given, stages = fields["pretrained_window_size"], len(fields["depths"])
        sides = given if isinstance(given, tuple) else (given or 0,) * stages
        yield "pretrained_window_sizes", sides
    yield from _numerics(each.family, fields, each.fields.get("gelu", "erf"))


def _vit_arguments(
    each: Architecture, fields: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    own, other = ({**PLAIN_VIT, **x} for x in (fields, each.fields))
    if any(own[key] != other[key] for key in ("width", "mlp_dim")):
        yield "mlp_ratio", mlp_ratio(own["width"], own["mlp_dim"], own["mlp"])
    if own["pool"] != other["pool"]:
        yield "global_pool", _POOLS[own["pool"]]
    tokens = [x["pool"] == "cls" or bool(x["class_token"]) for x in (own, other)]
    if tokens[0] != tokens[1]:
        yield "class_token", tokens[0]
    # timm moves the norm behind the pooling where that is a mean.
    after = own["pool_norm"] == "after"
    if after != (own["pool"] == "mean"):
        yield "fc_norm", after
    if own["class_position"] != other["class_position"]:
        yield "no_embed_class", not own["class_position"]
    if fields["pos_embed"] == "none":
        yield "pos_embed", "none"


def mlp_ratio(width: int, mlp_dim: int, kind: str = "mlp") -> float:
    """Returns a ratio for which timm's `int(width * ratio)` is the hidden width."""
    hidden = 2 * mlp_dim if kind == "swiglu" else mlp_dim
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def _numerics(
    family: str, fields: Mapping[str, Any], gelu: str
) -> Iterator[tuple[str, Any]]:
    if fields.get("gelu", gelu) != gelu:
        name = {"tanh": "gelu_tanh", "erf": "gelu"}[fields["gelu"]]
        classes = {"gelu_tanh": "timm.layers.GELUTanh", "gelu": "torch.nn.GELU"}
        yield "act_layer", Code(classes[name]) if family == "mixer" else name
    eps = fields["norm_eps"]
    if family != "bit" and eps != _EPS.get(family, 1e-6):
        yield "norm_layer", Code(f"functools.partial(torch.nn.LayerNorm, eps={eps})")


def _mixer_class(
    fields: Mapping[str, Any], side: Any, classes: Mapping[str, int]
) -> tuple[str, None, dict[str, Any]]:
    width = fields["width"]
    ratios = [mlp_ratio(width, fields[key]) for key in ("token_mlp_dim", "mlp_dim")]
    return (
        "timm.models.MlpMixer",
        None,
        {
            **classes,
            "img_size": side,
            "patch_size": fields["patch_size"],
            "num_blocks": fields["depth"],
            "embed_dim": width,
            "mlp_ratio": tuple(ratios),
            **dict(_numerics("mixer", fields, "erf")),
        },
    )


def _bit_class(
    fields: Mapping[str, Any], side: Any, classes: Mapping[str, int]
) -> tuple[str, None, dict[str, Any]]:
    del side
    stages = fields["stages"]
    return (
        "timm.models.ResNetV2",
        None,
        {
            **classes,
            "layers": stages,
            "channels": tuple(256 * 2**i for i in range(len(stages))),
            "width_factor": fields["width_factor"],
            "stem_type": "fixed",
            "conv_layer": Code("functools.partial(timm.layers.StdConv2d, eps=1e-8)"),
        },
    )


_CLASSES = {"mixer": _mixer_class, "bit": _bit_class}
