# SPDX-License-Identifier: Apache-2.0
"""Levels sentinel and sampled: what is read in a step, and what follows a bad one."""
