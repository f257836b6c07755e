# SPDX-License-Identifier: Apache-2.0
"""What is patched and hooked of torch, and where a run ends."""
