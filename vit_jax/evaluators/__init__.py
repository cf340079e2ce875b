# SPDX-License-Identifier: Apache-2.0
"""Evaluators by the name that a config gives as `type`.

Each is a function whose keyword arguments are the fields of the section; it opens the
data and returns an `Opened`, which is bound to a model later.
"""

from vit_jax.evaluators import (
    classification,
    feature_sections,
    multilabel,
    regression,
)

EVALUATORS = {
    "classification": classification.open_classification,
    "multilabel": multilabel.open_multilabel,
    "regression": regression.open_regression,
    "fewshot": feature_sections.open_fewshot,
    "knn": feature_sections.open_knn,
    "probe": feature_sections.open_probe,
}
