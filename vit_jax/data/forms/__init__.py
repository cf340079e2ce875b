# SPDX-License-Identifier: Apache-2.0
"""The forms of data set that `sources.open_source` knows, a module each."""
