# SPDX-License-Identifier: Apache-2.0
"""A plan as a page of text, and as JSON."""

from typing import Any

from vit_jax.planning import fit, published
from vit_jax.planning.plan import Plan
from vit_jax.tpu.chips import GIB
from vit_jax.tpu.compiler import OutOfMemoryError
from vit_jax.tpu.cost import Cost


def to_json(plan: Plan, config: str) -> dict[str, Any]:
    """Returns a plan as one JSON object; what is not known is null.

    Bytes are those of one core; `flops_per_image` counts two for a multiply-add.

    Args:
      plan: The plan.
      config: How the command line names the config.
    """
    known = _costs(plan, plan.cost) if isinstance(plan.cost, Cost) else {}
    needed = plan.cost.used if isinstance(plan.cost, OutOfMemoryError) else None
    keys = (
        *("argument_bytes", "temp_bytes", "code_bytes", "flops_per_image"),
        *("multiply_adds_per_image", "hbm_bytes_per_image", "collectives"),
        *("compile_seconds", "roofline_seconds", "roofline", "bound"),
        *("compiler_optimal_seconds", "images_per_second", "days", "core_days"),
    )
    return {
        "config": config,
        "model": plan.model,
        "topology": plan.slice.name,
        "cores": plan.cores,
        "mesh": plan.mesh,
        "batch_size": plan.batch_size,
        "total_steps": plan.total_steps,
        "fits": plan.fits,
        "memory_bytes": plan.slice.chip.core.memory,
        "needed_bytes": needed and round(needed),
        "state_bytes": plan.state_bytes,
        **{key: known.get(key) for key in keys},
        "paper_core_days": published.paper_core_days(plan.model, plan.dataset),
        "changes": plan.changes,
    }


def _costs(plan: Plan, cost: Cost) -> dict[str, Any]:
    days = None
    if plan.total_steps is not None:
        days = plan.total_steps * cost.seconds / 86_400
    return {
        "argument_bytes": cost.argument_bytes,
        "temp_bytes": cost.temp_bytes,
        "code_bytes": cost.code_bytes,
        "flops_per_image": cost.flops / plan.batch_size,
        "multiply_adds_per_image": cost.flops / 2 / plan.batch_size,
        "hbm_bytes_per_image": cost.hbm_bytes * plan.cores / plan.batch_size,
        "collectives": {
            kind: {"count": count, "bytes": size}
            for kind, (count, size) in cost.collectives.items()
        },
        "compile_seconds": round(cost.compile_seconds, 1),
        "roofline_seconds": cost.roofline.seconds,
        "roofline": cost.roofline._asdict(),
        "bound": cost.roofline.bound,
        "compiler_optimal_seconds": cost.compiler_seconds,
        "images_per_second": plan.batch_size / cost.seconds,
        "days": days,
        "core_days": None if days is None else days * plan.cores,
    }


def to_text(plan: Plan, config: str) -> str:
    """Returns a plan as lines of text."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    each = plan.batch_size * plan.mesh["tensor"] / plan.cores
    lines = [
        f"{config}: {plan.model}, batch {plan.batch_size}, {each:g} images a core",
        f"{plan.slice.name}: {plan.cores} cores of TPU {plan.slice.chip.name}, "
        f"mesh {mesh}",
    ]
    if plan.changes:
        lines.append(f"changed to fit: {fit.as_flags(plan.changes)}")
    if isinstance(plan.cost, Cost):
        lines += _cost_lines(plan, plan.cost)
    else:
        lines += _lines_of_unfit(plan)
    return "\n".join(lines) + "\n"


def _lines_of_unfit(plan: Plan) -> list[str]:
    tried = list(fit.candidates(plan))
    return [
        f"DOES NOT FIT: {plan.cost} a core; the state is {plan.state_bytes / GIB:.2f}",
        "To try, in this order (--fit does):",
        *(f"  {fit.as_flags(changes)}" for changes in tried),
        "or fewer images a core: a larger slice, or --config.data.batch_size",
    ]


def _cost_lines(plan: Plan, cost: Cost) -> list[str]:
    facts = _costs(plan, cost)
    memory = plan.slice.chip.core.memory
    lines = [
        f"fits: {cost.memory / GIB:.2f} of {memory / GIB:.0f} GiB a core: arguments "
        f"{cost.argument_bytes / GIB:.2f}, temporaries {cost.temp_bytes / GIB:.2f}, "
        f"code {cost.code_bytes / GIB:.2f}",
        f"an image: {facts['multiply_adds_per_image'] / 1e9:.2f} G multiply-adds, "
        f"{facts['hbm_bytes_per_image'] / 1e6:.0f} MB to and from memory",
    ]
    for kind, (count, size) in cost.collectives.items():
        lines.append(f"{kind}: {count} a step, {size / 1e6:.1f} MB a core")
    least = ", ".join(
        f"{name} {1000 * seconds:.1f}"
        for name, seconds in cost.roofline._asdict().items()
    )
    lines.append(f"a step takes at least, in ms: {least}")
    if cost.compiler_seconds is not None:
        lines.append(
            f"and by the compiler's sum over instructions "
            f"{1000 * cost.compiler_seconds:.1f} ms"
        )
    lines.append(
        f"so at most {facts['images_per_second']:,.0f} images/s, bound by "
        f"{cost.roofline.bound}"
    )
    lines.append(_length(plan, facts))
    lines.append(f"compiled in {cost.compile_seconds:.0f} s")
    return lines


def _length(plan: Plan, facts: dict[str, Any]) -> str:
    if facts["days"] is None:
        return (
            f"how many images {plan.dataset} has is not known: give "
            "--config.total_steps for the length of the run"
        )
    paper = published.paper_core_days(plan.model, plan.dataset)
    beside = f" (the paper reports {paper:,g})" if paper else ""
    return (
        f"{plan.total_steps:,} steps: at least {facts['days']:.2f} days, "
        f"{facts['core_days']:,.0f} core-days{beside}"
    )
