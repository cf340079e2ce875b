# SPDX-License-Identifier: Apache-2.0
"""Figures that papers and other people's code publish for rows of the catalogue.

They are quoted, each with its place, and were not measured with this package.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Accuracy(NamedTuple):
    """Top-1 accuracy on ImageNet.

    Attributes:
      top1: In per cent.
      source: Where it is published, after which training.
    """

    top1: float
    source: str


class Cost(NamedTuple):
    """A row of Table 6 of arXiv:2010.11929: training on JFT-300M at 224 pixels.

    Attributes:
      model: Name in the catalogue.
      epochs: Passes over JFT-300M.
      exaflops: Cost of the training, in 1e18 operations.
    """

    model: str
    epochs: int
    exaflops: float


_I21K = "ViT paper, Table 5: ImageNet-21k, then 384 px"
_JFT = "ViT paper, Table 6: JFT, then 384 px"
_SWIN = "Swin README: ImageNet-1k"
_SWIN_22K = "Swin README: ImageNet-22k, then 1k"

# One a model: of the paper's ViTs that from ImageNet-21k, whose weights are public; of
# Swin that from ImageNet-1k alone where there is one.
ACCURACIES: Mapping[str, Accuracy] = {
    "ViT-S/16": Accuracy(76.5, "big_vision: ImageNet-1k, 90 epochs"),
    "ViT-B/16": Accuracy(83.97, _I21K),
    "ViT-B/32": Accuracy(81.28, _I21K),
    "ViT-L/16": Accuracy(85.15, _I21K),
    "ViT-L/32": Accuracy(80.99, _I21K),
    "ViT-H/14": Accuracy(85.13, _I21K),
    "R50+ViT-B/16": Accuracy(85.58, _JFT),
    "R50+ViT-B/32": Accuracy(84.90, _JFT),
    "R50+ViT-L/16": Accuracy(87.12, _JFT),
    "R50+ViT-L/32": Accuracy(85.68, _JFT),
    "BiT-R50x1": Accuracy(77.54, _JFT),
    "BiT-R50x2": Accuracy(82.12, _JFT),
    "BiT-R101x1": Accuracy(80.67, _JFT),
    "BiT-R152x1": Accuracy(81.88, _JFT),
    "BiT-R152x2": Accuracy(85.56, _JFT),
    "BiT-R152x4": Accuracy(87.54, "ViT paper, Table 2: BiT-L, JFT"),
    "BiT-R200x3": Accuracy(87.22, _JFT),
    "Mixer-B/16": Accuracy(76.3, "big_vision: ImageNet-1k, 300 epochs"),
    "Swin-T": Accuracy(81.2, _SWIN),
    "Swin-T-c24": Accuracy(81.6, _SWIN),
    "Swin-S": Accuracy(83.2, _SWIN),
    "Swin-B": Accuracy(83.5, _SWIN),
    "Swin-B-w12-384": Accuracy(84.5, _SWIN),
    "Swin-L": Accuracy(86.3, _SWIN_22K),
    "Swin-L-w12-384": Accuracy(87.3, _SWIN_22K),
    "SwinV2-T": Accuracy(81.8, _SWIN),
    "SwinV2-T-w16": Accuracy(82.8, _SWIN),
    "SwinV2-S": Accuracy(83.7, _SWIN),
    "SwinV2-S-w16": Accuracy(84.1, _SWIN),
    "SwinV2-B": Accuracy(84.2, _SWIN),
    "SwinV2-B-w16": Accuracy(84.6, _SWIN),
    "SwinV2-B-w12to16": Accuracy(86.2, _SWIN_22K),
    "SwinV2-B-w12to24-384": Accuracy(87.1, _SWIN_22K),
    "SwinV2-L-w12to16": Accuracy(86.9, _SWIN_22K),
    "SwinV2-L-w12to24-384": Accuracy(87.6, _SWIN_22K),
}

JFT_COSTS: tuple[Cost, ...] = (
    Cost("ViT-B/32", 7, 55),
    Cost("ViT-B/16", 7, 224),
    Cost("ViT-L/32", 7, 196),
    Cost("ViT-L/16", 7, 783),
    Cost("ViT-L/16", 14, 1567),
    Cost("ViT-H/14", 14, 4262),
    Cost("BiT-R50x1", 7, 50),
    Cost("BiT-R50x2", 7, 199),
    Cost("BiT-R101x1", 7, 96),
    Cost("BiT-R152x1", 7, 141),
    Cost("BiT-R152x2", 7, 563),
    Cost("BiT-R152x2", 14, 1126),
    Cost("BiT-R200x3", 14, 3306),
    Cost("R50+ViT-B/32", 7, 106),
    Cost("R50+ViT-B/16", 7, 274),
    Cost("R50+ViT-L/32", 7, 246),
    # Its 14 epochs cost 1.94 times as much in the paper.
    Cost("R50+ViT-L/16", 7, 859),
    Cost("R50+ViT-L/16", 14, 1668),
)
