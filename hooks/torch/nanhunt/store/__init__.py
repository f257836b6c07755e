# SPDX-License-Identifier: Apache-2.0
"""Runs that lie behind a URL: `s3://bucket/run`, or whatever else fsspec opens. Knows nothing of torch.

A run is recorded in a folder of this machine. `upload` copies it to its URL while it grows, from a process of its own,
and `fetch` copies it back, for whoever reads it. `python -m nanhunt.store` is the door of the command line to both.
"""
