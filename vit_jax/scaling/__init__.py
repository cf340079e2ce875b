# SPDX-License-Identifier: Apache-2.0
"""The scaling study: models x data x seeds, what they cost and what they reach.

`grid.py` is the section `study` of a config and the cells that it stands for,
`costs.py` what a cell costs before it runs, `results.py` what its directory says
afterwards, `tables.py` and `figures.py` both for people.
"""
