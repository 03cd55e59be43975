"""headwise show --mask."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.attention import Mask


def test_a_mask_is_drawn_on_the_terminal(headwise: Callable) -> None:
    done = headwise("show", "--mask", "causal & window(4)", "--length", "8")
    assert (done.code, done.err) == (0, "")
    assert done.out == Mask.window(4).picture(8, 8) + "\n"
    assert "7 · · · · ■ ■ ■ ■" in done.out


def test_keys_and_offset_are_alive(headwise: Callable) -> None:
    done = headwise("show", "--mask", "prefix(2)", "--length", "3", "--keys", "5")
    assert done.out == Mask.prefix(2).picture(3, 5) + "\n"
    done = headwise("show", "--mask", "prefix(2)", "--length", "3", "--keys", "5", "--offset", "0")
    assert done.out == Mask.prefix(2).picture(3, 5, 0) + "\n"


def test_documents_say_how_many_keys_there_are(headwise: Callable) -> None:
    result = json.loads(headwise("show", "--mask", "documents(0, 0, 1) & causal", "--json").out)
    assert (result["queries"], result["keys"], result["offset"]) == (3, 3, 0)
    assert result["sequences"] == [[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]


def test_without_sizes_eight_are_drawn(headwise: Callable) -> None:
    assert headwise("show", "--mask", "causal").out == Mask.causal().picture(8, 8) + "\n"


def test_json_has_a_table_per_sequence(headwise: Callable) -> None:
    arguments = ("--mask", "lengths(1, 2)", "--length", "1", "--keys", "3", "--json")
    assert json.loads(headwise("show", *arguments).out) == {
        "mask": "lengths(1, 2)",
        "sees": "the first t[b] keys of its sequence b (t holds 2 lengths)",
        "queries": 1,
        "keys": 3,
        "offset": 2,
        "sequences": [[[1, 0, 0]], [[1, 1, 0]]],
        "file": None,
    }


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_mask_is_drawn_to_a_file(headwise: Callable, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mask.{suffix}"
    done = headwise("show", "--mask", "causal & lengths(2, 5)", "--length", "5", "-o", path)
    assert done.out == f"drew the mask to {path}\n"
    if suffix == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    texts = [node.text for node in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert {"sequence 0", "sequence 1", "query", "key", "seen", "hidden"} <= set(texts)
    assert any(text and text.startswith("A query sees its own key") for text in texts)


def test_json_after_drawing_names_the_file(headwise: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mask.svg"
    done = headwise("show", "--mask", "causal", "-o", path, "--json")
    assert json.loads(done.out)["file"] == str(path)
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "show needs a model folder and --text: headwise show FOLDER --text"),
        (["somewhere"], "show needs --text"),
        (["--text", "a"], "show needs a model folder"),
        ([], "to draw a mask write: headwise show --mask 'causal & window(4)' --length 8"),
        (["somewhere", "--text", "a", "--length", "3"], "--length belongs to a mask, so give --mask as well"),
        (["somewhere", "--keys", "3"], "--keys belongs to a mask"),
        (["somewhere", "--offset", "0"], "--offset belongs to a mask"),
        (["somewhere", "--mask", "causal"], "the model folder belongs to a model's heads"),
        (
            ["--mask", "causal", "--text", "a"],
            "--text belongs to a model's heads, so leave it out with --mask",
        ),
        (["--mask", "causal", "--layer", "0"], "--layer belongs to"),
        (["--mask", "causal", "--head", "0"], "--head belongs to"),
        (["--mask", "causal", "--scale", "linear"], "--scale belongs to"),
        (["--mask", "causal", "--unknown", "error"], "--unknown belongs to"),
        (["--mask", "causal", "--device", "cpu"], "--device belongs to"),
        (["--mask", "causl"], "not understood at character 1, 'causl': did you mean causal?"),
        (["--mask", "causal", "--length", "-1"], "--length and --keys must be at least 0, got -1"),
        (["--mask", "causal", "--length", "100001"], "at most 100,000 queries and keys"),
        (["--mask", "causal", "--length", "2000", "--json"], "1,000,000 at most, got 4,000,000"),
        (["--mask", "documents(0, 1)", "--keys", "3"], "Mask.documents got ids of shape (2,) for S=3"),
        (["--mask", "causal", "-o", "a.gif"], "the name must end in .png or .svg"),
    ],
)
def test_mistakes_are_told_in_one_line(headwise: Callable, arguments: list[str], message: str) -> None:
    done = headwise("show", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
