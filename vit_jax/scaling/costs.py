# SPDX-License-Identifier: Apache-2.0
"""What a training of the grid costs, known before it runs."""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

from vit_jax import sharding
from vit_jax.config import section_call, steps
from vit_jax.data.feed import open_train
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, flops
from vit_jax.models.published import JFT_COSTS
from vit_jax.planning.published import count_examples, dataset_name
from vit_jax.tpu.chips import CHIPS

FAMILIES = ("vit", "bit", "hybrid")
"""In the order in which the paper lists and colours them; others follow."""

UTILISATION = 0.4
"""Share of its peak that a core of TPU v3 is taken to compute at. Tables 2 and 6 of
arXiv:2010.11929 together imply 0.32 for ViT-H/14 and 0.43 for ViT-L/16."""


class Cost(NamedTuple):
    """The costs of one training; None where the size of the data is not known.

    Attributes:
      model: Name in the catalogue.
      family: Key of `vit_jax.models.FAMILIES`.
      parameters: Their number, heads and all.
      dataset: The DATASET.
      examples: Different examples.
      batch_size: Images a step.
      steps: Updates, if it does not end early.
      flops_per_image: Of an update: forward and backward.
      paper: ExaFLOPs of Table 6, if it has this training.
    """

    model: str
    family: str
    parameters: int
    dataset: str
    examples: int | None
    batch_size: int
    steps: int | None
    flops_per_image: float
    paper: float | None

    @property
    def epochs(self) -> float | None:
        """Passes over the examples."""
        if self.steps is None or self.examples is None:
            return None
        return self.steps * self.batch_size / self.examples

    @property
    def exaflops(self) -> float | None:
        """Operations of the whole training in 1e18, two for a multiply-add."""
        return None if self.steps is None else self.exaflops_of(self.steps)

    @property
    def core_days(self) -> float | None:
        """Days on one core of TPU v3, at `UTILISATION`."""
        if self.exaflops is None:
            return None
        speed = UTILISATION * CHIPS["v3"].core.flops
        return 1e18 * self.exaflops / speed / 86_400

    def exaflops_of(self, updates: int) -> float:
        """Returns the operations of so many updates in 1e18."""
        return 1e-18 * self.flops_per_image * updates * self.batch_size

    def order(self) -> tuple[int, str, float, float, float]:
        """Returns what cells are sorted by: from small to large within a family."""
        place = FAMILIES.index(self.family) if self.family in FAMILIES else 99
        length = self.exaflops or 0.0
        return place, self.family, self.flops_per_image, self.examples or 0, length


def estimate(fields: Mapping[str, Any], *, data_is_here: bool) -> Cost:
    """Returns what a training costs; nothing is trained or compiled.

    Args:
      fields: Its config as plain dictionaries.
      data_is_here: Whether data that cannot be opened is an error; else what depends on
        its size is left open, unless it is a public one whose size is known.

    Raises:
      UserError: Whatever is wrong with the model, the split or the length.
    """
    model = fields.get("model") or {}
    if not model.get("name"):
        raise UserError(
            "config.model.name is missing; a study trains from scratch and needs to "
            "know which model, such as 'ViT-B/16'"
        )
    data, variant = fields["data"], catalog.find(model["name"])
    size = _image_size(data)
    parameters, operations = _model_costs(json.dumps(model, default=list), size)
    examples = _examples(data, data_is_here)
    known = {"batch_size": data["batch_size"], "num_examples": examples or 0}
    in_epochs = fields.get("total_epochs") is not None
    total = None if in_epochs and not examples else steps("total", fields, **known)
    cost = Cost(
        model=variant.name,
        family=variant.family,
        parameters=parameters,
        dataset=data.get("dataset") or "a mixture",
        examples=examples,
        batch_size=data["batch_size"],
        steps=total,
        flops_per_image=operations,
        paper=None,
    )
    return cost._replace(paper=_paper(cost))


@functools.cache
def _model_costs(section: str, size: tuple[int, int]) -> tuple[int, float]:
    fields = json.loads(section)
    fields["num_classes"] = fields.get("num_classes") or 0
    model = section_call(build_model, fields, "model")
    image = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    # Two operations for a multiply-add; backward costs twice as much as forward.
    return parameters, 6.0 * flops.multiply_adds(model, size)


def _image_size(data: Mapping[str, Any]) -> tuple[int, int]:
    """Returns rows and columns of the images that the ops make.

    Two made-up data sets tell whether it is the ops that fix the size. If not, it is
    that of the data, which must then be here.
    """
    ops = data["ops"]
    small, large = (
        _made_size(f"synthetic:2@size={side};train={jax.device_count()}", "train", ops)
        for side in (32, 48)
    )
    if small == large:
        return small
    return _made_size(data["dataset"], data["split"], ops, data.get("data_dir"))


@functools.cache
def _made_size(
    dataset: str, split: str, ops: str, data_dir: str | None = None
) -> tuple[int, int]:
    mesh = sharding.make_mesh()
    feed = open_train(
        dataset=dataset,
        split=split,
        batch_size=mesh.size,
        ops=ops,
        mesh=mesh,
        seed=0,
        num_classes=None,
        data_dir=data_dir,
    )
    return feed.image_shape()[:2]


def _examples(data: Mapping[str, Any], here: bool) -> int | None:
    if data.get("mixture") is not None:
        return None
    dataset, split = data.get("dataset"), data.get("split")
    count = count_examples(dataset, split)
    if count is not None:
        return count
    return _count(str(dataset), str(split), data.get("data_dir"), here)


@functools.cache
def _count(dataset: str, split: str, data_dir: str | None, here: bool) -> int | None:
    try:
        return len(open_source(dataset, split, data_dir=data_dir))
    except UserError as err:
        if here:
            raise
        logging.warning("the size of %s %s is not known: %s", dataset, split, err)
        return None


def _paper(cost: Cost) -> float | None:
    """Returns the cost that Table 6 has for the same images of the whole of JFT."""
    if dataset_name(cost.dataset) != "jft300m" or cost.examples != flops.JFT_IMAGES:
        return None
    for row in JFT_COSTS:
        same = cost.epochs and math.isclose(cost.epochs, row.epochs, rel_tol=1e-3)
        if row.model == cost.model and same:
            return row.exaflops
    return None
