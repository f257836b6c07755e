# SPDX-License-Identifier: Apache-2.0
"""Levels live and steps: what is read in a step, and what follows a bad one."""
