# SPDX-License-Identifier: Apache-2.0
"""A whole hunt by the protocol's own client: an agent that knows nothing finds the run, the operation and the line,
looks at the rows, gets a program that shows it, and sees that the repaired twin is sound."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from hunting import CASES, cli, hunt, needs_cli

mcp = pytest.importorskip("mcp", reason="mcp is not installed: tools/fetch_torch")
pytestmark = [pytest.mark.usefixtures("library"), needs_cli]


@asynccontextmanager
async def client(folder, *words):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=cli(), args=["mcp", "--root", str(folder), *words], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def use(session, tool, **arguments):
    """What a tool gives: its object, else its text."""
    result = await session.call_tool(tool, arguments)
    shown = result.model_dump(by_alias=True)
    text = "\n".join(part["text"] for part in shown["content"] if part["type"] == "text")
    assert not shown.get("isError"), text
    return shown.get("structuredContent") or text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    hunt(folder / "monday", "live", CASES / "log_zero.py")
    hunt(folder / "tuesday", "live", CASES / "log_zero.py", "--fixed")
    return folder


def test_an_agent_finds_the_operation_its_line_and_the_cure_and_proves_them(folder):
    async def look():
        async with client(folder, "--write") as session:
            tools = {tool.name for tool in (await session.list_tools()).tools}
            assert {"list_runs", "report", "check", "dump", "diff", "repro"} <= tools
            runs = [one["path"] for one in (await use(session, "list_runs"))["runs"]]
            assert sorted(runs) == ["monday", "tuesday"]
            verdicts = {run: (await use(session, "check", path=run))["status"] for run in runs}
            assert verdicts == {"monday": "fault", "tuesday": "clean"}
            brief = await use(session, "report", path="monday")
            assert len(json.dumps(brief)) <= 16 * 1024
            origin = brief["origin"]
            # The line that it names is the program's, and its text is that of the file.
            file, line = re.fullmatch(r"(.+):(\d+)", origin["call_site"]).groups()
            here = next(one for one in brief["code"]["lines"] if one["here"])
            assert file.endswith("log_zero.py") and here["number"] == int(line)
            assert here["text"].strip() == (CASES / "log_zero.py").read_text().splitlines()[int(line) - 1].strip()
            rows = [
                json.loads(row)
                for row in (
                    await use(session, "dump", path="monday", kind="ops", step=origin["step"], limit=500)
                ).splitlines()
                if row.startswith("{")
            ]
            assert origin["op"] in {row["op"] for row in rows}
            parting = await use(session, "diff", path="tuesday", other="monday")
            assert parting["same"] is False
            assert any("repro" in one["command"] for one in brief["next"])
            await use(session, "repro", path="monday", finding=origin["id"], out="shown")
            return brief

    brief = asyncio.run(look())
    assert brief["cure"]["advice"]
    shown = subprocess.run([sys.executable, folder / "shown" / "repro.py"], capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0 and re.search("nan|inf", shown.stdout, re.IGNORECASE), shown.stdout + shown.stderr


def test_a_server_that_only_reads_offers_no_tool_that_writes(folder):
    async def names():
        async with client(folder) as session:
            return {tool.name for tool in (await session.list_tools()).tools}

    assert "repro" not in asyncio.run(names())
