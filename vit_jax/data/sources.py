# SPDX-License-Identifier: Apache-2.0
"""Opens a data set by its name, such as `folder:/data/pets` or `bundled:mnist`.

    SOURCE:LOCATION[@key=value;key=value]

Options are read only behind the last `/`; the names of features in `@image=` and
`@label=` may hold more of them. The forms are the keys of `FORMS`; what each
expects is told in its module. A new form is a function from a `Request` to a
`Collection`, and a line in `FORMS`. `@labels=real` gives ImageNet's validation images
their ReaL labels by the names of their files; see `imagenet`. `@holdout=10%` makes a
validation split of folders, lists and zip files that have none; see `holdout`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vit_jax.data import holdout
from vit_jax.data.examples import ALL, Collection, Request, Source
from vit_jax.data.forms import (
    arrays as sources_arrays,
    folders as sources_folders,
    lists as sources_lists,
    tar_tfrecord as sources_shards,
    tfds as sources_tfds,
)
from vit_jax.data.imagenet import real_ids, wnids
from vit_jax.data.labels import MultiHot
from vit_jax.data.pixels import decode_image
from vit_jax.data.splits import split_names, split_ranges
from vit_jax.errors import UserError, unknown


class Form(NamedTuple):
    """A form of data set: how it opens, which options it takes, how it is written."""

    open: Callable[[Request], Collection]
    options: Sequence[str]
    example: str


# Options of the forms that list images one by one.
_LISTED = ("names", "labels", "holdout")

FORMS = {
    "bundled": Form(sources_arrays.open_bundled, (), "bundled:mnist"),
    "folder": Form(sources_folders.open_folder, _LISTED, "folder:DIR"),
    "csv": Form(sources_lists.open_csv, _LISTED, "csv:FILE"),
    "jsonl": Form(sources_lists.open_jsonl, _LISTED, "jsonl:FILE"),
    "tar": Form(sources_shards.open_tar, ("names", "split"), "tar:GLOB"),
    "tfrecord": Form(
        sources_shards.open_tfrecord,
        ("image", "label", "labels", "names", "split"),
        "tfrecord:GLOB@image=FEATURE;label=FEATURE",
    ),
    "tfds": Form(
        sources_tfds.open_tfds,
        ("image", "label", "task"),
        "tfds:NAME or tfds:NAME:VERSION",
    ),
    "zip": Form(sources_folders.open_zip, _LISTED, "zip:FILE"),
    "synthetic": Form(
        sources_arrays.open_synthetic,
        tuple(sources_arrays.SYNTHETIC_DEFAULTS),
        "synthetic:10@size=64;train=1024",
    ),
}

_OPTIONS = re.compile(r"(?P<location>(?:.*/)?[^/]*?)@(?P<options>\w+=[^/]*)", re.DOTALL)
_FEATURES = re.compile(
    r"(?P<location>.*?)@(?P<options>(?:\w+=[^;]*;)*(?:image|label)=.*)", re.DOTALL
)


def open_source(
    dataset: str,
    split: str,
    *,
    class_names: Sequence[str] | None = None,
    data_dir: str | None = None,
    lenient: bool = False,
) -> Source:
    """Opens the examples that a split string selects from a data set.

    Args:
      dataset: `SOURCE:LOCATION`, see `FORMS`.
      split: Such as `train[:98%]`; see `splits`.
      class_names: Names that fix the class ids, those of the training split or of a
        checkpoint; None to take the data set's training split.
      data_dir: Where prepared TensorFlow Datasets lie; None for `$TFDS_DATA_DIR`, and
        without that `~/tensorflow_datasets`.
      lenient: Whether unknown classes become -1 and missing images are not looked for;
        for those who list what is wrong.

    Raises:
      UserError: A form, option, split or place that does not exist, labels that do not
        fit the class names, or a split without an example.
    """
    form, location, options = parse_dataset(dataset)
    request = Request(
        location=location,
        options=options,
        splits=split_names(split),
        class_names=None if class_names is None else tuple(class_names),
        data_dir=data_dir,
        lenient=lenient,
    )
    if "holdout" in options:
        collection = holdout.open_with_holdout(
            lambda splits: FORMS[form].open(
                dataclasses.replace(request, splits=splits)
            ),
            request.splits,
            holdout.parse_share(options["holdout"]),
        )
    else:
        collection = FORMS[form].open(request)
    if "labels" in options and form != "tfrecord":
        collection = _relabel(collection, options["labels"])
    sizes = {name: stop - start for name, (start, stop) in collection.splits.items()}
    ranges = [
        (collection.splits[name][0] + start, collection.splits[name][0] + stop)
        for name, start, stop in split_ranges(_expand(split, sizes), sizes)
    ]
    return Source(collection, ranges, f"{dataset} {split}")


def _expand(split: str, sizes: Mapping[str, int]) -> str:
    """Returns the split string, with the names of all splits for `all`."""
    return "+".join(sizes) if split == ALL and ALL not in sizes else split


def _relabel(collection: Collection, labels: str) -> Collection:
    """Gives images other labels than their own, those of `@labels=real`."""
    if labels != "real":
        raise unknown("value of the option labels:", labels, ["real"])
    records = collection.records
    names = records.names(np.arange(len(collection.labels)))
    class_names = collection.class_names or wnids("imagenet1k")
    offsets, ids = real_ids(names, class_names)
    several = MultiHot(offsets, ids, len(class_names))
    return dataclasses.replace(
        collection, labels=several, class_names=class_names, label_places=None
    )


def parse_dataset(dataset: str) -> tuple[str, str, dict[str, str]]:
    """Cuts a data set's name into form, location and options.

    Raises:
      UserError: No form, an unknown form or option, or no location.
    """
    form, colon, location = dataset.partition(":")
    if not colon:
        raise UserError(
            f"{dataset!r} does not say which form of data set it is; write "
            f"SOURCE:LOCATION, one of {', '.join(f.example for f in FORMS.values())}"
        )
    if form not in FORMS:
        raise unknown("form of data set", form, FORMS)
    options: dict[str, str] = {}
    match = _OPTIONS.fullmatch(location)
    if match is None and "image" in FORMS[form].options:
        match = _FEATURES.fullmatch(location)
    if match is not None:
        location = match["location"]
        options = _parse_options(match["options"], form)
    if not location:
        raise UserError(f"{dataset!r} names no place; write {FORMS[form].example}")
    return form, location, options


def _parse_options(text: str, form: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in text.split(";"):
        key, equals, value = option.partition("=")
        if not equals or not value:
            raise UserError(
                f"option {option!r} of {form}: has no value; write @key=value;key=value"
            )
        if not FORMS[form].options:
            raise UserError(f"{form}: takes no options; leave out @{text}")
        if key not in FORMS[form].options:
            raise unknown(f"option of {form}:", key, FORMS[form].options)
        options[key] = value
    return options


def count_classes(source: Source) -> int:
    """Returns how many classes a source has: its names, or its highest label and one.

    Raises:
      UserError: The labels are no classes, or there are none.
    """
    if source.num_classes is not None:
        return source.num_classes
    _refuse_unlabelled(source)
    labels = source.labels
    if isinstance(labels, MultiHot) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"{source.description} has numbers to predict and no classes; set "
            'config.loss.name to "mse"'
        )
    return int(labels.max()) + 1


def check_source(
    source: Source,
    *,
    batch_size: int | None = None,
    num_classes: int | None = None,
    decode: bool = True,
) -> None:
    """Refuses a source that a run would stumble over later.

    It looks at every label, but only at the first and the last image.

    Args:
      source: The source.
      batch_size: Size of the global training batch; None for evaluation.
      num_classes: Number of classes of the model; None where labels are targets.
      decode: Whether to look at images at all.

    Raises:
      UserError: No example, fewer than a batch, a label that the model has no class
        for, or an image that cannot be decoded.
    """
    size = len(source)
    if size == 0:
        raise UserError(f"{source.description} holds no example; use a wider split")
    if batch_size is not None and size < batch_size:
        raise UserError(
            f"batch_size {batch_size} is larger than {source.description}, which has "
            f"{size} examples; use a batch_size of at most {size}"
        )
    if num_classes is not None:
        _check_labels(source, num_classes)
    if source.encoded and decode:
        rows = np.unique([0, size - 1])
        for name, data in zip(source.names(rows), source.read(rows), strict=True):
            try:
                decode_image(bytes(data))
            except UserError as err:
                raise UserError(f"{name}: {err}") from err


def _check_labels(source: Source, num_classes: int) -> None:
    labels = source.labels
    if isinstance(labels, MultiHot):
        if labels.num_classes > num_classes:
            wrong = np.flatnonzero(labels.ids >= num_classes)[:1]
            row = np.searchsorted(labels.offsets, wrong, side="right") - 1
            first = "".join(
                f", as {labels.ids[place]} of {name}"
                for place, name in zip(wrong, source.label_places(row), strict=True)
            )
            raise UserError(
                f"{source.description} has {labels.num_classes} classes{first}, the "
                f"model num_classes={num_classes}; set num_classes="
                f"{labels.num_classes}"
            )
        return
    if not np.issubdtype(labels.dtype, np.integer):
        return
    _refuse_unlabelled(source)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        (name,) = source.label_places(wrong[:1])
        raise UserError(
            f"{wrong.size} labels of {source.description} lie outside the model's "
            f"{num_classes} classes, first {labels[wrong[0]]} of {name}; set "
            f"num_classes to at least {labels.max() + 1}"
        )


def _refuse_unlabelled(source: Source) -> None:
    """Refuses a source whose labels all say that there is none."""
    labels = source.labels
    if isinstance(labels, np.ndarray) and len(labels) and labels.max() == -1:
        raise UserError(
            f"{source.description} has no labels; sort its pictures into a folder for "
            "each class, or learn without labels by setting config.loss.name to "
            '"masked_patch"'
        )


def present_classes(source: Source) -> Int[np.ndarray, " c"]:
    """Returns the ids of the classes that occur in a source, sorted.

    Raises:
      UserError: Labels that are numbers to predict.
    """
    labels = source.labels
    ids = labels.ids if isinstance(labels, MultiHot) else labels
    if not np.issubdtype(ids.dtype, np.integer):
        raise UserError(
            f"{source.description} has no classes to restrict the model to; leave out "
            "restrict_classes"
        )
    return np.unique(ids[ids >= 0])
