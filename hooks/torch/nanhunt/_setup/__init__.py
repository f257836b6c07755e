# SPDX-License-Identifier: Apache-2.0
"""How the program has set up its training: its models, and where this rank stands among the others."""
