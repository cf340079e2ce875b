# SPDX-License-Identifier: Apache-2.0
"""The ops of preprocessing: on tensors, and their NumPy reference."""
