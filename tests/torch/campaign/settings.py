# SPDX-License-Identifier: Apache-2.0
"""What a run trains with, drawn from the seed."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field

MODELS = ("mlp", "convolution", "transformer", "recurrent", "embedding")
PRECISIONS = ("fp32", "bf16", "fp16")  # of autocast; fp16 with a scaler
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


@dataclass
class Settings:
    seed: int
    model: str
    precision: str
    optimizer: str
    at: int  # the step of the fault
    steps: int
    site: int  # which of the two places in the model
    rng: random.Random = field(repr=False)  # further draws of the kind, the same for the fault and its twin

    @property
    def text(self) -> str:
        place = f"at {self.at} of {self.steps} site {self.site}"
        return f"{self.model} {self.precision} {self.optimizer} {place} seed {self.seed}"

    def word(self) -> str:
        return "".join(self.rng.choices(string.ascii_lowercase, k=6))


def draw(key: str) -> Settings:
    rng = random.Random(key)
    at = rng.choice((1, 2, 3, 5, 8, 11, 14))
    return Settings(
        seed=rng.randrange(2**31),
        model=rng.choice(MODELS),
        precision=rng.choice(PRECISIONS),
        optimizer=rng.choice(OPTIMIZERS),
        at=at,
        steps=at + rng.randint(2, 5),
        site=rng.randrange(2),
        rng=rng,
    )
