# SPDX-License-Identifier: Apache-2.0
"""Reads the text of a compiled program: loops, bytes, collectives.

The compiler's own sums count the body of a loop once. Here each instruction counts as
often as it runs: the turns of a loop are written beside it.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

_SIZES = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16}  # bits, where the name has others
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)="
    r"%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TURNS = re.compile(r'"?known_trip_count"?:?\s*\{"n":"?(\d+)"?\}')

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)

# These move nothing, or what they move is counted where it starts or arrives.
_FREE = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while"),
    *("conditional", "call", "copy-start", "copy-done", "slice-start", "slice-done"),
    *("async-start", "async-update", "async-done", "after-all", "partition-id"),
}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
      name: Its name.
      shape: Text of the type of its result.
      op: Such as "fusion".
      rest: What follows the opening bracket of its operands.
    """

    name: str
    shape: str
    op: str
    rest: str

    @property
    def called(self) -> list[str]:
        """The computations that it runs."""
        branches = _BRANCHES.search(self.rest)
        names = branches[1].replace("%", "").split(", ") if branches else []
        return _CALLED.findall(self.rest) + names

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])

    @property
    def cycles(self) -> int:
        """The compiler's estimate of its cycles, 0 where there is none."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(match[1]) if match else 0


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      computations: The instructions of each computation, by name.
      entry: Name of the computation that runs first.
    """

    computations: Mapping[str, list[Instruction]]
    entry: str

    def hbm_bytes(self, loops: bool = True) -> int:
        """Returns the bytes that the instructions read from and write to HBM.

        Args:
          loops: Whether a body counts as often as it runs, or once, as in the
            compiler's own sum.
        """
        return sum(
            times * _traffic(self.computations[name], self.computations)
            for name, times in self._runs(loops=loops, fused=False).items()
        )

    def cycles(self, loops: bool = True) -> int:
        """Returns the sum of the compiler's estimates of cycles."""
        return sum(
            times * sum(i.cycles for i in self.computations[name])
            for name, times in self._runs(loops=loops, fused=False).items()
        )

    def collectives(self) -> dict[str, tuple[int, int]]:
        """Returns how often each kind of collective runs, and its bytes on a device.

        The bytes are those of the results, of a reduce-scatter those of the operands:
        what a ring of many devices passes on, up to the factor of `chips.roofline`.
        """
        found: dict[str, tuple[int, int]] = {}
        for name, times in self._runs(loops=True, fused=True).items():
            shapes = {i.name: i.shape for i in self.computations[name]}
            for instruction in self.computations[name]:
                kind = instruction.op.removesuffix("-start")
                if kind in COLLECTIVES:
                    size = _collective_bytes(instruction, kind, shapes)
                    count, total = found.get(kind, (0, 0))
                    found[kind] = count + times, total + times * size
        return dict(sorted(found.items()))

    def _runs(self, *, loops: bool, fused: bool) -> dict[str, int]:
        """Returns how often each computation runs, those of fusions too if asked."""
        runs: collections.Counter[str] = collections.Counter()

        def visit(name: str, times: int) -> None:
            runs[name] += times
            for instruction in self.computations[name]:
                if fused or instruction.op in ("while", "conditional", "call"):
                    turns = self._turns(instruction) if loops else 1
                    for called in instruction.called:
                        if called in self.computations:
                            visit(called, times * turns)

        visit(self.entry, 1)
        return dict(runs)

    def _turns(self, instruction: Instruction) -> int:
        """Returns how often a loop runs its body; 1 where that is not known.

        Loops of `lax.scan` count from 0 to below a constant.
        """
        if instruction.op != "while":
            return 1
        written = _TURNS.search(instruction.rest)
        if written:
            return int(written[1])
        condition = re.search(r"\bcondition=%?([\w.\-]+)", instruction.rest)
        lines = self.computations.get(condition[1], []) if condition else []
        constants = {
            i.name: int(i.rest.partition(")")[0])
            for i in lines
            if i.op == "constant" and re.match(r"-?\d+\)", i.rest)
        }
        for line in lines:
            if line.op == "compare" and "direction=LT" in line.rest:
                for operand in line.operands:
                    if operand in constants:
                        return max(constants[operand], 1)
        return 1


def parse(text: str) -> Program:
    """Reads `compiled.as_text()`.

    Raises:
      ValueError: A text that is no program.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("}") and not line.startswith("}}"):
            # Two brackets end what a kernel's author wrote, in lines of its own.
            current = None
        elif current is not None:
            match = _INSTRUCTION.match(line.strip())
            if match:
                current.append(Instruction(*match.groups()))
    if entry is None:
        raise ValueError("the text holds no program: there is no ENTRY in it")
    return Program(computations, entry)


def array_bytes(shape: str, *, padded: bool = False) -> int:
    """Returns the bytes of all arrays in the text of a type.

    Args:
      shape: Such as "(f32[8,197]{1,0:T(8,128)}, bf16[4])".
      padded: Count what lies in HBM: whole tiles, and nothing for arrays in the fast
        memory of the core, which the compiler marks S(1) and above.
    """
    return sum(
        0
        if padded and re.search(r"S\([1-9]", layout)
        else _elements(dims, layout if padded else "") * bits // 8
        for bits, dims, layout in _arrays(shape)
    )


def _arrays(shape: str) -> Iterator[tuple[int, list[int], str]]:
    for dtype, dims, layout in _ARRAY.findall(shape):
        bits = _SIZES.get(dtype) or re.search(r"\d+", dtype)
        if bits is None:
            continue  # tokens
        bits = bits if isinstance(bits, int) else int(bits[0])
        yield bits, [int(d) for d in dims.split(",") if d], layout


def _elements(dims: list[int], layout: str) -> int:
    tile = re.search(r"T\((\d+),(\d+)\)", layout)
    if tile is None or len(dims) < 2:
        return math.prod(dims)
    order = [int(i) for i in layout[1:].partition(":")[0].split(",")]
    sizes = [dims[i] for i in order]  # the fastest first
    for i, side in enumerate((int(tile[2]), int(tile[1]))):
        sizes[i] = math.ceil(sizes[i] / side) * side
    return math.prod(sizes)


def _traffic(
    instructions: list[Instruction], computations: Mapping[str, list[Instruction]]
) -> int:
    shapes = {i.name: i.shape for i in instructions}
    total = 0
    for instruction in instructions:
        if instruction.op in _FREE or instruction.op.endswith("-done"):
            continue
        if "AllocateBuffer" in instruction.rest:
            continue
        inside = computations.get(next(iter(instruction.called), ""), [])
        inside = inside if instruction.op == "fusion" else [instruction]
        sliced, updated = _slices(inside, shapes, computations)
        total += array_bytes(instruction.shape, padded=True)
        for number, operand in enumerate(instruction.operands):
            key = number if instruction.op == "fusion" else operand
            size = array_bytes(shapes.get(operand, ""), padded=True)
            if key in updated:
                # Updated in place: neither it nor the same array in the result.
                total += updated[key] - size
            else:
                total += min(sliced.get(key, size), size)
    return total


def _slices(
    instructions: list[Instruction],
    outside: Mapping[str, str],
    computations: Mapping[str, list[Instruction]],
) -> tuple[dict[int | str, int], dict[int | str, int]]:
    """Returns which operands are only sliced, or updated, and how many bytes of them.

    Loops slice what lies stacked, a layer a turn, and write results into such stacks.
    Operands of a fusion are told by number, those of a single instruction by name.
    """
    shapes = {**outside, **{i.name: i.shape for i in instructions}}
    source: dict[str, int | str] = {}
    for i in instructions:
        if i.op == "parameter":
            source[i.name] = int(i.rest.partition(")")[0])
        elif i.op == "bitcast" and i.operands and i.operands[0] in source:
            source[i.name] = source[i.operands[0]]
    sliced: dict[int | str, int] = collections.defaultdict(int)
    updated: dict[int | str, int] = collections.defaultdict(int)
    whole: set[int | str] = set()
    for i in instructions:
        parts = _sliced_operands(i, shapes, computations)
        for position, operand in enumerate(i.operands):
            key = source.get(operand, operand)
            if position in parts:
                sliced[key] += parts[position]
            elif i.op == "dynamic-update-slice" and position == 0:
                updated[key] += array_bytes(shapes.get(i.operands[1], ""), padded=True)
            elif i.op not in ("bitcast", "parameter"):
                whole.add(key)
    return (
        {k: v for k, v in sliced.items() if k not in whole and k not in updated},
        {k: v for k, v in updated.items() if k not in whole and k not in sliced},
    )


def _sliced_operands(
    instruction: Instruction,
    shapes: Mapping[str, str],
    computations: Mapping[str, list[Instruction]],
) -> dict[int | str, int]:
    """Returns the operands, by number, that one instruction only slices."""
    if instruction.op == "dynamic-slice":
        return {0: array_bytes(instruction.shape, padded=True)}
    if instruction.op == "fusion":  # a fusion within a fusion
        inside = computations.get(next(iter(instruction.called), ""), [])
        return _slices(inside, shapes, computations)[0]
    return {}


def _collective_bytes(
    instruction: Instruction, kind: str, shapes: Mapping[str, str]
) -> int:
    operands = sum(array_bytes(shapes.get(o, "")) for o in instruction.operands)
    if kind == "reduce-scatter":
        return operands
    size = array_bytes(instruction.shape)
    # The start of a gather holds its operands beside its results.
    started = instruction.op.endswith("-start") and kind != "all-reduce"
    return size - operands if started else size
