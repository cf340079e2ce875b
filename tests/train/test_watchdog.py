# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess
import sys
import time

import pytest

from vit_jax import distributed
from vit_jax.errors import UserError
from vit_jax.train.watchdog import Watchdog, check_seconds

ROOT = pathlib.Path(__file__).parents[2]
HANGS = """
import time
from vit_jax.train.watchdog import Watchdog

def wait_for_a_peer():
    time.sleep(60)

with Watchdog(0.2) as watchdog:
    watchdog.alive()
    wait_for_a_peer()
"""


def test_one_process_is_watched_if_the_config_says_so():
    assert check_seconds(None) is None
    assert check_seconds(0) is None
    assert check_seconds(30) == 30.0


@pytest.mark.parametrize("given", [-1, "long", True])
def test_other_values_are_refused(given: object):
    with pytest.raises(UserError, match=r"config.watchdog_seconds=.*0 for no watchdog"):
        check_seconds(given)


def test_a_process_that_hangs_shows_where_and_leaves():
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 70
    assert "no step or evaluation has ended for 0.2 s" in done.stderr
    assert "in wait_for_a_peer" in done.stderr


def test_who_is_alive_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    ended: list[str] = []
    monkeypatch.setattr(distributed, "end_all", lambda status, why: ended.append(why))
    with Watchdog(1.0) as watchdog:
        for _ in range(15):
            time.sleep(0.1)
            watchdog.alive()
    with Watchdog(None):
        pass
    assert ended == []
