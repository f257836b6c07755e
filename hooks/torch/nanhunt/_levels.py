# SPDX-License-Identifier: Apache-2.0
"""Which listeners make up a level."""
from __future__ import annotations

from typing import TYPE_CHECKING

from nanhunt._hooks import hooks
from nanhunt._hooks.scaler import ScalerWatch
from nanhunt._sentinel.audit_watch import AuditWatch
from nanhunt._sentinel.live import Live
from nanhunt._sentinel.sentinel import Sentinel
from nanhunt._setup import SetupWatch
from nanhunt._tap import lasting
from nanhunt._tap.marks import Marks
from nanhunt._tap.ops import OpsLevel
from nanhunt._tap.values import Values

if TYPE_CHECKING:
    from nanhunt._session import Session


def add_listeners(session: Session) -> None:
    values = session.values = Values(session)
    session.at_open.append(values.prepare)
    scaler, lasts = ScalerWatch(session), lasting.LastingWatch(session, values)
    setup = SetupWatch(session)
    # Marks come after the tap is on: what is marked before an op has the identity that the op reads.
    ops = [OpsLevel(session, values), Marks(session, values), lasts]
    # The audit comes after the sentinel has read the gradients, and before the optimizer.
    sentinel = Sentinel(session, values)
    outside = [scaler, sentinel, AuditWatch(session, values), setup]
    if session.options.level == "ops":
        session.listeners = [scaler, *ops, setup]

        def without_a_tap() -> None:
            if values.tap is None:
                session.listeners = outside

        session.at_open.append(without_a_tap)
    else:
        session.at_open.append(Live(session, values, outside, ops, sentinel).begin)
    lasting.listen(hooks.patch)
