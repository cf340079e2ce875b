# SPDX-License-Identifier: Apache-2.0
"""One HTML page about a run, which needs no network and no other file.

- `facts.py`: what the files of a run tell.
- `looking.py`: its data opened again: predictions, hardest pictures, training pictures.
- `drawings.py`: its figures, from `vit_jax.plots`.
- `paper.py`: settings of Table 3 of the ViT paper, to stand beside the run's.
- `sections.py`, `page.py`: the parts of the page, and its frame.
"""
