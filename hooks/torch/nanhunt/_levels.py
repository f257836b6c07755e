# SPDX-License-Identifier: Apache-2.0
"""Which listeners make up a level."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanhunt._session import Session


def add_listeners(session: Session) -> None:
    from nanhunt._marks import Marks
    from nanhunt._ops import OpsLevel
    from nanhunt._scaler import ScalerWatch
    from nanhunt._values import Values

    values = session.values = Values(session)
    session.listeners.append(ScalerWatch(session))
    if session.options.level == "ops":
        from nanhunt import _lasting, _taps

        # Marks come inside the mode: what is marked before an op has the identity that the op reads.
        lasting = _lasting.LastingWatch(session, values)
        session.listeners += [OpsLevel(session, values), Marks(session, values), lasting]
        _lasting.listen(_taps.patch)
    else:
        from nanhunt._audit_watch import AuditWatch
        from nanhunt._sentinel import Sentinel

        # The audit comes after the sentinel has read the gradients, and before the optimizer.
        session.listeners += [Sentinel(session, values), AuditWatch(session, values)]
