# SPDX-License-Identifier: Apache-2.0
"""Mistakes of nanhunt's own, planted into a watch that is on; and what a process that goes on must forget."""
from __future__ import annotations

MOST = 100  # mistakes: past this a watch is off for good


class Fails:
    """A part that raises at every call."""

    leaves_out = frozenset()

    def __getattr__(self, name):
        def fail(*_):
            raise RuntimeError("a mistake of ours")

        return fail


def plant_failing_part(watch, left=MOST):
    """`left`: so many mistakes end the watch."""
    session = watch._session
    session.listen([Fails(), *session.listeners])
    session.errors = MOST - left


def plant_failing_flush(watch):
    watch._session.write_notes = lambda *_: 1 / 0


def repair_flush(watch):
    del watch._session.write_notes


def forget_ignored():
    """What nanhunt.ignore was given is the process's."""
    from nanhunt import _ignored

    _ignored._paths.clear()
    _ignored._tensors.clear()
