# SPDX-License-Identifier: Apache-2.0
"""Pictures of what a model has learned, and of how runs went.

- `attention.py`, `embeddings.py`, `series.py`: the numbers, NumPy alone.
- `opened.py`: a checkpoint, and what it says about pictures; `windows.py`: where the
  tokens of Swin's windows lie; `pixels.py`: inputs of a model made visible again.
- `figures.py`, `line_figures.py`: the drawing, with `style.py`; the only modules of the
  package that import matplotlib.
- `__main__.py`: the command.
"""
