# SPDX-License-Identifier: Apache-2.0
"""What a watch is asked for: arguments of `nanhunt.watch`, or the environment that `nanhunt run` makes."""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanhunt.store.background import BackgroundUpload

LEVELS = ("live", "ops", "steps")


@dataclass
class Options:
    out: str = "nanhunt-run"
    url: str = ""               # to which `out` is copied while it grows
    level: str = "live"
    budget: float | None = None  # live: percent of the time that hearing operations may take; None: all are heard
    keep: int = 16              # steps whose norms are kept, and written when one is bad
    max_trace_mb: int = 1024
    max_triggers: int = 10       # bad steps whose operations are kept
    distance: int = 100         # steps between two of one streak
    captures: bool = True
    kernels: bool = False       # names of those that a GPU ran, by CUPTI
    config: str | None = None   # configuration file; None: nanhunt.toml beside the program, if it is there
    quiet: bool = False         # no line while the run goes on
    stop_on_fault: bool = False  # the process ends after the first step with a fault
    log_to: Any = "auto"        # experiment trackers: found by themselves, none ("off"), or those that are given
    guard_checkpoints: bool = False  # each that is saved is judged, and the newest good one kept
    on_fault: str | None = None  # a webhook or a command that is handed each fault
    command: list[str] = field(default_factory=list)
    run: str = ""               # the same for all processes of one run
    upload: BackgroundUpload | None = None  # of this process, or of the one that it was forked from

    def begin_upload(self) -> None:
        """Records into a folder that a process of its own copies to `url`."""
        from nanhunt.store.background import BackgroundUpload

        self.upload = BackgroundUpload(self.url, self.quiet)
        self.out = self.upload.folder

    def folder(self) -> str:
        """Where this process records: a forked child that outlives its parent needs a copying process of its own."""
        if self.upload is not None and self.upload.pid != os.getpid():
            self.begin_upload()
        return self.out

    def end_upload(self) -> None:
        if self.upload is not None:
            self.upload.end()

    @property
    def place(self) -> str:
        """Where the run is read once it is there: what people are told."""
        return self.url or self.out

    @staticmethod
    def from_environment() -> Options:
        get = os.environ.get
        options = Options(out=get("NANHUNT_RUN_DIR", "nanhunt-run"), run=get("NANHUNT_RUN_ID", ""),
                          level=get("NANHUNT_LEVEL", "live"),
                          captures=get("NANHUNT_CAPTURES", "1") != "0",
                          kernels=get("NANHUNT_KERNELS", "0") == "1", quiet=get("NANHUNT_QUIET", "0") == "1",
                          config=get("NANHUNT_CONFIG") or None,
                          url=get("NANHUNT_RUN_URL", ""),
                          stop_on_fault=get("NANHUNT_STOP_ON_FAULT", "0") == "1",
                          log_to="off" if get("NANHUNT_LOG_TO") == "off" else "auto",
                          guard_checkpoints=get("NANHUNT_GUARD_CHECKPOINTS", "0") == "1",
                          on_fault=get("NANHUNT_ON_FAULT") or None)
        budget = get("NANHUNT_BUDGET", "").removesuffix("%")
        if budget.replace(".", "", 1).isdigit():
            options.budget = min(float(budget), 100.0)
        for name in ("keep", "max_trace_mb"):
            key = f"NANHUNT_{name.upper()}"
            if get(key, "").isdigit():
                setattr(options, name, int(get(key, "")))
        options.command = [sys.executable, *sys.orig_argv[1:]] if hasattr(sys, "orig_argv") else list(sys.argv)
        return options
