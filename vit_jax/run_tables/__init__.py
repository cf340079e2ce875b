# SPDX-License-Identifier: Apache-2.0
"""Runs as lines of a table, beside the numbers of papers that they stand for.

`collect` joins seeds into lines (`lines.py`), which are compared with the tables of
`published_results` and with the ablations of `ablations.py`, and shown by `text.py`.
"""

from vit_jax.run_tables.lines import Result, collect
from vit_jax.run_tables.text import comparisons, not_run, to_json, to_text

__all__ = ["Result", "collect", "comparisons", "not_run", "to_json", "to_text"]
