# SPDX-License-Identifier: Apache-2.0
# The loop of timm's train script, with its own model, data, loss, scaler, scheduler and averaged weights.
import support
import torch

# This build of PyTorch cannot load torchvision's operators; its Python asks for two of them when it is imported.
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.data import Mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.models import create_model, model_parameters  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import create_scheduler_v2  # noqa: E402
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler  # noqa: E402

torch.manual_seed(0)
model = create_model("vit_tiny_patch16_224", num_classes=4, img_size=32, depth=2)
model.blocks[1].mlp.act = support.LogActivation()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2, warmup_epochs=1)
averaged, scaler, losses = ModelEmaV3(model, decay=0.9), NativeScaler(device="cpu"), AverageMeter()
mixup, criterion = Mixup(mixup_alpha=0.8, num_classes=4), SoftTargetCrossEntropy()

model.train()
for epoch in range(2):
    for batch in range(2):
        generator = torch.Generator().manual_seed(2 * epoch + batch)
        images, labels = mixup(torch.randn(4, 3, 32, 32, generator=generator), torch.arange(4))
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(images), labels)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model_parameters(model))
        averaged.update(model, step=2 * epoch + batch)
    scheduler.step(epoch + 1, losses.avg)
