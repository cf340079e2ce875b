# SPDX-License-Identifier: Apache-2.0
"""The training state, the step and the loop."""
