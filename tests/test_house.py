# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that no other tool checks."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("vit_jax", "configs", "launch", "benchmarks", "tests")
SOURCES = sorted([path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", read("Makefile"), re.MULTILINE))


def code_of(name: str) -> str:
    """Returns what a Markdown file shows as code: fenced blocks and inline."""
    text = read(name)
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join(blocks + re.findall(r"`[^`\n]+`", text))


def test_sources_are_found():
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_starts_with_its_licence(path):
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    assert first == "# SPDX-License-Identifier: Apache-2.0"


def test_no_file_is_named_after_nothing():
    banned = re.compile(r"(^|_)(utils?|common|helpers?|misc|lib)$")
    named = [
        p for p in SOURCES if banned.search(p.stem) or banned.search(p.parent.name)
    ]
    assert named == []


def test_changelog_has_its_headings():
    unreleased = read("CHANGELOG.md").split("\n## ")[1]
    assert unreleased.startswith("Unreleased")
    headings = re.findall(r"^### (.+)$", unreleased, re.MULTILINE)
    assert headings == ["Added", "Changed", "Fixed", "Breaking"]


DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "configs/README.md",
    "launch/README.md",
    "benchmarks/README.md",
    "vit_jax/data/README.md",
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_of_the_documents_exists(document):
    if not (ROOT / document).exists():
        pytest.skip(f"there is no {document}")
    code = code_of(document)
    modules = set(re.findall(r"python3? -m (vit_jax[\w.]*)", code))
    missing = [m for m in sorted(modules) if importlib.util.find_spec(m) is None]
    assert missing == []
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", code))
    assert targets - makefile_targets() == set()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_file_that_the_documents_name_exists(document):
    if not (ROOT / document).exists():
        pytest.skip(f"there is no {document}")
    names = re.findall(r"--config=(configs/\w+\.py)", read(document))
    names += re.findall(r"\]\((?!\w+:)([^)#]+)\)", read(document))
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_marker_is_selected_by_a_command():
    settings = tomllib.loads(read("pyproject.toml"))["tool"]["pytest"]["ini_options"]
    markers = {line.split(":")[0] for line in settings["markers"]}
    assert markers == set(re.findall(r"not (\w+)", settings["addopts"]))
    selections = re.findall(r'-m "([\w ]+)"', read("Makefile"))
    for marker in markers:
        names = {other: other == marker for other in markers}
        assert any(eval(selection, {}, names) for selection in selections), marker


def test_integration_runs_commands_of_the_makefile():
    commands = re.findall(r"^make ([\w-]+)$", read(".ci/run"), re.MULTILINE)
    assert commands == ["test", "test-slow", "test-reference"]
    assert set(commands) <= makefile_targets()


def test_nothing_names_an_index_of_packages():
    names = ["setup.py", "pyproject.toml", "requirements.lock", "Makefile", ".ci/run"]
    for name in names:
        assert "index-url" not in read(name), name
        assert "://" not in read(name), name


def test_the_lock_has_versions_for_each_python():
    lock = read("requirements.lock")
    jax_lines = re.findall(r"^jax==.*$", lock, re.MULTILINE)
    assert len(jax_lines) == 2
    assert all("python_full_version" in line for line in jax_lines)
    pins = [line for line in lock.splitlines() if not line.startswith("#")]
    assert all(re.match(r"[\w.-]+==[\w.]+( ; .+)?$", line) for line in pins)
