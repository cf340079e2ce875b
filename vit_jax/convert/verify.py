# SPDX-License-Identifier: Apache-2.0
"""Whether what was written computes the same as what was read, layer by layer.

The other side is the framework itself where it is installed (timm, transformers with
torch; onnxruntime), else our own reading of the written file.
"""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import load_checkpoint, timm
from vit_jax.data import pixels
from vit_jax.data.sources import open_source
from vit_jax.models import build_model

Outputs = Mapping[str, np.ndarray]
Runner = Callable[[np.ndarray], Outputs]

# Names of a framework's modules, and the named output of ours that each computes.
_MODULES = (
    (r"(?:.*\.)?layers\.(\d+)\.blocks\.(\d+)", "stage{0}/block{1:02}/output"),
    # BiT of transformers and of timm, then the ResNet of hybrids.
    (r"bit\..*stages\.(\d+)\.layers\.(\d+)", "stage{2}/unit{3:02}"),
    (r"stages\.(\d+)\.blocks\.(\d+)", "stage{2}/unit{3:02}"),
    (r".*\.stages\.(\d+)\.(?:blocks|layers)\.(\d+)", "stage{2}/unit{3}"),
    (r"(?:.*\.)?(?:blocks|layers?)\.(\d+)", "block{0:02}/output"),
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far two computations of one array are apart.

    Attributes:
      image: Which image was shown.
      name: Of the output.
      absolute: The largest difference.
      relative: That over the largest value, or over 1 where that is larger.
    """

    image: str
    name: str
    absolute: float
    relative: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
      against: What was compared with.
      differences: By image and output, in the order of computation.
      same_top5: Share of the images with the same five likeliest classes.
      tolerance: Largest relative difference that is allowed.
    """

    against: str
    differences: Sequence[Difference]
    same_top5: float
    tolerance: float

    @property
    def equal(self) -> bool:
        """Whether no difference is over the tolerance."""
        return all(each.relative <= self.tolerance for each in self.differences)

    def table(self) -> str:
        """Returns all of it as text."""
        width = max(len(each.name) for each in self.differences)
        lines = [f"compared with {self.against}"]
        lines.append(f"{'image':<9}{'output':<{width}}   largest difference   relative")
        for each in self.differences:
            mark = "" if each.relative <= self.tolerance else "  over the tolerance"
            lines.append(
                f"{each.image:<9}{each.name:<{width}}   {each.absolute:18.2e}   "
                f"{each.relative:8.2e}{mark}"
            )
        lines.append(f"same five best classes: {100 * self.same_top5:.0f} % of images")
        word = "equal" if self.equal else "NOT equal"
        lines.append(f"verdict: {word} within {self.tolerance:g}")
        return "\n".join(lines)


def verify(
    checkpoint: Checkpoint,
    path: str,
    form: str,
    *,
    picture: bytes | None = None,
    tolerance: float = 1e-4,
) -> Verdict:
    """Runs both sides on a random, a nearly constant and a real image.

    Args:
      checkpoint: What was read.
      path: What was written.
      form: In which form.
      picture: The encoded real image; None takes a handwritten digit.
      tolerance: Largest relative difference that is allowed.

    Raises:
      UserError: A file that cannot be read, or a picture that is none.
    """
    images = _images(checkpoint, picture)
    ours = _ours(checkpoint)
    against, theirs = _other_side(checkpoint, path, form)
    differences, agreeing = [], []
    for name, image in images.items():
        mine, other = ours(image), theirs(image)
        for output in (key for key in mine if key in other):
            found = _fitted(other[output], mine[output])
            if found is not None:
                differences.append(_difference(name, output, mine[output], found))
        best = [set(np.argsort(-each["logits"][0])[:5]) for each in (mine, other)]
        agreeing.append(best[0] == best[1])
    return Verdict(against, differences, float(np.mean(agreeing)), tolerance)


def _images(checkpoint: Checkpoint, picture: bytes | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = checkpoint.image_shape
    noise = rng.standard_normal((1, *shape)).astype(np.float32)
    images = {"random": noise, "constant": np.float32(0.5) + np.float32(1e-3) * noise}
    if checkpoint.preprocessing is not None:
        if picture is None:
            digit = open_source("bundled:mnist", "test[:1]").read(np.array([0]))[0]
            real = pixels.preprocess(digit, checkpoint.preprocessing)
        else:
            real = pixels.preprocess(picture, checkpoint.preprocessing)
        images["real"] = np.asarray(real, np.float32)[None]
    return images


def _ours(checkpoint: Checkpoint) -> Runner:
    model = build_model(**{**checkpoint.model, "dtype": "float32"})
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), checkpoint.params)

    @jax.jit
    def apply(params: Any, image: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return model.apply({"params": params}, image, train=False)[1]

    return lambda image: jax.device_get(apply(params, image))


def _other_side(checkpoint: Checkpoint, path: str, form: str) -> tuple[str, Runner]:
    if form == "timm" and _imports("torch", "timm"):
        call = timm.timm_call(checkpoint)
        if call.name is not None:
            return f"timm's {call.name}", _timm(call, path)
    if form == "huggingface" and _imports("torch", "transformers"):
        return "transformers", _transformers(
            path, bool(checkpoint.model["num_classes"])
        )
    if form == "stablehlo":
        return "the exported program", _stablehlo(path)
    if form == "onnx":
        return "onnxruntime", _onnx(path)
    written = load_checkpoint(path, checkpoint.model.get("preset"))
    return f"our own reading of {path}", _ours(written)


def _imports(*names: str) -> bool:
    """Whether a framework is there and works; a broken one is told of."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            return False
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as err:
            reason = " ".join(str(err).split())[:200]
            logging.warning("%s is installed but cannot be imported: %s", name, reason)
            return False
    return True


def _timm(call: Any, path: str) -> Runner:
    framework: Any = importlib.import_module("timm")
    arguments = {k: _python(v) for k, v in call.arguments.items()}
    return _torch(framework.create_model(call.name, checkpoint_path=path, **arguments))


def _python(value: Any) -> Any:
    """Evaluates an argument that is given as code, such as a partial of a norm."""
    if type(value).__name__ != "Code":
        return value
    names = {
        name: importlib.import_module(name) for name in ("functools", "torch", "timm")
    }
    return eval(value, {**names, "partial": names["functools"].partial})


def _transformers(path: str, head: bool) -> Runner:
    transformers: Any = importlib.import_module("transformers")
    auto = "AutoModelForImageClassification" if head else "AutoModel"
    return _torch(getattr(transformers, auto).from_pretrained(path))


def _torch(model: Any) -> Runner:
    """Runs a module of torch, noting what its blocks give."""
    torch: Any = importlib.import_module("torch")
    # In float32, whatever the file has: transformers would compute as it is stored.
    model.float().eval()
    seen: dict[str, np.ndarray] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            del module, inputs
            output = output[0] if isinstance(output, tuple) else output
            if hasattr(output, "detach"):
                seen[name] = output.detach().numpy()

        return hook

    for name, module in model.named_modules():
        for pattern, ours in _MODULES:
            if match := re.fullmatch(pattern, name):
                numbers = [int(number) for number in match.groups()]
                after = [number + 1 for number in numbers]
                module.register_forward_hook(note(ours.format(*numbers, *after)))
                break

    def run(image: np.ndarray) -> Outputs:
        seen.clear()
        with torch.no_grad():
            result = model(torch.from_numpy(image.transpose(0, 3, 1, 2).copy()))
        if not hasattr(result, "detach"):
            result = result.logits if "logits" in result else result.pooler_output
        return {**seen, "logits": result.numpy()}

    return run


def _stablehlo(path: str) -> Runner:
    from jax import export

    with open(path, "rb") as file:
        exported = export.deserialize(bytearray(file.read()))
    return lambda image: {"logits": np.asarray(exported.call(image))}


def _onnx(path: str) -> Runner:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    (name,) = [each.name for each in session.get_inputs()]
    return lambda image: {"logits": session.run(None, {name: image})[0]}


def _fitted(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray | None:
    """Returns their array in the form of ours; None if it is another thing."""
    if theirs.ndim == 4 and theirs.shape[1] == ours.shape[-1] != theirs.shape[-1]:
        theirs = theirs.transpose(0, 2, 3, 1)
    return theirs.reshape(ours.shape) if theirs.size == ours.size else None


def _difference(
    image: str, name: str, ours: np.ndarray, theirs: np.ndarray
) -> Difference:
    absolute = float(np.abs(ours.astype(np.float64) - theirs).max())
    scale = max(1.0, float(np.abs(ours).max()))
    return Difference(image, name, absolute, absolute / scale)
