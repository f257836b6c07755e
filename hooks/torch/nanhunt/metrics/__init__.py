# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run for OpenTelemetry and Prometheus. `nanhunt watch` starts `python -m nanhunt.metrics` and feeds it
what it sees, a JSON object a line. Imports no torch; a library that sends metrics is imported where it is asked for.
"""
