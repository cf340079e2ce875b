# SPDX-License-Identifier: Apache-2.0
"""Turning raw archives into shards, and finding near-duplicates in them."""
