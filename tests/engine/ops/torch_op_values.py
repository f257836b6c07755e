# SPDX-License-Identifier: Apache-2.0
"""Reads what op_values.cpp printed, gives torch the same inputs, and prints for each line the largest difference of the
result and of the gradients, in steps of the format (epsilon times the value; of gradients the largest of the tensor,
for they are differences of larger numbers), and how many elements the result has.
"""

import json
import math
import sys

import torch

F = torch.nn.functional
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}

CALLS = {
    "atan2": torch.atan2, "prelu": F.prelu, "mv": torch.mv, "dot": torch.dot, "matmul": torch.matmul,
    "binary_cross_entropy": F.binary_cross_entropy, "huber_loss": F.huber_loss, "softplus": F.softplus,
    "logsumexp": lambda x: x.logsumexp(0), "hinge_embedding_loss": F.hinge_embedding_loss,
    "margin_ranking_loss": lambda x, y, labels: F.margin_ranking_loss(x, y, labels, margin=0.3),
    "triplet_margin_loss": F.triplet_margin_loss, "poisson_nll_loss": F.poisson_nll_loss,
    "cosine_embedding_loss": lambda x, y, labels: F.cosine_embedding_loss(x, y, labels, margin=-0.2),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, 0),
    "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-3),
}  # fmt: skip
# By the label of a case, which begins so.
VARIANTS = {
    "softplus_linear": lambda x: F.softplus(x, 1.5, 1),
    "huber_loss_narrow": lambda x, y: F.huber_loss(x, y, delta=0.15),
    "logsumexp_dim1_kept": lambda x: x.logsumexp(1, keepdim=True),
    "logsumexp_dim0_kept": lambda x: x.logsumexp(0, keepdim=True),
    "logsumexp_dim1": lambda x: x.logsumexp(1),
    "cosine_similarity_dim1": F.cosine_similarity,
    "rms_norm_plain": lambda x: F.rms_norm(x, x.shape[-1:]),
}


def call_of(case: dict):
    for label, call in VARIANTS.items():
        if case["label"].startswith(label):
            return call
    return CALLS.get(case["op"]) or getattr(torch, case["op"])


def tensor_of(shown: dict, dtype):
    tensor = torch.tensor([float(value) for value in shown["values"]], dtype=torch.float64).reshape(shown["sizes"])
    return tensor.to(dtype).requires_grad_(shown["wanted"])


def steps(ours: dict, theirs, epsilon: float, of_largest: bool = False) -> float:
    """The largest difference; a number for another shape or another kind of value is infinite."""
    if ours["sizes"] != list(theirs.shape):
        return math.inf
    worst, least = 0.0, 2.0**-14
    if of_largest and theirs.numel() > 0:
        least = max(least, theirs.double().abs().max().item())
    for value, expected in zip(map(float, ours["values"]), theirs.double().flatten().tolist(), strict=True):
        if math.isnan(value) and math.isnan(expected) or value == expected:
            continue
        difference = abs(value - expected) / (epsilon * max(abs(expected), least))
        worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


for line in sys.stdin:
    case = json.loads(line)
    dtype = FORMATS[case["dtype"]]
    epsilon = torch.finfo(dtype).eps
    inputs = [tensor_of(shown, dtype) for shown in case["inputs"]]
    result = call_of(case)(*inputs)
    weights = 0.5 + 0.1 * (torch.arange(result.numel(), dtype=torch.float64) % 4)
    (result * weights.reshape(result.shape).to(dtype)).sum().backward()
    gradients = [steps(shown, tensor.grad, epsilon, of_largest=True)
                 for shown, tensor in zip(case["gradients"], inputs, strict=True) if shown is not None]  # fmt: skip
    print(json.dumps([case["label"], case["dtype"], steps(case["out"], result.detach(), epsilon), max(gradients),
                      result.numel()]))  # fmt: skip
