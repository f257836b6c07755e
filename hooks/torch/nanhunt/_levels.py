# SPDX-License-Identifier: Apache-2.0
"""Which listeners make up a level."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanhunt._session import Session


def add_listeners(session: Session) -> None:
    from nanhunt._hooks.scaler import ScalerWatch
    from nanhunt._tap.marks import Marks
    from nanhunt._tap.ops import OpsLevel
    from nanhunt._tap.values import Values

    values = session.values = Values(session)
    session.listeners.append(ScalerWatch(session))
    if session.options.level == "ops":
        from nanhunt._hooks import hooks
        from nanhunt._tap import lasting

        # Marks come inside the mode: what is marked before an op has the identity that the op reads.
        lasts = lasting.LastingWatch(session, values)
        session.listeners += [OpsLevel(session, values), Marks(session, values), lasts]
        lasting.listen(hooks.patch)
    else:
        from nanhunt._sentinel.audit_watch import AuditWatch
        from nanhunt._sentinel.sentinel import Sentinel

        # The audit comes after the sentinel has read the gradients, and before the optimizer.
        session.listeners += [Sentinel(session, values), AuditWatch(session, values)]
