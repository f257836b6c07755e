# SPDX-License-Identifier: Apache-2.0
"""Runs a training script that says nothing of devices on one: `on_device.py DEVICE SCRIPT ARGUMENT ...`.

What the script makes is made there, from that device's random numbers.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

device, script = sys.argv[1], sys.argv[2]
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(script).parent))
if device != "cpu":
    torch.set_default_device(device)
runpy.run_path(script, run_name="__main__")
