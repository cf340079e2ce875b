# SPDX-License-Identifier: Apache-2.0
"""Several sources in one: the training data of a mixture.

    config.data.mixture = {
        "web": {"dataset": "tar:/web/*.tar", "split": "train", "weight": 3},
        "pets": {"dataset": "folder:/pets", "split": "train[:90%]", "weight": 1},
    }

Of every four examples three come from `web`, one from `pets`; by which rule is told in
`order`. The order of the parts is that of their names. What they have to share:

- All have encoded images, or all have pixels of one shape.
- All have class ids, or all have several classes an example, or all have targets.
- All have class names, or none has. The classes of the mixture are those of all parts,
  united by name; where the parts differ they are sorted by their bytes. Without names
  an id means the same class in every part.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from vit_jax.data.examples import Collection, Rows, Source
from vit_jax.data.labels import Labels, MultiHot, sort_names, translate_ids
from vit_jax.data.order import Mixture, whole_slots
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError, unknown

FIELDS = ("dataset", "split", "weight")


def open_mixture(
    parts: Mapping[str, Mapping[str, Any]], data_dir: str | None = None
) -> Source:
    """Opens the sources of a mixture as one.

    Args:
      parts: By name, `dataset`, `split` and `weight` (a positive number) of each.
      data_dir: Where prepared TensorFlow Datasets lie.

    Returns:
      A source of the rows of all parts, whose `mixture` says how to draw from them.

    Raises:
      UserError: No part, a field that is missing or unknown, whatever is wrong with a
        part, or parts that do not go together.
    """
    if not parts:
        raise UserError(
            "config.data.mixture has no part; give each a name, and dataset, split and "
            "weight"
        )
    names = sorted(parts)
    for name in names:
        _check_fields(name, parts[name])
    slots = whole_slots([parts[name]["weight"] for name in names])
    sources = {
        name: open_source(
            parts[name]["dataset"], parts[name]["split"], data_dir=data_dir
        )
        for name in names
    }
    for (name, source), share in zip(sources.items(), slots, strict=True):
        logging.info(
            "mixture: %s has %d of %d slots, %s examples (%s)",
            name,
            share,
            sum(slots),
            f"{len(source):,}",
            source.description,
        )
    mixture = Mixture(tuple(len(source) for source in sources.values()), slots)
    return join_sources(sources, mixture)


def join_sources(sources: Mapping[str, Source], mixture: Mixture) -> Source:
    """Makes one source of several.

    Raises:
      UserError: Sources that do not go together.
    """
    records = JoinedRecords(sources)
    class_names = _unite_names(sources)
    labels = _join_labels(sources, class_names)
    places = records.label_places
    collection = Collection(records, labels, {}, class_names, places)
    description = "mixture of " + " and ".join(s.description for s in sources.values())
    return Source(collection, [(0, len(labels))], description, mixture)


class JoinedRecords:
    """The images of several sources, one source behind the other."""

    def __init__(self, sources: Mapping[str, Source]):
        self._sources = list(sources.values())
        self._ends = np.cumsum([len(source) for source in self._sources])
        self.encoded = self._sources[0].encoded
        for name, source in sources.items():
            if source.encoded != self.encoded:
                raise _mismatch(sources, name, "encoded images and pixels")
        if not self.encoded:
            shapes = [np.shape(s.read(np.array([0])))[1:] for s in self._sources]
            for name, shape in zip(sources, shapes, strict=True):
                if shape != shapes[0]:
                    raise _mismatch(
                        sources, name, f"pixels of shapes {shapes[0]} and {shape}"
                    )

    def read(self, rows: Rows) -> list[bytes] | np.ndarray:
        """Returns encoded images, or pixels as uint8 (n, h, w, c)."""
        images = self._gather(rows, lambda source, own: list(source.read(own)))
        return images if self.encoded else np.stack(images)

    def names(self, rows: Rows) -> list[str]:
        """Returns the name of each row."""
        return self._gather(rows, lambda source, own: source.names(own))

    def label_places(self, rows: Rows) -> list[str]:
        """Returns where the label of each row is written."""
        return self._gather(rows, lambda source, own: source.label_places(own))

    def _gather(self, rows: Rows, ask: Any) -> list[Any]:
        owners = np.searchsorted(self._ends, rows, side="right")
        answers: list[Any] = [None] * len(rows)
        for number, source in enumerate(self._sources):
            places = np.flatnonzero(owners == number)
            if not len(places):
                continue
            own = rows[places] - (self._ends[number] - len(source))
            for place, answer in zip(places.tolist(), ask(source, own), strict=True):
                answers[place] = answer
        return answers


def _check_fields(name: str, part: Mapping[str, Any]) -> None:
    for field in part:
        if field not in FIELDS:
            raise unknown(f"field of config.data.mixture.{name}:", field, FIELDS)
    for field in FIELDS:
        if part.get(field) is None:
            raise UserError(
                f"config.data.mixture.{name}.{field} is missing; give dataset, split "
                "and weight"
            )
    weight = part["weight"]
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise UserError(
            f"config.data.mixture.{name}.weight is {weight!r}; give a positive number"
        )


def _unite_names(sources: Mapping[str, Source]) -> tuple[str, ...] | None:
    first, *others = (source.class_names for source in sources.values())
    if all(names == first for names in others):
        return first
    united: set[str] = set()
    for name, source in sources.items():
        if first is None or source.class_names is None:
            raise _mismatch(sources, name, "classes with names and classes without")
        united.update(source.class_names)
    logging.info("mixture: %d classes in all, united by name", len(united))
    return sort_names(united)


def _join_labels(
    sources: Mapping[str, Source], class_names: Sequence[str] | None
) -> Labels:
    kinds = {name: _kind(source) for name, source in sources.items()}
    for name, kind in kinds.items():
        if kind != next(iter(kinds.values())):
            raise _mismatch(sources, name, " and ".join(dict.fromkeys(kinds.values())))
    labels = [_renumber(source, class_names) for source in sources.values()]
    several = [part for part in labels if isinstance(part, MultiHot)]
    if not several:
        return np.concatenate([p for p in labels if not isinstance(p, MultiHot)])
    counts = np.concatenate([np.diff(part.offsets) for part in several])
    return MultiHot(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([part.ids for part in several]),
        max(part.num_classes for part in several),
    )


def _kind(source: Source) -> str:
    if isinstance(source.labels, MultiHot):
        return "several classes an example"
    return "one class" if source.labels.dtype.kind == "i" else "targets"


def _renumber(source: Source, class_names: Sequence[str] | None) -> Labels:
    labels, own = source.labels, source.class_names
    if own is None or class_names is None:
        return labels
    if isinstance(labels, MultiHot):
        ids = translate_ids(labels.ids, own, class_names, source.description)
        return MultiHot(labels.offsets, ids, len(class_names))
    return translate_ids(labels, own, class_names, source.description)


def _mismatch(sources: Mapping[str, Source], name: str, what: str) -> UserError:
    return UserError(
        f"the parts {next(iter(sources))!r} and {name!r} of config.data.mixture do not "
        f"go together: they have {what}; give all parts the same"
    )
