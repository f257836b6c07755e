# SPDX-License-Identifier: Apache-2.0
"""The golden reports, which the C++ tests keep equal to what is written, follow the published schema."""

import copy
import json
import pathlib

import pytest

jsonschema = pytest.importorskip(
    "jsonschema", reason="python3-jsonschema is not installed: reports are not checked against the schema"
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "reports"
SCHEMA = json.loads((ROOT / "reports" / "schema" / "nanhunt.report.schema.json").read_text())


def no_bare_constant(name):
    raise AssertionError(f"{name} is not JSON")


def load(name):
    return json.loads((GOLDEN / name).read_text(), parse_constant=no_bare_constant)


@pytest.fixture(scope="module")
def validator():
    if not hasattr(jsonschema, "Draft202012Validator"):
        pytest.skip("this jsonschema does not know draft 2020-12")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("name", ["fault.json", "clean.json", "hostile.json", "empty.json"])
def test_a_report_follows_the_schema(validator, name):
    errors = [f"{list(e.absolute_path)}: {e.message}" for e in validator.iter_errors(load(name))]
    assert errors == []


def objects_of(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects_of(value)


def test_every_object_is_closed_and_requires_all_of_its_fields():
    found = list(objects_of(SCHEMA))
    assert len(found) > 15
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
    ],
)
def test_a_spoilt_report_is_refused(validator, spoil):
    report = copy.deepcopy(load("fault.json"))
    spoil(report)
    assert not validator.is_valid(report)


@pytest.mark.parametrize("name", ["fault.json", "clean.json", "hostile.json", "empty.json"])
def test_keys_are_sorted(name):
    def check(pairs):
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        return dict(pairs)

    json.loads((GOLDEN / name).read_text(), object_pairs_hook=check)
