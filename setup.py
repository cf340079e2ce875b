# SPDX-License-Identifier: Apache-2.0
"""Package metadata and extras; every tool is set in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (ROOT / "vit_jax" / "__init__.py").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
README = ROOT / "README.md"

setup(
    name="vit_jax",
    version=VERSION[1],
    description="Vision Transformers in JAX: pretrain, fine-tune, evaluate and ship",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    packages=find_packages(include=["vit_jax", "vit_jax.*"]),
    package_data={
        "vit_jax.data": ["bundled/**/*"],
        "vit_jax.data.imagenet": ["*.gz", "LICENSE.*"],
    },
    # Lower bounds: the oldest release that the tests run on. Upper bounds: the next
    # release that may take an API away. requirements.lock has the exact versions.
    install_requires=[
        "absl-py>=2.1",
        'array-record>=0.8; platform_system=="Linux"',  # for ArrayRecord files
        "clu>=0.0.12,<0.1",
        "etils[epath]>=1.12",
        "flax>=0.12.8,<0.13",
        "google-crc32c>=1.5",
        "importlib_resources",  # tensorflow-datasets imports it, but does not bring it
        "jax>=0.10.2,<0.13",
        "jaxtyping>=0.3.11,<0.4",
        "matplotlib>=3.11,<4",
        "ml_collections>=1.1,<2",
        "numpy>=2.0,<3",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<0.13",
        "pillow>=12",
        "scipy>=1.14",
        "tensorboard>=2.20",  # clu.metric_writers imports it, clu does not bring it
        "tensorflow-cpu>=2.21,<2.22; "
        'platform_system=="Linux" and platform_machine=="x86_64"',
        "tensorflow>=2.21,<2.22; "
        'platform_system!="Linux" or platform_machine!="x86_64"',
        "tensorflow-datasets>=4.9.10,<5",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda12]"],
        "dev": [
            "basedpyright",
            "beartype>=0.22",
            "chex>=0.1.91",
            "import-linter>=2.5",
            "pytest>=9",
            "pytest-xdist>=3.8",
            "ruff",
            "scikit-image",
            "safetensors>=0.8",  # the tests read what we write with it
            "scikit-learn",
            "uv",
        ],
        # Raw archives to shards. Beam asks for older releases than the lock has, so it
        # goes into an environment of its own: make test-prepare does.
        "prepare": ["apache-beam==2.77.0", "imagehash==4.3.2"],
        # vit_jax.export to ONNX, beside jax2onnx; see vit_jax/export/onnx.py.
        "onnx": ["onnx==1.23.2", "onnx-ir==1.1.0", "onnxruntime==1.32.0"],
        # The independent implementations that our logits are compared with.
        "reference": ["torch==2.13.0", "timm==1.0.31", "transformers==5.24.0"],
    },
)
