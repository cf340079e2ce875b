# SPDX-License-Identifier: Apache-2.0
"""What this machine does in a second, and what a TPU would: `__main__.py` tells how.

`step.py`, `inputs.py`, `checkpoint.py`, `startup.py` and `compiled.py` measure one
thing each and return what a JSON line says; `suite.py` runs them all, one after the
other, and `machine.py` says in words on what.
"""
