# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model made visible again."""

import inspect

import numpy as np
from jaxtyping import Num, UInt8

from vit_jax.registry import parse_pipeline
