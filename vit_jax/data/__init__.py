# SPDX-License-Identifier: Apache-2.0
"""Data: sources of examples, their order, preprocessing and batches.

Importing this package does not import TensorFlow; the settings that TensorFlow reads
when it is first imported are made here.
"""

import os

# Level 2 keeps warnings about the machine's instruction set off the terminal.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# So does this with a line about oneDNN, which serves no op on images.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# Batches are too large for malloc to keep, and fresh pages for each cost up to a
# quarter of the time that a picture takes. This allocator holds on to them.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
# TensorFlow's client for buckets would fetch a block of 64 MB for each small read.
os.environ.setdefault("GCS_READ_CACHE_DISABLED", "1")


def hide_accelerators() -> None:
    """Keeps TensorFlow off the GPUs and TPUs, which belong to JAX.

    Call it before anything else of TensorFlow runs: TensorFlow otherwise reserves the
    memory of every GPU that it sees.
    """
    import tensorflow as tf

    for kind in ("GPU", "TPU"):
        tf.config.set_visible_devices([], kind)
