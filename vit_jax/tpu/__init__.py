# SPDX-License-Identifier: Apache-2.0
"""What a program costs on TPUs, found by their compiler on a machine without any.

`compiler.py` compiles for a slice that exists as a description only, `program.py` reads
the text of what came out, `operations.py` counts the products that went in, `chips.py`
knows what chips can do, and `cost.py` puts these together.
"""
