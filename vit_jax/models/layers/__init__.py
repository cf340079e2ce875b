# SPDX-License-Identifier: Apache-2.0
"""The boxes that model families are drawn with; families share these and no more."""
