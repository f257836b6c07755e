# SPDX-License-Identifier: Apache-2.0
"""report.html in a browser: quiet, self-contained, readable without scripts, used by keys, deaf to hostile names."""

import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "reports" / "html"

PRECISION = ["precision", "precision-good", "precision-hostile"]
KINDS = ["fault", "overflow", "calibrating", "clean", "hostile", "empty", "long", *PRECISION]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_asks_for_nothing_but_itself_and_complains_of_nothing(see, make_page, kind):
    seen = see("quiet", kind)
    assert seen["requests"] == [make_page(kind).as_uri()]
    assert seen["errors"] == []
    assert seen["ready"] is not None


def test_hostile_names_are_text(see):
    seen = see("hostile", "hostile")
    assert seen["errors"] == [] and seen["dialogs"] == 0 and not seen["pwned"]
    assert seen["foreign"] == 0 and seen["scripts"] == 2
    assert len(seen["requests"]) == 1
    assert "<img src=x onerror=alert(1)>" in seen["graph"]


def test_hostile_names_are_text_in_a_comparison_of_precision(see):
    seen = see("hostile", "precision-hostile")
    assert seen["errors"] == [] and seen["dialogs"] == 0 and not seen["pwned"]
    assert seen["foreign"] == 0 and seen["scripts"] == 1
    assert len(seen["requests"]) == 1
    assert "<script>window.pwned=1</script>" in seen["title"]


HOSTILE = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1>",
    "<!--<script>",
    "]]><script>window.pwned=1</script>",
    "\u2028window.pwned=1\u2029",
    "\"><iframe src=javascript:window.pwned=1>",
    "{{scripts}}{{body}}",
    "<style>@import 'http://127.0.0.1:9/x'</style>",
    "</title><script src=http://127.0.0.1:9/x></script>",
    "__proto__",
]


def with_chain_names(page, names, escape):
    """The page with other names in its data, as it would be with or without the layer that escapes them."""
    head, rest = page.split('id="page-data">', 1)
    data, tail = rest.split("</script>", 1)
    data = json.loads(data)
    for node, name in zip(data["chain"]["nodes"], names * 9, strict=False):
        node["title"] = node["place"] = node["amount"] = name
    text = json.dumps(data)
    if escape:
        for mark in "<>&":
            text = text.replace(mark, f"\\u{ord(mark):04x}")
    return f'{head}id="page-data">{text}</script>{tail}'


@pytest.mark.parametrize("name", HOSTILE)
def test_any_hostile_name_in_the_data_is_drawn_as_text(see, make_page, tmp_path, name):
    page = tmp_path / "escaped.html"
    page.write_text(with_chain_names(make_page("overflow").read_text(), [name], escape=True))
    seen = see("hostile", page)
    assert seen["errors"] == [] and not seen["pwned"]
    assert seen["foreign"] == 0 and seen["scripts"] == 2 and len(seen["requests"]) == 1
    assert name[:8] in seen["graph"]


def test_the_policy_alone_stops_what_escaping_would_have_let_through(see, make_page, tmp_path):
    page = tmp_path / "unescaped.html"
    page.write_text(with_chain_names(make_page("overflow").read_text(), HOSTILE, escape=False))
    seen = see("hostile", page)
    assert seen["scripts"] > 2 or seen["foreign"] > 0, "nothing came through: this test would prove nothing"
    assert not seen["pwned"] and seen["dialogs"] == 0
    assert seen["fetched"] == [page.as_uri()]


@pytest.mark.parametrize("kind", ["overflow", "fault", "clean", "precision", "precision-good"])
def test_axe_finds_nothing_in_light_and_dark(see, kind):
    assert see("accessible", kind) == {"light": [], "dark": []}


def test_every_canvas_has_a_name(see):
    canvases = see("names_of_canvases", "overflow")
    assert len(canvases) == 4
    assert all(canvas["role"] == "img" and len(canvas["name"]) > 20 for canvas in canvases)


def test_layers_are_sorted_and_found_by_keyboard(see):
    seen = see("table", "overflow")
    assert seen["descending"] == sorted(seen["descending"], reverse=True)
    assert seen["ascending"] == sorted(seen["ascending"]) != seen["descending"]
    assert seen["said"] == ["Headroom", "ascending"]
    assert sorted(seen["found"]) == sorted(name for name in seen["order"] if "mlp.fc2" in name)
    assert seen["count"] == "4 of 20 layers"
    assert sorted(seen["bad"]) == ["blocks.2.mlp.fc2", "blocks.3.mlp.fc2"]


@pytest.mark.parametrize("kind", ["fault", "overflow"])
def test_the_verdict_is_there_without_scripts(see, kind):
    seen = see("without_scripts", kind)
    assert seen["headline"].startswith("In step")
    for question in ["Which operation", "Which layer", "When", "Why", "How sure"]:
        assert question in seen["answers"]
    assert ("loss scaler?" in seen["answers"]) == (kind == "overflow"), "only where there is one"
    assert seen["chain"] and seen["still"]
    assert seen["layers"] == (20 if kind == "overflow" else 0)
    assert len(seen["requests"]) == 1


def test_a_comparison_of_precision_is_whole_without_scripts_and_its_layers_are_found_by_keyboard(see):
    seen = see("precision", "precision")
    for part in (seen["plain"], seen["scripted"]):
        assert part["headline"].startswith("torch-amp-fp16 falls short of fp32")
        assert "keep ffn.wo in fp32" in part["answers"]
        assert part["curves"] == [
            "Loss by step in torch-amp-fp16 and in fp32",
            "Loss by step in torch-amp-bf16 and in fp32",
        ]
        assert part["visible"] and part["dashed"]
        assert part["regions"] == part["focusable"] == 5
    assert seen["found"] == ["ffn.wo"]
    assert seen["alone"] == ["ffn.wo", "ffn"], "not finite comes with the rows that overflowed"


def test_what_is_not_finite_stands_on_a_rail_in_shapes_of_its_own(see):
    seen = see("rail", "hostile")
    kinds = {mark[0].split()[1]: mark[1] for mark in seen["whole"]}
    assert kinds.keys() == {"nan", "pos-inf", "neg-inf", "skipped", "bad-ops"}
    assert len(set(kinds.values())) == 5, "two kinds share a shape"
    for words in ["loss is NaN", "loss is +Inf", "loss is -Inf", "step skipped"]:
        assert words in seen["key"] and words in seen["name"]


def test_the_rail_follows_the_zoom_and_the_lines_are_drawn(see):
    seen = see("rail", "overflow")
    assert seen["painted"] == [True, True, True]
    assert any("step 24: loss is +Inf" in mark[2] for mark in seen["whole"])
    assert not any("step 24:" in mark[2] for mark in seen["zoomed"])
    assert any("loss is NaN" in mark[2] for mark in seen["zoomed"])


def test_steps_are_read_out_by_keyboard(see):
    seen = see("steps_by_keyboard", "overflow")
    norms = r"gradient norm [\d.]+ · weight norm [\d.]+"
    assert re.match(rf"step 0 · loss 2\.\d+ · scale 65536 · {norms} · skipped$", seen["first"])
    assert seen["second"].startswith("step 1 · loss 2.")
    assert seen["last"].startswith("step 59 · loss NaN")


def test_the_graph_is_walked_by_keyboard_and_has_a_list_beside_it(see):
    seen = see("graph", "overflow")
    assert seen["stops"] == 1
    assert seen["start"].startswith("began here: addmm, blocks.1.mlp.fc2")
    assert seen["next"].startswith("passed on: add, blocks.1 ")
    assert seen["end"].startswith("harmed: gradient")
    assert seen["list"] > 10


def test_a_fold_of_the_graph_opens_by_keyboard(see):
    seen = see("graph", "fault")
    assert seen["folds"] == 1
    assert seen["unfolded"] == 3


def test_the_map_is_read_out_by_keyboard_and_has_a_table_beside_it(see):
    seen = see("map", "overflow")
    assert seen["headroom"] != seen["underflow"]
    assert re.match(r"blocks\.0\.attn\.proj · step 59 · headroom [\d.]+ binades · underflow [\d.]+ %$", seen["readout"])
    for words in ["NaN or Inf", "nothing seen"]:
        assert words in seen["legend"]
    assert seen["twin"] == 20
    assert seen["caption"].startswith("Largest share lost to underflow")


def test_light_and_dark_follow_the_system_until_the_reader_chooses(see):
    seen = see("look", "overflow")
    assert seen["light"] != seen["dark"]
    assert seen["chosen_dark"] == seen["dark"] and seen["chosen_light"] == seen["light"]
    assert seen["label"] == "Light view"
    assert seen["print"] == "rgb(255, 255, 255)"


def test_paper_gets_still_pictures_and_no_buttons(see):
    seen = see("print", "overflow")
    assert seen["headline"] and seen["still"]
    assert not (seen["charts"] or seen["theme"] or seen["tools"] or seen["map"])
    assert seen["bytes"] > 10_000


def test_nothing_moves_for_who_wants_no_motion(see):
    assert see("still", "overflow") == {"scrolling": "auto", "moving": 0}


@pytest.mark.parametrize("kind", ["overflow", "fault", "clean"])
def test_the_first_screen_has_headline_cure_code_and_the_curve_with_the_origins_step(see, kind):
    seen = see("first_screen", kind)
    parts = {"clean": [], "overflow": ["cure", "origin"], "fault": ["cure", "origin", "code"]}[kind]
    for part in ["headline", "curve", *parts]:
        for screen in ("desk", "dark", "dense"):
            box = seen[screen][part]
            assert box and box["top"] >= 0 and box["bottom"] <= 900, f"{part} on {screen}: {box}"
    assert seen["desk"]["text_px"] >= 10 and seen["phone"]["text_px"] >= 9, "the labels of the curve can be read"
    assert seen["phone"]["wider"] <= 0


def test_what_the_reader_chose_to_look_at_is_remembered(see):
    seen = see("remembered", "overflow")
    assert seen["chosen"] == seen["again"] == "dark"


def test_the_graph_is_drawn_at_full_size_and_begins_with_its_origin(see):
    seen = see("graph_in_view", "overflow")
    for screen in ("desk", "phone"):
        assert seen[screen]["px"] >= 12
        assert seen[screen]["left"] >= 0 and seen[screen]["right"] <= seen[screen]["width"], seen
        assert seen[screen]["overlaps"] == []
        assert abs(seen[screen]["scrolled"] - seen[screen]["wanted"]) < 2
    assert seen["phone"]["wanted"] > 0, "it is wider than a phone"


@pytest.mark.parametrize("kind", ["overflow", "fault", "hostile", "long", "precision", "precision-hostile"])
def test_a_narrow_window_needs_no_sideways_scrolling(see, kind):
    assert see("narrow", kind)["wider"] <= 0


def test_the_scripts_pass_their_type_check(node):
    compiler = PACKAGES / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.is_file():
        pytest.skip("typescript is not there (tools/setup --for test)")
    done = subprocess.run([node, compiler, "-p", PACKAGES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_data_never_becomes_markup():
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style\""
    sources = sorted((PACKAGES / "src").glob("*.ts"))
    assert len(sources) > 10
    assert re.search(forbidden, 'a.innerHTML = "x"')
    assert [path.name for path in sources if re.search(forbidden, path.read_text())] == []


def test_the_lock_file_names_no_host_and_fits_the_package_file():
    lock = (PACKAGES / "package-lock.json").read_text()
    assert "resolved" not in lock and "http" not in re.sub(r'"url": "[^"]*"', "", lock)
    wanted = json.loads((PACKAGES / "package.json").read_text())
    locked = json.loads(lock)["packages"]
    for name, version in (wanted["dependencies"] | wanted["devDependencies"]).items():
        assert locked[f"node_modules/{name}"]["version"] == version
        assert "integrity" in locked[f"node_modules/{name}"]
