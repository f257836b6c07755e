# SPDX-License-Identifier: Apache-2.0
"""`python -m nanhunt.metrics` and `nanhunt watch --otlp --prometheus`: what a collector and Prometheus get of a run."""

import contextlib
import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "hooks" / "torch"
NUMBERS = {
    "ranks": {"seen": 2, "training": 1, "ended": 0, "quiet": 1},
    "step": {"lowest": 3, "highest": 9},
    "clean_through": 2,
    "bad_steps": 4,
    "skipped_steps": 5,
    "scale": 1024.0,
}
LINE = {
    **NUMBERS,
    "schema": "nanhunt.watch",
    "run": "runs/a",
    "state": "training",
    "loss": 0.5,
    "watching": 0.25,
    "quiet_seconds": 7,
    "faults": [{}],
    "groups": [{**NUMBERS, "dimension": "pipeline", "value": "3"}],
}


def group(name: str) -> dict:
    return {**NUMBERS, "dimension": "host", "value": name}


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith(("OTEL", "NANHUNT"))}
    boot = PACKAGE / "nanhunt" / "boot"
    folders = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": folders, "NANHUNT_PYTHON": sys.executable, "NANHUNT_BOOT_DIR": str(boot)}


class Collector:
    """An OTLP receiver on loopback: `points` is what came, by name and labels; it answers with `status`."""

    def __init__(self) -> None:
        self.points: dict[tuple, float] = {}
        self.kinds: dict[str, str] = {}
        self.services: set[str] = set()
        self.status = 200
        self.asked = 0
        self.changed = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                outer.take(self.path, self.headers["Content-Type"], body)
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, kind: str, body: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        assert (path, kind) == ("/v1/metrics", "application/x-protobuf")
        request = ExportMetricsServiceRequest.FromString(body)
        with self.changed:
            self.asked += 1
            if self.status == 200:
                self.read(request)
            self.changed.notify_all()

    def read(self, request) -> None:
        for resource in request.resource_metrics:
            for attribute in resource.resource.attributes:
                if attribute.key == "service.name":
                    self.services.add(attribute.value.string_value)
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self.kinds[metric.name] = metric.WhichOneof("data")
                    for point in getattr(metric, self.kinds[metric.name]).data_points:
                        labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                        value = point.as_double if point.HasField("as_double") else point.as_int
                        self.points[metric.name, labels] = value

    def wait(self, reached) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: reached(self), 600), self.points


@pytest.fixture
def collector():
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not there: tests/torch/requirements.txt")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the OTLP exporter is not there")
    one = Collector()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


@pytest.fixture
def parsed():
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not there")

    def parse(text: str) -> dict[tuple, float]:
        samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}

    return parse


class Metrics:
    """`python -m nanhunt.metrics`, ready."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "nanhunt.metrics", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.answer = self.process.stdout.readline()

    def put(self, **changes) -> None:
        self.process.stdin.write(json.dumps({**LINE, **changes}) + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        out, said = self.process.communicate(timeout=600)
        assert out == ""
        return self.process.returncode, said


@contextlib.contextmanager
def metrics(*words: str):
    one = Metrics(*words)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


ALL, RUN = (("group", "all"), ("run", "runs/a")), (("run", "runs/a"),)
STAGE = (("group", "pipeline=3"), ("run", "runs/a"))


def test_a_collector_gets_protobuf_with_the_numbers_of_the_run_and_of_its_groups(collector):
    with metrics("--otlp", collector.url) as run:
        assert run.answer == "ready\n"
        run.put()
        collector.wait(lambda c: c.points)
        assert run.end() == (0, "")
    assert collector.services == {"nanhunt"}
    assert collector.kinds["nanhunt.bad_steps"] == "sum" and collector.kinds["nanhunt.step"] == "gauge"
    for labels in (ALL, STAGE):
        found = [collector.points[f"nanhunt.{name}", labels] for name in ("bad_steps", "skipped_steps", "step")]
        assert found == [4, 5, 9]
        assert collector.points["nanhunt.loss_scale", labels] == 1024.0
        assert collector.points["nanhunt.clean_through_step", labels] == 2
        assert collector.points["nanhunt.ranks", (*labels, ("state", "quiet"))] == 1
    assert collector.points["nanhunt.loss", RUN] == 0.5
    assert collector.points["nanhunt.faults", RUN] == 1


def test_a_collector_that_denies_is_said_once_and_once_that_it_works_again(collector):
    collector.status = 400
    with metrics("--otlp", collector.url + "/v1/metrics") as run:
        for asked in (1, 2):
            run.put(loss=float(asked))
            collector.wait(lambda c, asked=asked: c.asked >= asked)
        collector.status = 200
        number = 0
        while ("nanhunt.loss", RUN) not in collector.points:
            number += 1
            run.put(loss=float(number))
            collector.wait(lambda c, asked=collector.asked: c.asked > asked)
        status, said = run.end()
    lines = said.splitlines()
    assert status == 0 and len(lines) == 2, said
    assert "does not take metrics" in lines[0] and lines[1].endswith("it works again")


def test_a_collector_that_is_down_keeps_no_line_from_prometheus(collector, parsed, tmp_path):
    page = tmp_path / "nanhunt.prom"
    with metrics("--otlp", "http://127.0.0.1:1", "--prometheus", str(page)) as run:
        for step in range(200):
            run.put(step={"lowest": step, "highest": step})
        end = time.monotonic() + 600
        while not page.exists() or parsed(page.read_text()).get(("nanhunt_step", ALL)) != 199:
            assert time.monotonic() < end
            time.sleep(0.01)
        status, said = run.end()
    assert status == 0 and said.count("\n") == 1 and "the collector at http://127.0.0.1:1/v1/metrics" in said


def test_a_text_file_for_node_exporter_is_whole_whenever_it_is_read(parsed, tmp_path):
    page = tmp_path / "nanhunt.prom"
    with metrics("--prometheus", str(page)) as run:
        run.put()
        assert run.end() == (0, "")
    found = parsed(page.read_text())
    assert found["nanhunt_bad_steps_total", ALL] == 4 and found["nanhunt_skipped_steps_total", STAGE] == 5
    assert found["nanhunt_ranks", (*ALL, ("state", "training"))] == 1
    assert found["nanhunt_quiet_seconds", RUN] == 7 and found["nanhunt_watching_ratio", RUN] == 0.25
    assert [path.name for path in tmp_path.iterdir()] == ["nanhunt.prom"]


def test_a_port_is_asked_on_loopback_alone_unless_a_host_is_named(parsed):
    with metrics("--prometheus", "0") as run:
        run.put()
        line = run.process.stderr.readline()
        address = line.split()[-1]
        assert address.startswith("http://127.0.0.1:")
        end = time.monotonic() + 600
        while True:
            with urllib.request.urlopen(address, timeout=60) as answer:
                found = parsed(answer.read().decode())
            if ("nanhunt_loss_scale", ALL) in found:
                break
            assert time.monotonic() < end
            time.sleep(0.01)
        assert found["nanhunt_loss_scale", ALL] == 1024.0
        assert run.end() == (0, "")


def test_numbers_that_are_not_known_are_absent_and_a_nan_is_one(parsed, tmp_path):
    page = tmp_path / "nanhunt.prom"
    with metrics("--prometheus", str(page)) as run:
        run.put(loss="NaN", clean_through=None, scale=None, groups=[])
        assert run.end() == (0, "")
    found = parsed(page.read_text())
    assert str(found["nanhunt_loss", RUN]) == "nan"
    assert not any(name in ("nanhunt_clean_through_step", "nanhunt_loss_scale") for name, _ in found)


def test_labels_are_bounded_whatever_comes(parsed, tmp_path):
    page = tmp_path / "nanhunt.prom"
    with metrics("--prometheus", str(page)) as run:
        run.process.stdin.write("not json\n[]\n{}\n" + json.dumps({"groups": 3, "ranks": []}) + "\n")
        run.put(groups=[group(f"n{i}") for i in range(500)])
        assert run.end() == (0, "")
    labels = {labels for name, labels in parsed(page.read_text()) if name == "nanhunt_step"}
    assert len(labels) == 66  # the whole run, 64 groups, and the rest


def test_a_name_of_the_program_cannot_break_a_line_of_the_text_file(parsed, tmp_path):
    page = tmp_path / "nanhunt.prom"
    with metrics("--prometheus", str(page)) as run:
        run.put(groups=[group('a"\n\\b')])
        assert run.end() == (0, "")
    assert ("nanhunt_step", (("group", 'host=a"\n\\b'), ("run", "runs/a"))) in parsed(page.read_text())


@pytest.mark.parametrize(
    "words, said",
    [
        (["--prometheus", "/no/such/folder/x.prom"], "cannot be written"),
        (["--prometheus", "127.0.0.1:99999"], "cannot listen"),
        (["--otlp", "localhost:4318"], "expected a URL"),
    ],
)
def test_what_cannot_be_offered_is_said_before_the_watch_begins(parsed, words, said):
    with metrics(*words) as run:
        assert run.answer == ""
        status, told = run.end()
    assert status == 2 and said in told and told.count("\n") == 1


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    script = "import sys; sys.modules['prometheus_client'] = sys.modules['opentelemetry'] = None\n"
    script += "from nanhunt.metrics.__main__ import main; sys.exit(main(sys.argv[1:]))"
    for words, package in ((["--prometheus", "0"], "prometheus_client"), (["--otlp", "http://a"], "opentelemetry-sdk")):
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
        assert done.returncode == 2 and f"-m pip install {package}" in done.stderr


def test_torch_is_not_imported():
    script = "import sys, nanhunt.metrics.__main__, nanhunt.on_fault; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "False\n", done.stderr


def test_nanhunt_watch_offers_what_it_sees(binaries, collector, parsed, tmp_path):
    trained = [binaries / "nanhunt", "train", "log-zero", "--out", tmp_path / "run"]
    subprocess.run(trained, capture_output=True, check=True, timeout=1800)
    page = tmp_path / "nanhunt.prom"
    command = [binaries / "nanhunt", "watch", tmp_path / "run", "--otlp", collector.url, "--prometheus", page]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 1 and done.stdout.splitlines()[1].startswith("FAULT  ")
    labels = (("group", "all"), ("run", str(tmp_path / "run")))
    assert parsed(page.read_text())["nanhunt_bad_steps_total", labels] > 0
    assert collector.points["nanhunt.bad_steps", labels] > 0


def test_nanhunt_watch_refuses_metrics_that_cannot_be_offered(binaries, tmp_path):
    command = [binaries / "nanhunt", "watch", tmp_path, "--once", "--otlp", "nowhere"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 2 and "watch: metrics cannot be offered" in done.stderr
