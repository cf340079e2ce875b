# SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest
from ml_collections import ConfigDict

from vit_jax import config as c
from vit_jax.errors import UserError
from vit_jax.registry import parse_pipeline


def write(path: pathlib.Path, body: str) -> str:
    path.write_text("from ml_collections import ConfigDict\n" + body)
    return str(path)


def test_parse_arg_gives_types_of_the_defaults():
    arg = c.parse_arg(
        "dataset=jft,smoke,lr=1", dataset=("i21k", "jft"), smoke=False, lr=0.5
    )
    assert arg.to_dict() == {"dataset": "jft", "smoke": True, "lr": 1.0}


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("smok", "unknown config argument 'smok'; did you mean 'smoke'"),
        ("dataset=i22k", "did you mean 'i21k'"),
        ("smoke=3", "must be of type bool"),
    ],
)
def test_parse_arg_names_what_is_allowed(arg: str, message: str):
    with pytest.raises(UserError, match=message):
        c.parse_arg(arg, dataset=("i21k", "jft"), smoke=False)


def test_load_passes_the_argument_and_keeps_colons_in_it(tmp_path: pathlib.Path):
    file = write(
        tmp_path / "x.py", "def get_config(arg=''): return ConfigDict({'seed': arg})"
    )
    assert c.load(f"{file}:data=csv:a.csv").seed == "data=csv:a.csv"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def get_config(arg=''): return 3", "returned int; it must return"),
        ("def get_config(arg=''):\n  return undefined", "line 3: NameError: name 'und"),
        ("def get_config(arg='')", "SyntaxError"),
        ("x = 1", "has no attribute 'get_config'"),
        (
            "def get_config(arg=''): return ConfigDict({'optimiser': 1})",
            "'optimiser'; did you mean 'optimizer'",
        ),
    ],
)
def test_load_says_what_is_wrong_with_a_file(
    tmp_path: pathlib.Path, body: str, message: str
):
    with pytest.raises(UserError, match=message):
        c.load(write(tmp_path / "x.py", body))


def test_load_of_a_missing_file_names_the_nearest(tmp_path: pathlib.Path):
    write(tmp_path / "vit_l16.py", "")
    with pytest.raises(UserError, match=r"vit_l61.py'; did you mean '.*vit_l16.py'"):
        c.load(str(tmp_path / "vit_l61.py"))


def config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "total_epochs": 90,
            "log_steps": None,
            "optimizer": {"lr": 0.1, "name": "sgd", "rules": ((".*", 1),)},
            "evaluators": {"val": {"every_steps": 5}},
            "mesh": {"fsdp": 1},
        }
    )


def test_override_takes_the_type_of_the_old_value():
    cfg = config()
    c.override(
        cfg,
        [
            ("optimizer.lr", "1"),
            ("optimizer.name", "1"),
            ("seed", "1e3"),
            ("log_steps", "7"),
            ("mesh", "{'fsdp': 4}"),
            ("optimizer.rules", "[('a', 0)]"),
            ("optimizer.momentum", "0.9"),
        ],
    )
    assert cfg.optimizer.lr == 1.0
    assert isinstance(cfg.optimizer.lr, float)
    assert cfg.optimizer.name == "1"
    assert cfg.seed == 1000
    assert cfg.log_steps == 7
    assert cfg.mesh.fsdp == 4
    assert cfg.optimizer.rules == (("a", 0),)
    assert cfg.optimizer.momentum == 0.9


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("optmizer.lr", "1", "config has no 'optmizer'; did you mean 'optimizer'"),
        ("optimizer.lr", "fast", "config.optimizer.lr='fast' is of type str"),
        ("seed", "0.5", "must be of type int"),
        ("sed", "1", "unknown config field 'sed'; did you mean 'seed'"),
        ("seed.x", "1", "config.seed is a value, not a section"),
        ("evaluators.vl.every_steps", "1", "did you mean 'val'"),
    ],
)
def test_override_refuses_by_name(path: str, text: str, message: str):
    cfg = config()
    with pytest.raises(UserError, match=message):
        c.override(cfg, [(path, text)])
    assert cfg.to_json() == config().to_json()


def test_an_overridden_duration_replaces_the_unit_of_the_file():
    cfg = config()
    c.override(cfg, [("total_steps", "40"), ("evaluators.val.every_percent", "10")])
    assert (cfg.total_epochs, cfg.total_steps) == (None, 40)
    val = cfg.evaluators.val.to_dict()
    assert c.steps(
        "every", val, batch_size=1, num_examples=1, total_steps=40
    ) == pytest.approx(4)


def test_two_overrides_of_one_duration_are_an_error():
    with pytest.raises(UserError, match="set the same duration; give one"):
        c.override(config(), [("total_steps", "40"), ("total_epochs", "1")])


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("total_steps", 7, 7),
        ("total_epochs", 90, 90 * 1000 / 50),  # 1000 examples in batches of 50
        ("total_examples", 5000, 100),
        ("total_percent", 10, 20),  # of 200 steps
        ("total_epochs", 0.0001, 1),  # above zero is at least one step
        ("total_steps", 0, 0),
        ("total_steps", None, None),
    ],
)
def test_steps_converts_every_unit(field: str, value: float, expected: float):
    found = c.steps(
        "total", {field: value}, batch_size=50, num_examples=1000, total_steps=200
    )
    assert found == expected


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"total_steps": 1, "total_epochs": 2}, "set the same duration"),
        ({"total_steps": -1}, "must be a number that is not negative"),
        ({"total_steps": "many"}, "must be a number"),
        ({"total_percent": 5}, "share of the whole run"),
    ],
)
def test_steps_refuses_what_is_no_duration(section: dict, message: str):
    with pytest.raises(UserError, match=message):
        c.steps("total", section, batch_size=1, num_examples=1)


def test_the_levels_of_augreg_are_those_of_big_vision():
    mixup = {name: p or 0 for name, (p, _) in c.AUGREG.items()}
    assert mixup == {
        "none": 0,
        "light1": 0,
        "light2": 0.2,
        "medium1": 0.2,
        "medium2": 0.5,
        "strong1": 0.5,
        "strong2": 0.8,
    }
    magnitudes = {
        name: [(call.name, *call.args) for call in parse_pipeline(f"flip_lr{ops}")[1:]]
        for name, (_, ops) in c.AUGREG.items()
    }
    assert magnitudes == {
        "none": [],
        "light1": [("randaug", 2, 0)],
        "light2": [("randaug", 2, 10)],
        "medium1": [("randaug", 2, 15)],
        "medium2": [("randaug", 2, 15)],
        "strong1": [("randaug", 2, 20)],
        "strong2": [("randaug", 2, 20)],
    }
