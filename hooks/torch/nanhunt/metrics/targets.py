# SPDX-License-Identifier: Apache-2.0
"""Where metrics go: an OpenTelemetry collector, a text file or a port for Prometheus."""
from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable
from urllib.parse import urlsplit

from nanhunt.metrics.samples import METRICS, Latest, Metric

SECONDS = 5  # for one try to send


class NotPossible(Exception):
    """Metrics cannot be offered: what is wrong, and what to do."""


def say(text: str) -> None:
    print(f"nanhunt: {''.join(ch if ch.isprintable() else '?' for ch in text)}", file=sys.stderr, flush=True)


class Outage:
    """What does not work is said once, and once that it works again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lasts = False

    def failed(self, why: str) -> None:
        if not self._lasts:
            say(f"{self._what}: {why or 'no reason was given'}; the watch goes on, and each look tries again")
        self._lasts = True

    def worked(self) -> None:
        if self._lasts:
            say(f"{self._what}: it works again")
        self._lasts = False


def _missing(what: str, package: str, extra: str) -> NotPossible:
    return NotPossible(f"{what} needs a package that is not there: `{sys.executable} -m pip install {package}` "
                       f"(or nanhunt[{extra}])")


# Prometheus.
def _collector(latest: Latest) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Iterator[Any]:
            now = latest.samples
            for metric in METRICS:
                kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
                family = kind(metric.prometheus_name, metric.description, labels=metric.labels)
                for sample in now[metric.name]:
                    family.add_metric(sample.labels, sample.value)
                yield family

    return Collector()


def parse_address(text: str) -> tuple[str, int] | None:
    """None: it names a file."""
    if text.isdigit():
        return ("127.0.0.1", int(text))
    found = re.fullmatch(r"(\[[^\]/]+\]|[^/:]*):(\d+)", text)
    return (found[1].strip("[]") or "127.0.0.1", int(found[2])) if found else None


def offer_to_prometheus(target: str, latest: Latest) -> Callable[[], None] | None:
    """What to do whenever there is something new; None: nothing, for it is asked for."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
    except ImportError as error:
        raise _missing("--prometheus", "prometheus_client", "prometheus") from error
    registry = CollectorRegistry()
    registry.register(_collector(latest))
    address = parse_address(target)
    if address is not None:
        try:
            server, _ = start_http_server(address[1], address[0], registry)
        except (OSError, OverflowError) as error:
            raise NotPossible(f"--prometheus: cannot listen at {target}: {error}. Name another port.") from error
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        say(f"metrics for Prometheus are at http://{host}:{server.server_port}/metrics")
        return None
    if not Path(target).absolute().parent.is_dir() or Path(target).is_dir():
        raise NotPossible(f"--prometheus: '{target}' cannot be written: name a file in a folder that is there.")
    outage = Outage(f"metrics cannot be written to {target}")

    def write() -> None:
        try:
            write_to_textfile(target, registry)
        except OSError as error:
            outage.failed(str(error))
        else:
            outage.worked()

    return write


# OpenTelemetry.
class _FirstWord(logging.Handler):
    """What the library logs is why it failed; it is not printed."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or " ".join(record.getMessage().split())[:300]  # the first says most


def endpoint_of(url: str) -> str:
    """A collector's address alone is that of its metrics, as OTEL_EXPORTER_OTLP_ENDPOINT has it."""
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise NotPossible(f"--otlp: expected a URL like http://127.0.0.1:4318, got '{url}'.")
    return url if parts.path not in ("", "/") else parts._replace(path="/v1/metrics").geturl()


def _instrument(meter: Any, metric: Metric, latest: Latest) -> None:
    from opentelemetry.metrics import Observation

    def observe(_: object) -> Iterable[Any]:
        return [Observation(sample.value, dict(zip(metric.labels, sample.labels)))
                for sample in latest.samples[metric.name] if math.isfinite(sample.value)]  # the library takes no others

    make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
    make(f"nanhunt.{metric.name}", [observe], metric.unit, metric.description)


def offer_to_opentelemetry(url: str, latest: Latest) -> Callable[[], None]:
    """What to do whenever there is something new."""
    endpoint = endpoint_of(url)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise _missing("--otlp", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http", "otlp") from error
    said = _FirstWord()
    library = logging.getLogger("opentelemetry")
    library.addHandler(said)
    library.propagate = False

    class Exporter(OTLPMetricExporter):  # type: ignore[misc]
        took = False

        def export(self, *words: Any, **named: Any) -> Any:
            result = super().export(*words, **named)
            self.took = result is MetricExportResult.SUCCESS
            return result

    exporter = Exporter(endpoint=endpoint, timeout=SECONDS)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)  # it is asked each time
    provider = MeterProvider([reader], Resource.create({"service.name": "nanhunt"}), shutdown_on_exit=False)
    meter = provider.get_meter("nanhunt")
    for metric in METRICS:
        _instrument(meter, metric, latest)
    outage = Outage(f"the collector at {endpoint} does not take metrics")

    def send() -> None:
        exporter.took = False
        said.text = ""
        reader.collect(timeout_millis=SECONDS * 1000)
        if exporter.took:
            outage.worked()
        elif any(latest.samples.values()):
            outage.failed(said.text)

    return send
