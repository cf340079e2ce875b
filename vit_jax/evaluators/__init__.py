# SPDX-License-Identifier: Apache-2.0
"""Evaluators by the name that a config gives as `type`."""

from vit_jax.evaluators import classification

EVALUATORS = {"classification": classification.Evaluator}
