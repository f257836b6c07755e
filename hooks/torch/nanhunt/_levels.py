# SPDX-License-Identifier: Apache-2.0
"""Which listeners make up a level."""
from __future__ import annotations

from typing import TYPE_CHECKING

from nanhunt._hooks import hooks
from nanhunt._hooks.dynamo import hide_from_dynamo
from nanhunt._hooks.scaler import ScalerWatch
from nanhunt._setup import rank_place
from nanhunt._setup.model_setup import SetupWatch
from nanhunt._setup.rank_place import RankPlace
from nanhunt._step_mode import StepMode
from nanhunt._steps.live import Live
from nanhunt._steps.step_watch import StepWatch
from nanhunt._tap import lasting
from nanhunt._tap.ops import OpsLevel
from nanhunt._tap.values import Values

if TYPE_CHECKING:
    from nanhunt._session import Session


def add_listeners(session: Session) -> None:
    values = session.values = Values(session)
    session.at_open.append(values.prepare)
    scaler, setup = ScalerWatch(session), SetupWatch(session)
    ops = OpsLevel(session, values)
    steps = StepWatch(session, values)
    place = RankPlace(session, values)
    unheard = [scaler, place, steps, setup]
    if session.options.level == "ops":
        session.mode = StepMode.KEPT
        session.listen([scaler, *ops.listeners, place, setup])

        def without_a_tap() -> None:
            if values.tap is None:
                session.mode = StepMode.UNHEARD
                session.listen(unheard)
            else:
                values.tap.on()

        session.at_open.append(without_a_tap)
    elif session.options.level == "steps":
        session.listen(unheard)
    else:
        session.at_open.append(Live(session, values, unheard, ops, steps).begin)
    lasting.listen(hooks.patch)
    rank_place.listen(hooks.patch)
    hide_from_dynamo()
    session.at_open.append(hide_from_dynamo)  # what was imported for it
