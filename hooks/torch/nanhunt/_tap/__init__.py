# SPDX-License-Identifier: Apache-2.0
"""Level ops: the tap of one session, and what Python says to it."""
