# SPDX-License-Identifier: Apache-2.0
"""What the report must say of each case. From the arithmetic and from `first_bad.py`, not from what nanhunt says."""

from __future__ import annotations

from dataclasses import dataclass

LOSS = "<loss>"


@dataclass(frozen=True)
class Expected:
    """The headline of `case.py`; its twin `case.py --fixed` must be silent. None: no single one, or not promised."""

    name: str
    cls: str
    step: int
    op: str | None
    module: str | tuple[str, ...] | None  # of these, one
    phase: str | None
    status: str = "fault"
    severity: str = "fault"
    level: str = "live"  # the lowest that sees it
    other_classes: tuple[str, ...] = ()  # as right as `cls`
    options: tuple[str, ...] = ()  # of the script
    why: str = ""  # where the answer is not what one would guess

    @property
    def classes(self) -> tuple[str, ...]:
        return (self.cls, *self.other_classes)


# The ten known cases.
KNOWN = (
    Expected("t5_feed_forward", "overflow", 12, "aten::mm", "block.0.dense.wo", "forward"),
    Expected("masked_softmax", "invalid", 9, "aten::_softmax", "attention", "forward"),
    Expected(
        "no_valid_label",
        "divide_by_zero",
        11,
        "aten::nll_loss_forward",
        "token_loss.criterion",
        "forward",
        why="the loss is computed inside the model; its gradients are all zero, so that only the loss is bad",
    ),
    Expected("sqrt_backward", "divide_by_zero", 5, "aten::div", LOSS, "backward"),
    Expected("where_branch", "overflow", 8, "aten::exp", "features.act", "forward"),
    Expected("adam_eps", "eps_underflow", 0, "aten::addcdiv_", "fc1.weight", "optimizer"),
    Expected("vae_log_variance", "overflow", 10, "aten::exp", "sampler", "forward"),
    Expected("log_zero", "divide_by_zero", 14, "aten::log", LOSS, "loss"),
    Expected(
        "high_lr",
        "exploding",
        5,
        None,
        ("backbone", "regressor", "backbone.weight", "regressor.weight"),
        None,
        why="what overflows first is arbitrary; both layers grow alike",
    ),
    Expected(
        "scaler_calibration",
        "scaler_calibration",
        0,
        "aten::_to_copy",
        LOSS,
        "backward",
        status="calibrating",
        severity="info",
        why="the loss is computed in fp32: the first fp16 number of the backward is the gradient of the logits' cast",
    ),
)

# Others that the hooks must see.
OTHERS = (
    Expected("bad_batch", "bad_input", 7, "<batch>", None, "data"),
    Expected("bad_weights", "bad_state", 0, "<state>", "fc2.weight", "data"),
    Expected("swallowed_inf", "overflow", 6, "aten::mul", "norm", "forward", level="ops"),
    Expected(
        "grad_underflow", "underflow", 0, None, None, None, status="warning", severity="warning", level="ops"
    ),
    Expected("lost_updates", "update_loss", 0, "aten::addcdiv_", "fc1.weight", "optimizer", level="ops"),
    Expected("clip_before_unscale", "api_misuse", 0, "clip_grad_norm_", None, "clip"),
    Expected("scale_collapse", "scaler_collapse", 6, "aten::mm", "fc1", "forward"),
    Expected(
        "changed_outside",
        "corruption",
        5,
        None,
        "fc1.weight",
        None,
        other_classes=("bad_state",),
        why="the write is unseen; step 5 is the first to read it",
    ),
    Expected("poisoned_statistics", "overflow", 9, "aten::addmm", "fc1", "forward"),
)

ALL = KNOWN + OTHERS
