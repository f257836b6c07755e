# SPDX-License-Identifier: Apache-2.0
import os
import socket

with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                   "DS_ACCELERATOR": "cpu"})
import deepspeed  # noqa: E402
import torch  # noqa: E402
from support import tiny_model  # noqa: E402

model = tiny_model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_batch_size": 2, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})
for step in range(3):
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(step))
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
