# SPDX-License-Identifier: Apache-2.0
"""How the ViT paper pre-trains: Table 3 of arXiv:2010.11929, quoted.

All of them: Adam, batch 4096, 10,000 steps of warm-up, images of 224 pixels; those on
ImageNet also clip the norm of the gradient to 1 (Appendix B.1).
"""

import re
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """A row of Table 3.

    Attributes:
      models: Pattern of the names that it is about.
      data: The data set, as the paper calls it.
      epochs: Passes over it.
      lr: Base learning rate.
      decay: Of the learning rate.
      weight_decay: Multiplied by the learning rate, as by `adamw` here.
      dropout: Its rate.
    """

    models: str
    data: str
    epochs: str
    lr: float
    decay: str
    weight_decay: float
    dropout: float


_JFT, _IMAGENET21K, _IMAGENET = "JFT-300M", "ImageNet-21k", "ImageNet"
TABLE_3 = (
    Settings(r"ViT-B/(16|32)", _JFT, "7", 8e-4, "linear", 0.1, 0.0),
    Settings(r"ViT-L/32", _JFT, "7", 6e-4, "linear", 0.1, 0.0),
    Settings(r"ViT-L/16", _JFT, "7 or 14", 4e-4, "linear", 0.1, 0.0),
    Settings(r"ViT-H/14", _JFT, "14", 3e-4, "linear", 0.1, 0.0),
    Settings(r"BiT-R50x[12]", _JFT, "7", 1e-3, "linear", 0.1, 0.0),
    Settings(r"BiT-R101x1", _JFT, "7", 8e-4, "linear", 0.1, 0.0),
    Settings(r"BiT-R152x[12]", _JFT, "7", 6e-4, "linear", 0.1, 0.0),
    Settings(r"R50\+ViT-B/(16|32)", _JFT, "7", 8e-4, "linear", 0.1, 0.0),
    Settings(r"R50\+ViT-L/32", _JFT, "7", 2e-4, "linear", 0.1, 0.0),
    Settings(r"R50\+ViT-L/16", _JFT, "7 or 14", 4e-4, "linear", 0.1, 0.0),
    Settings(r"ViT-B/(16|32)", _IMAGENET21K, "90", 1e-3, "linear", 0.03, 0.1),
    Settings(r"ViT-L/(16|32)", _IMAGENET21K, "30 or 90", 1e-3, "linear", 0.03, 0.1),
    Settings(r"ViT-.*", _IMAGENET, "300", 3e-3, "cosine", 0.3, 0.1),
)
_DATA = (
    (_JFT, "jft"),
    (_IMAGENET21K, r"imagenet[-_]?21k|i21k"),
    (_IMAGENET, r"imagenet(2012|[-_]?1k)?\b|i1k"),
)


def find(model: str, dataset: str) -> Settings | None:
    """Returns the row about a model pre-trained on a data set, None if there is none.

    Args:
      model: Name in the catalogue.
      dataset: DATASET of the training.
    """
    name = next((n for n, pattern in _DATA if re.search(pattern, dataset.lower())), "")
    for row in TABLE_3:
        if row.data == name and re.fullmatch(row.models, model):
            return row
    return None


def compared(row: Settings) -> dict[str, Any]:
    """Returns the settings of a row by the names that the report shows."""
    return {
        "data": row.data,
        "epochs": row.epochs,
        "batch": "4,096",
        "optimizer": "adam",
        "learning rate": f"{row.lr:g}",
        "schedule": row.decay,
        "warm-up": "10,000 steps",
        "weight decay": f"{row.weight_decay:g}",
        "clipping": "1" if row.data == _IMAGENET else "none",
        "dropout": f"{row.dropout:g}",
        "pixels": "224 x 224",
    }
