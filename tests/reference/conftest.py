# SPDX-License-Identifier: Apache-2.0
"""Makes torchvision importable beside a torch that was built without its operators.

timm and transformers import torchvision, which registers shape functions for two of its
operators; beside a torch that it was not built for they are not there, and the import
fails. Nothing here calls them.
"""

import importlib.util

if importlib.util.find_spec("torch") is not None:
    import torch

    # Kept, because the definitions live as long as the library object.
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            LIBRARY.define(
                f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
