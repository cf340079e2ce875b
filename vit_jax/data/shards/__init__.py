# SPDX-License-Identifier: Apache-2.0
"""Tar and TFRecord shards: their files, their records, the index of both."""
