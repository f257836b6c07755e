# SPDX-License-Identifier: Apache-2.0
"""What the user names as harmless is information in the report, with the reason; its twin that is not named is a
fault."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402
from mistakes import forget_ignored  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
LEVELS = pytest.mark.parametrize("level", ["ops", "live"])


@pytest.fixture(autouse=True)
def nothing_named():
    forget_ignored()
    yield
    forget_ignored()


class Net(torch.nn.Module):
    """A buffer of NaN that reaches the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("pad", torch.full((4,), float("nan")))

    def forward(self, x):
        return self.fc(x) + self.pad * 0


def run(folder, level, name=lambda net: None, also=False, **options):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    name(net)
    with nanhunt.watch(net, optimizer, out=folder, level=level, quiet=True, **options) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(2, 4)).square().mean()
            (loss + torch.log(torch.tensor(-1.0, requires_grad=True)) if also else loss).backward()
            optimizer.step()
    return watch


@LEVELS
@pytest.mark.parametrize("how", ["path", "tensor"])
def test_a_buffer_that_is_named_is_information_and_its_twin_a_fault(tmp_path, level, how):
    named = run(tmp_path / "named", level, lambda net: nanhunt.ignore(net.pad if how == "tensor" else "pad", "padding"))
    (finding,) = named.findings
    assert (finding.class_, finding.severity, finding.ignored) == ("bad_state", "info", "padding")
    assert finding.title.endswith("ignored by the user: padding")
    assert named.verdict == "clean" and "but what the user ignores: padding" in nanhunt.load(named.path).headline
    assert "ignored by the user: pad: padding" in named.report("full")


@LEVELS
def test_its_twin_that_is_not_named_is_a_fault(tmp_path, level):
    for folder, name in (("none", lambda net: None), ("other", lambda net: nanhunt.ignore("fc", "not this"))):
        watch = run(tmp_path / folder, level, name)
        assert watch.verdict == "fault" and watch.findings[0].ignored is None


def test_a_file_names_it_and_what_is_wrong_with_one_is_said(tmp_path, capsys, monkeypatch):
    if sys.version_info < (3, 11):  # noqa: UP036
        pytest.skip("this Python has no tomllib")
    file = tmp_path / "nanhunt.toml"
    file.write_text('[[ignore]]\npath = "pad"\nreason = "padding"\n')
    assert run(tmp_path / "run", "ops", config=file).verdict == "clean"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    for text, said in (
        ("[[ignore]]\npath = 'x'\n", "has no reason"),
        ("[[", "cannot be used"),
        ("ignore = 3", "cannot be used"),
    ):
        forget_ignored()
        file.write_text(text)
        with pytest.raises(ValueError, match=f"config: .*{said}"):  # named by the program
            nanhunt.watch(out=tmp_path / "raised", config=file)
        watch = run(tmp_path / "wrong", "ops")  # found beside it
        assert said in capsys.readouterr().err and watch.verdict == "fault"
        assert any(said in note for note in watch.notes)
    with pytest.raises(FileNotFoundError, match="is not there"):
        nanhunt.watch(out=tmp_path / "raised", config=tmp_path / "none.toml")


def test_without_a_reader_a_file_is_not_read_and_the_run_says_so(tmp_path, monkeypatch):
    file = tmp_path / "nanhunt.toml"
    file.write_text("")
    monkeypatch.setitem(sys.modules, "tomllib", None)
    with pytest.raises(ValueError, match="has no tomllib"):
        nanhunt.watch(out=tmp_path / "raised", config=file)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])  # found beside it
    watch = run(tmp_path / "run", "ops")
    assert any("has no tomllib" in note for note in watch.notes)


def test_wrong_arguments_raise_at_once():
    for what, reason, error in (
        (3, "x", TypeError),
        ("", "x", ValueError),
        ("a: b", "x", ValueError),
        ("a", "", ValueError),
    ):
        with pytest.raises(error):
            nanhunt.ignore(what, reason)
