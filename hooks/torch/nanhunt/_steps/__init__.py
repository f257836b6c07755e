# SPDX-License-Identifier: Apache-2.0
"""Level sentinel: what is read in a step, and what follows a bad one."""
