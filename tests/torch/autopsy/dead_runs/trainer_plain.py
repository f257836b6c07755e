# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer without its filter: NaN is logged as it is."""

from hf import run

run(filtered=False)
