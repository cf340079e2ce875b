# SPDX-License-Identifier: Apache-2.0
"""Pictures of what a model has learned, and of how runs went.

- `attention.py`, `embeddings.py`, `series.py`: the numbers, NumPy alone.
- `opened.py`, `layers.py`, `windows.py`: a checkpoint, and where its tokens lie;
  `first_layer.py`: its positions and filters; `pixels.py`: inputs made visible again.
- `figures.py`, `line_figures.py`: the drawing, with `style.py`; the only modules of the
  package that import matplotlib.
- `__main__.py`: the command.
"""
