# SPDX-License-Identifier: Apache-2.0
"""`nanhunt mcp` as a careless or hostile client speaks to it: raw lines on stdin. How the protocol's own client drives
it is in tests/torch/runs/test_mcp.py."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

NANHUNT = Path(os.environ.get("NANHUNT_BIN_DIR", "/nonexistent"), "nanhunt")
pytestmark = pytest.mark.skipif(
    not NANHUNT.is_file(), reason="nanhunt is not built: NANHUNT_BIN_DIR names no folder with it"
)
TIMEOUT = 600  # ends what hangs

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def request(number, method, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def tool(number, name, **arguments):
    return request(number, "tools/call", name=name, arguments=arguments)


def speak(folder, *messages, words=()):
    """The answers by id to some messages; texts are sent as they are."""
    lines = "".join((m if isinstance(m, str) else json.dumps(m)) + "\n" for m in messages)
    done = subprocess.run(
        [NANHUNT, "mcp", "--root", folder, *words], input=lines, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a run that failed and its repaired twin."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("adam-eps", "adam-eps-fixed"):
        words = ["train", name, "--steps", "3", "--no-verify", "--out", folder / name]
        subprocess.run([NANHUNT, *words], check=True, capture_output=True, timeout=TIMEOUT)
    return folder


@pytest.mark.parametrize(
    "asked, given",
    [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25"), (7, "2025-11-25")],
)
def test_a_version_of_the_protocol_that_is_known_is_agreed_on_and_else_the_newest_is_named(tmp_path, asked, given):
    hello = json.loads(json.dumps(HELLO))
    hello["params"]["protocolVersion"] = asked
    result = speak(tmp_path, hello)[0]["result"]
    assert result["protocolVersion"] == given
    assert result["serverInfo"]["name"] == "nanhunt" and "tools" in result["capabilities"]


def test_what_is_no_request_is_refused_and_the_next_one_answered(tmp_path):
    wrong = [
        "{",
        "[]",
        "7",
        '"text"',
        "",
        '{"id": 1}',
        '{"id": {}, "method": "ping"}',
        '{"id": 2, "method": 3}',
        '{"id": 3, "method": "nothing"}',
        '{"id": 4, "method": "tools/call", "params": []}',
        '{"id": 5, "method": "tools/call", "params": {"name": "rm"}}',
        '{"method": "ping"}',
        "[" * 100_000,
        "\0\x7f",
        '{"id": 6, "method": "initialize", "params": null}',
    ]
    answers = speak(tmp_path, *wrong, request(9, "ping"))
    assert answers[9]["result"] == {}
    codes = {number: answer["error"]["code"] for number, answer in answers.items() if "error" in answer}
    assert codes == {None: codes[None], 2: -32600, 3: -32601, 4: -32602, 5: -32602, 6: -32602}


def test_a_line_of_megabytes_is_dropped_and_the_next_one_answered(tmp_path):
    assert speak(tmp_path, "x" * (9 << 20), request(1, "ping"))[1]["result"] == {}


def test_tools_say_whether_they_only_read(tmp_path):
    def offered(*words):
        return {
            one["name"]: one for one in speak(tmp_path, request(1, "tools/list"), words=words)[1]["result"]["tools"]
        }

    assert all(one["annotations"]["readOnlyHint"] for one in offered().values()) and "repro" not in offered()
    assert not offered("--write")["repro"]["annotations"]["readOnlyHint"]
    for one in offered("--write").values():
        assert one["inputSchema"]["additionalProperties"] is False and one["description"]


def test_a_report_is_the_brief_one_and_checks_say_what_runs_are(folder):
    answers = speak(
        folder,
        tool(1, "report", path="adam-eps"),
        tool(2, "check", path="adam-eps"),
        tool(3, "check", path="adam-eps-fixed"),
        tool(4, "list_runs"),
        tool(5, "live", path="adam-eps"),
        tool(6, "info", path="adam-eps"),
        tool(7, "advise", path="adam-eps"),
    )
    results = {number: answer["result"] for number, answer in answers.items()}
    assert not any(one["isError"] for one in results.values()), results
    brief = results[1]["structuredContent"]
    assert (
        brief["schema"] == "nanhunt.brief"
        and brief["origin"]["class"] == "eps_underflow"
        and brief["origin"]["phase"] == "optimizer"
    )
    assert json.loads(results[1]["content"][0]["text"]) == brief
    assert results[2]["structuredContent"]["status"] == "fault" and results[3]["structuredContent"]["status"] == "clean"
    assert {one["path"] for one in results[4]["structuredContent"]["runs"]} == {"adam-eps", "adam-eps-fixed"}


def test_rows_are_bounded_and_cut_between_lines(folder):
    answers = speak(
        folder,
        tool(1, "dump", path="adam-eps", kind="ops"),
        tool(2, "dump", path="adam-eps", kind="ops", limit=3),
        tool(3, "dump", path="adam-eps", kind="values", limit=500),
        tool(4, "dump", path="adam-eps", kind="ops", step=0, limit=5),
    )
    rows = {number: answer["result"]["content"][0]["text"] for number, answer in answers.items()}
    assert len(rows[1].splitlines()) == 50 and len(rows[2].splitlines()) == 3
    assert len(rows[3]) < 64 * 1024
    whole = [line for line in rows[3].splitlines() if line and not line.startswith("[cut")]
    assert whole and all(json.loads(line)["kind"] == "values" for line in whole)
    assert {json.loads(line)["step"] for line in rows[4].splitlines()} == {0}


@pytest.mark.parametrize(
    "path", ["..", "../..", "/etc", "/", "adam-eps/../..", "link", "", "s3://bucket/run", "x\0y", "nothing"]
)
def test_what_is_not_below_a_root_is_not_read(folder, path):
    link = folder / "link"
    if not link.is_symlink():
        link.symlink_to("/etc")
    result = speak(folder, tool(1, "report", path=path))[1]["result"]
    assert result["isError"] and "nanhunt.brief" not in json.dumps(result)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": 7},
        {"path": ["adam-eps"]},
        {"path": "adam-eps", "step": -1},
        {"path": "adam-eps", "step": 1.5},
        {"path": "adam-eps", "limit": 501},
        {"path": "adam-eps", "kind": "--help"},
        {"path": "adam-eps", "more": 1},
        {"path": "x" * 5000},
        {"path": "--help"},
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_words(folder, arguments):
    result = speak(folder, tool(1, "dump", **arguments))[1]["result"]
    assert result["isError"] and len(result["content"][0]["text"]) > 10


def test_what_a_tool_reads_has_one_name_in_all_of_them(tmp_path):
    for one in speak(tmp_path, request(1, "tools/list"), words=["--write"])[1]["result"]["tools"]:
        names = list(one["inputSchema"]["properties"])
        assert "path" in names and not {"run", "folder", "file", "a", "b"} & set(names), one["name"]
        assert ("path" in one["inputSchema"]["required"]) == (one["name"] != "list_runs")


def test_a_wrong_name_and_a_missing_one_are_answered_with_the_names_that_there_are(folder):
    answers = speak(
        folder, tool(1, "report", run="adam-eps"), tool(2, "diff", path="adam-eps"), tool(3, "dump", folder="x")
    )
    said = {number: answer["result"]["content"][0]["text"] for number, answer in answers.items()}
    assert said[1] == "report: 'run' is no argument of it. Its arguments are path (required)."
    assert said[2] == "diff: 'other' is missing. Its arguments are path (required), other (required)."
    assert "kind, step, module, rank, limit." in said[3]


def test_where_no_run_is_found_the_answer_says_what_else_can_be_done(folder, tmp_path):
    nothing = speak(tmp_path, tool(1, "list_runs"))[1]["result"]["structuredContent"]
    assert nothing["runs"] == []
    for words in ("`autopsy`", "`check`", "nanhunt run --out run -- python train.py"):
        assert words in nothing["next"]
    assert "next" not in speak(folder, tool(1, "list_runs"))[1]["result"]["structuredContent"]


def test_a_word_of_the_client_never_becomes_an_option(folder):
    # `--json` is no module, and `--limit=9` no kind.
    answers = speak(
        folder,
        tool(1, "dump", path="adam-eps", module="--limit=1"),
        tool(2, "dump", path="adam-eps", kind="ops --limit 1"),
    )
    assert answers[1]["result"]["isError"] is False and "no rows match" in answers[1]["result"]["content"][0]["text"]
    assert answers[2]["result"]["isError"]


def test_only_a_server_that_may_write_writes(folder):
    refused = speak(folder, tool(1, "repro", path="adam-eps", out="shown"))[1]["result"]
    assert refused["isError"] and not (folder / "shown").exists()
    outside = speak(folder, tool(1, "repro", path="adam-eps", out="../shown"), words=["--write"])[1]["result"]
    assert outside["isError"] and not (folder.parent / "shown").exists()
    before = sorted(path.name for path in folder.iterdir())
    asked = ["report", "check", "info", "advise", "live"]
    speak(folder, *[tool(i, name, path="adam-eps") for i, name in enumerate(asked)])
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not (folder / "adam-eps" / "report.json").exists()


def test_a_call_can_be_cancelled_and_another_waits_its_turn(folder):
    # The channel is read while the verb runs, so what comes in one go is known before it ends.
    answers = speak(
        folder,
        tool(1, "report", path="adam-eps"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        tool(2, "check", path="adam-eps"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
    )
    assert set(answers) == {2} and answers[2]["result"]["structuredContent"]["status"] == "fault"


def test_a_root_that_is_no_folder_is_said(tmp_path):
    done = subprocess.run(
        [NANHUNT, "mcp", "--root", tmp_path / "nothing"], input="", capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 3 and "--root" in done.stderr


DEEP = '{"jsonrpc": "2.0", "id": 8, "method": "ping", "params": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"


def test_what_nests_deep_or_is_too_long_is_refused_in_words_and_the_server_goes_on(tmp_path):
    answers = speak(tmp_path, DEEP, '{"id": 1, "method": "ping", "x": "' + "y" * (5 << 20) + '"}', request(9, "ping"))
    assert answers[None]["error"]["code"] == -32700 and "4 MiB" in answers[None]["error"]["message"]
    assert answers[9]["result"] == {} and 8 not in answers


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL, None])
def test_a_call_ends_with_its_server_and_with_a_client_that_goes_away(tmp_path, ending):
    with (tmp_path / "huge.safetensors").open("wb") as file:  # takes minutes to read
        header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 36], "data_offsets": [0, 4 << 36]}}).encode()
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (4 << 36))
    server = subprocess.Popen([NANHUNT, "mcp", "--root", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdin.write((json.dumps(tool(1, "check", path="huge.safetensors")) + "\n").encode())
    server.stdin.flush()
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    wait_for(lambda: children.read_text().split())
    (child,) = children.read_text().split()
    if ending is None:
        server.stdin.close()
        server.stdout.close()
    else:
        server.send_signal(ending)
    server.wait(TIMEOUT)
    wait_for(lambda: is_over(child))


def is_over(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(there):
    end = time.monotonic() + TIMEOUT
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)
