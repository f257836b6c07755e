# SPDX-License-Identifier: Apache-2.0
import os
import sys
from pathlib import Path

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

HERE, WORDS = str(Path(__file__).resolve().parent), sys.argv[1:]


def train() -> None:
    sys.path.insert(0, HERE)
    sys.argv[1:] = WORDS
    import ray.train.torch
    import torch
    from support import tiny_model

    model = ray.train.torch.prepare_model(tiny_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, _node_ip_address="127.0.0.1")
storage = RunConfig(storage_path=os.path.abspath("ray"))  # noqa: PTH100
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1, use_gpu=False), run_config=storage).fit()
ray.shutdown()
