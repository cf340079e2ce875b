# SPDX-License-Identifier: Apache-2.0
"""Which model parameters are of: from our names and shapes to the catalogue."""

from vit_jax.convert.identify.model import check_family, identify
from vit_jax.convert.identify.parameters import parameter_shapes

__all__ = ["check_family", "identify", "parameter_shapes"]
