# SPDX-License-Identifier: Apache-2.0
"""A logger as Lightning has them: what has `log_metrics(metrics, step)`. Where a tracker that is known lies behind it,
that one is written to, in the rows and files that the program has."""
from __future__ import annotations

from typing import Any

from nanhunt.trackers import tensorboard_writer, wandb_run


class Logger:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._logger.log_metrics(numbers, step)

    def alert(self, headline: str, text: str, step: int) -> None:
        """Of numbers alone there is none; MLflow's logger has a client, which takes a tag."""
        client: Any = getattr(self._logger, "experiment", None)
        run_id = getattr(self._logger, "run_id", None)
        if isinstance(run_id, str) and type(client).__module__.startswith("mlflow."):
            client.set_tag(run_id, "nanhunt.fault", f"step {step}: {text}"[:5000])


def take(given: Any) -> Logger | wandb_run.WandbRun | tensorboard_writer.TensorboardWriter | None:
    if not callable(getattr(given, "log_metrics", None)):
        return None
    behind = getattr(given, "experiment", None)
    return wandb_run.take(behind) or tensorboard_writer.take(behind) or Logger(given)
