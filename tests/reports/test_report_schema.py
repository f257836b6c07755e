# SPDX-License-Identifier: Apache-2.0
"""What is written of every sample run, comparison and fleet follows the published schemas."""

import base64
import json
import os
import pathlib
import subprocess

import pytest

jsonschema = pytest.importorskip(
    "jsonschema", reason="python3-jsonschema is not installed: reports are not checked against the schema"
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NANHUNT_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SCHEMAS = {
    name: json.loads((ROOT / "reports" / "schema" / f"nanhunt.{name}.schema.json").read_text())
    for name in ("report", "brief", "precision", "fleet")
}

COMPARISONS = ["precision", "precision-good", "precision-hostile"]
FLEETS = ["fleet", "fleet-clean", "fleet-parted", "fleet-gapped", "fleet-hostile", "fleet-large"]
REPORTS = ["fault", "overflow", "warning", "calibrating", "clean", "ramp", "hostile", "empty"]


def no_bare_constant(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture(scope="module")
def text_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")

    def text_of(name):
        program = BIN / ("write_sample_fleet" if name in FLEETS else "write_sample_report")
        if not program.is_file():
            pytest.skip(f"{program} is not built: there is nothing of it to check")
        path = folder / f"{name}.json"
        if not path.exists():
            subprocess.run([program, name, path], check=True)
        return path.read_text()

    return text_of


@pytest.fixture(scope="module")
def load(text_of):
    return lambda name: json.loads(text_of(name), parse_constant=no_bare_constant)


def validator_of(schema):
    if not hasattr(jsonschema, "Draft202012Validator"):
        pytest.skip("this jsonschema does not know draft 2020-12")
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[schema])
    return jsonschema.Draft202012Validator(SCHEMAS[schema])


@pytest.fixture(scope="module")
def validator():
    return validator_of("report")


@pytest.fixture(scope="module")
def validator_of_precision():
    return validator_of("precision")


@pytest.fixture(scope="module")
def validator_of_fleet():
    return validator_of("fleet")


def errors_in(validator, document):
    return [f"{list(e.absolute_path)}: {e.message}" for e in validator.iter_errors(document)]


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_follows_the_schema(validator, load, name):
    assert errors_in(validator, load(name)) == []


@pytest.mark.parametrize("name", [*REPORTS, "long"])
def test_a_brief_follows_its_schema_and_is_small(text_of, load, name):
    assert errors_in(validator_of("brief"), load(f"brief-{name}")) == []
    assert len(text_of(f"brief-{name}")) <= 16 * 1024


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_of_precision_follows_its_schema(validator_of_precision, load, name):
    assert errors_in(validator_of_precision, load(name)) == []


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleets_verdict_follows_its_schema(validator_of_fleet, load, name):
    assert errors_in(validator_of_fleet, load(name)) == []


def objects_of(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects_of(value)


@pytest.mark.parametrize("schema, least", [("report", 15), ("brief", 15), ("precision", 10), ("fleet", 8)])
def test_every_object_is_closed_and_requires_all_of_its_fields(schema, least):
    found = list(objects_of(SCHEMAS[schema]))
    assert len(found) > least
    for schema in found:
        assert schema["additionalProperties"] is False
        assert sorted(schema["required"]) == sorted(schema["properties"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(extra=1),
        lambda r: r.pop("verdict"),
        lambda r: r.update(schema_version=2),
        lambda r: r["verdict"].update(status="fine"),
        lambda r: r["findings"][0].update(phase="backwards"),
        lambda r: r["findings"][0].update(op_seq=2**53),
        lambda r: r["findings"][0].update(scale="inf"),
        lambda r: r["findings"][0]["inputs"][0]["stats"].update(nan="NaN"),
        lambda r: r["findings"][0]["advice"][0].update(verified="yes"),
        lambda r: r["findings"][0]["inputs"][0]["stats"]["histogram"].pop("min_exponent"),
        lambda r: r["scaler"]["events"][0].update(what="jump"),
        lambda r: r["scaler"].update(final_scale=None),
        lambda r: r["headroom"][0]["forward"].update(headroom="none"),
        lambda r: r["timeline"]["layer_map"].update(columns=513),
        lambda r: r.update(device_time=7),
        lambda r: r["findings"][0].update(kernel=7),
    ],
)
def test_a_spoilt_report_is_refused(validator, load, spoil):
    report = load("overflow")
    spoil(report)
    assert not validator.is_valid(report)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.update(extra=1),
        lambda c: c.pop("runs"),
        lambda c: c.update(schema_version=2),
        lambda c: c.update(runs=[]),
        lambda c: c["runs"][0].update(outcome="good"),
        lambda c: c["runs"][0].update(accuracy=1.5),
        lambda c: c["runs"][0].update(final_loss="inf"),
        lambda c: c["runs"][0]["memory"]["at_peak"].pop("masters"),
        lambda c: c["runs"][1]["layers"][0].update(overflowed=-1),
        lambda c: c["runs"][1]["trials"][0].update(restored="yes"),
        lambda c: c["batch_sizes"][0].update(batch_size=0),
    ],
)
def test_a_spoilt_comparison_is_refused(validator_of_precision, load, spoil):
    comparison = load("precision")
    spoil(comparison)
    assert not validator_of_precision.is_valid(comparison)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f.update(extra=1),
        lambda f: f.pop("notes"),
        lambda f: f.update(schema_version=2),
        lambda f: f.update(status="good"),
        lambda f: f.update(clean_through="none"),
        lambda f: f["first"].update(rank=-1),
        lambda f: f["first"].pop("micro_batch"),
        lambda f: f["shape"].update(kind="ring"),
        lambda f: f["shape"]["places"][0].update(value=2),
        lambda f: f["ranks"].update(ranks=[0] * 1025),
        lambda f: f["came_by"].update(call=2**53),
        lambda f: f.update(to_open=[1, 2, 3, 4, 5, 6]),
        lambda f: f["unread"].update(digests=[{"rank": 1}]),
    ],
)
def test_a_spoilt_verdict_of_a_fleet_is_refused(validator_of_fleet, load, spoil):
    fleet = load("fleet")
    spoil(fleet)
    assert not validator_of_fleet.is_valid(fleet)


@pytest.mark.parametrize("name", COMPARISONS)
def test_memory_at_the_peak_adds_up_to_it(load, name):
    comparison = load(name)
    memories = [part["memory"] for part in comparison["runs"] + comparison["batch_sizes"] if part["memory"]]
    assert memories
    for memory in memories:
        assert sum(memory["at_peak"].values()) == memory["peak"]


@pytest.mark.parametrize("name", REPORTS + COMPARISONS + FLEETS)
def test_keys_are_sorted(text_of, name):
    def check(pairs):
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        return dict(pairs)

    json.loads(text_of(name), object_pairs_hook=check)


def test_the_map_of_layers_reads_back_as_the_schema_says(load):
    report = load("overflow")
    layers = report["timeline"]["layer_map"]
    cells = layers["rows"] * layers["columns"]
    headroom, underflow, nonfinite = (base64.b64decode(layers[name]) for name in ("headroom", "underflow", "nonfinite"))
    assert (len(headroom), len(underflow), len(nonfinite)) == (cells, cells, (cells + 7) // 8)
    assert layers["rows"] == len(report["headroom"])

    for row, layer in enumerate(report["headroom"]):
        columns = range(row * layers["columns"], (row + 1) * layers["columns"])
        smallest = min((headroom[i] - 1) / 4 for i in columns if headroom[i])
        assert smallest <= layer["forward"]["headroom"] < smallest + 0.25
        bad = [i for i in columns if nonfinite[i // 8] >> i % 8 & 1]
        assert bool(bad) == (layer["bad_ops"] > 0)
