# SPDX-License-Identifier: Apache-2.0
"""The log-variance of a variational autoencoder without a limit (vanderschaarlab/synthcity#331; GRIST, subject 4).

From one step on images come as 12-bit intensities. The log-variance grows with them and its exponential overflows
in bf16, which has the range of fp32. Encoder and decoder have an optimizer each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support import digits, finish, options, rename_layers
from torch import nn

BAD_STEP = 10
BATCH, LATENT = 32, 4


class Encoder(nn.Module):
    def __init__(self, limit: bool):
        super().__init__()
        self.limit = limit
        self.body = nn.Linear(64, 32)
        self.mu = nn.Linear(32, LATENT)
        self.log_var = nn.Linear(32, LATENT)

    def forward(self, x):
        hidden = F.leaky_relu(self.body(x))
        log_var = self.log_var(hidden)
        return self.mu(hidden), log_var.clamp(-8, 4) if self.limit else log_var


class Sampler(nn.Module):
    def forward(self, mu, log_var):
        variance = torch.exp(log_var)
        return mu + variance.sqrt() * torch.randn_like(mu), variance


class VAE(nn.Module):
    def __init__(self, limit: bool):
        super().__init__()
        self.encoder = Encoder(limit)
        self.sampler = Sampler()
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.SiLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        mu, log_var = self.encoder(x)
        z, variance = self.sampler(mu, log_var)
        return {"reconstruction": self.decoder(z), "mu": mu, "log_var": log_var, "variance": variance}


def negative_elbo(out, x):
    reconstruction = F.mse_loss(out["reconstruction"].float(), x, reduction="sum")
    kl = -0.5 * torch.sum(1 + out["log_var"] - out["mu"].pow(2) - out["variance"])
    return (reconstruction + 1e-3 * kl) / len(x)


def main():
    args = options(__doc__, steps=16)
    images, _ = digits(args.device)
    vae = VAE(args.fixed)
    rename_layers(vae, args.rename_seed)
    vae.to(args.device)
    optimizers = [
        torch.optim.Adam(list(vae.encoder.parameters()), lr=1e-3),
        torch.optim.Adam(list(vae.decoder.parameters()), lr=1e-3, weight_decay=1e-5),
    ]
    losses = []
    for step in range(args.steps):
        x = images[torch.randint(len(images), (BATCH,))]
        shown = x * 4095 if step >= BAD_STEP else x
        with torch.autocast(args.device, dtype=torch.bfloat16):
            out = vae(shown)
        loss = negative_elbo(out, x)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    finish(vae, losses)


if __name__ == "__main__":
    main()
