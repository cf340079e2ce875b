# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: of training runs, and the weights that they hold."""
