# SPDX-License-Identifier: Apache-2.0
"""What papers report about changes to models and training, quoted.

Of the ViT paper (arXiv:2010.11929) Tables 7 and 8 and Appendices B.1.2, D.2, D.3 and
D.6; of the Swin paper (arXiv:2103.14030) Tables 4 and 6. The recipes are
configs/ablation_*.py and masked_patch_b16.py; what the paper does not say of the
pre-training is as they have it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax.published_results import FEWSHOT, FIGURE, JFT, Published

_BENCHMARKS = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")
_SWIN_DEFAULT = "shifted windows, relative positions"


class Ablation(NamedTuple):
    """A row that says what was changed.

    Attributes:
      what: In words.
      row: The numbers, and which model has them.
    """

    what: str
    row: Published


def _table_7() -> tuple[Ablation, ...]:
    columns = {
        ("BiT-R50x1", "adam"): (77.54, 97.67, 86.07, 91.11, 94.26),
        ("BiT-R50x1", "sgd"): (78.24, 97.46, 85.17, 91.00, 92.06),
        ("BiT-R152x2", "adam"): (84.97, 99.06, 92.05, 95.37, 98.62),
        ("BiT-R152x2", "sgd"): (84.37, 99.07, 91.06, 94.79, 99.32),
    }
    names = {"adam": "Adam", "sgd": "SGD"}
    return tuple(
        Ablation(
            f"{names[optimizer]} in pre-training",
            Published(
                table=7,
                model=model,
                pretraining=JFT,
                epochs=7,
                values=dict(zip(_BENCHMARKS, values, strict=True)),
                optimizer=optimizer,
            ),
        )
        for (model, optimizer), values in columns.items()
    )


def _table_8() -> tuple[Ablation, ...]:
    rows = (
        ("none", "stem", 61.382),
        ("learned", "stem", 64.206),
        ("learned", "every_layer", 63.964),
        ("learned", "every_layer_shared", 64.292),
        ("learned2d", "stem", 64.001),
        ("learned2d", "every_layer", 64.046),
        ("learned2d", "every_layer_shared", 64.022),
        ("relative", "stem", 64.032),
    )
    usual = {"positions": "learned", "position_injection": "stem"}
    return tuple(
        Ablation(
            f"positions {kind}, {injection}",
            _features(
                8,
                "ViT-B/16",
                value,
                {
                    key: field
                    for key, field in zip(usual, (kind, injection), strict=True)
                    if field != usual[key]
                },
            ),
        )
        for kind, injection, value in rows
    )


def _features(
    table: int | str,
    model: str,
    value: float = FIGURE,
    changes: Mapping[str, Any] | None = None,
    varies: tuple[str, ...] = (),
) -> Published:
    """Makes a row about features of a model that was pre-trained on JFT."""
    return Published(
        table=table,
        model=model,
        pretraining=JFT,
        epochs=None,
        values={FEWSHOT: value},
        resolutions={FEWSHOT: 224},
        changes=changes or {},
        varies=varies,
    )


def _appendix() -> tuple[Ablation, ...]:
    masked = Published(
        table="Appendix B.1.2",
        model="ViT-B/16",
        pretraining=f"{JFT}, masked patches",
        epochs=None,
        values={"ImageNet": 79.9},
    )
    sizes = ("depth", "width", "num_heads", "mlp_dim", "patch_size")
    shape = _features("Appendix D.2", "ViT-L/32", varies=sizes)
    token = _features("Appendix D.3", "ViT-B/16")
    mean = _features("Appendix D.3", "ViT-B/16", changes={"pool": "mean"})
    return (
        Ablation("masked patch prediction", masked),
        Ablation("depth, width, MLP and patch size varied", shape),
        Ablation("class token and layer with tanh", token),
        Ablation("mean over the patches and linear layer", mean),
        Ablation("axial attention", _features("Appendix D.6", "Axial-ViT-B/32")),
        Ablation("axial attention", _features("Appendix D.6", "Axial-ViT-B/16")),
    )


def _swin(table: int, what: str, top1: float, **changes: Any) -> Ablation:
    row = Published(
        table=f"Swin paper, Table {table}",
        model="Swin-T",
        pretraining="none",
        epochs=300,
        values={"ImageNet": top1},
        resolutions={"ImageNet": 224},
        changes=changes,
    )
    return Ablation(what, row)


ABLATIONS: tuple[Ablation, ...] = (
    *_table_7(),
    *_table_8(),
    *_appendix(),
    _swin(4, _SWIN_DEFAULT, 81.3),
    _swin(4, "fixed windows", 80.2, window_kind="fixed"),
    _swin(6, "sliding windows", 81.4, window_kind="sliding"),
    _swin(4, "no positions", 80.1, relative_positions=False),
    _swin(
        *(4, "absolute positions", 80.5),
        relative_positions=False,
        absolute_positions=True,
    ),
    _swin(4, "absolute and relative positions", 81.3, absolute_positions=True),
)
