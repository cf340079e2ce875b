# SPDX-License-Identifier: Apache-2.0
"""Evaluators by the name that a config gives as `type`.

Each is a function whose keyword arguments are the fields of the section; it opens the
data and returns an `Opened`, which is bound to a model later.
"""

from vit_jax.evaluators import (
    classification,
    feature_sections,
    masked_patch,
    multilabel,
    regression,
)

EVALUATORS = {
    "classification": classification.open_classification,
    "multilabel": multilabel.open_multilabel,
    "regression": regression.open_regression,
    "masked_patch": masked_patch.open_masked_patch,
    "fewshot": feature_sections.open_fewshot,
    "knn": feature_sections.open_knn,
    "probe": feature_sections.open_probe,
}
