"""headwise heads, headwise ablate, headwise compare-heads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from headwise.heads import ablate, compare, importance, roles, statistics
from headwise.heads.silencing import How
from headwise.heads.texts import sample_texts
from headwise.hub import open_subject
from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer
from headwise.text.corpus import Corpus

TEXT = "나는 학교에 간다. abc, abc; " * 8
LAYERS, HEADS, BLOCK = 2, 3, 16


def folder_of(folder: Path, seed: int) -> Path:
    tokenizer = Tokenizer.train("char", [TEXT])
    torch.manual_seed(seed)
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, n_layer=LAYERS, n_head=HEADS, d_model=12, block_size=BLOCK
    )
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)  # so that heads differ
    save_model(folder, model, tokenizer)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    return folder_of(place / "a", 0), folder_of(place / "b", 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def chosen(model: Path, texts: int = 16) -> tuple:  # type: ignore[type-arg]
    subject = open_subject(model)
    return subject, sample_texts(subject, Corpus.from_text(TEXT), texts=texts, length=BLOCK)


def last_json(done) -> dict:  # type: ignore[no-untyped-def, type-arg]
    return json.loads(done.out.splitlines()[-1])


@pytest.mark.parametrize("kind", ["--text", "--data"])
def test_heads_gives_the_librarys_own_numbers(headwise: Callable, models, data: Path, kind: str) -> None:  # type: ignore[no-untyped-def]
    given = TEXT if kind == "--text" else data
    found = last_json(headwise("heads", models[0], kind, given, "--device", "cpu", "--json"))
    subject, texts = chosen(models[0])
    table = statistics(subject, texts, repeated=True).table
    assert found["texts"] == len(texts)
    assert found["tokens"] == sum(map(len, texts))
    assert [row["previous"] for row in found["heads"]] == pytest.approx(table["previous"].tolist(), abs=1e-6)
    assert [row["induction"] for row in found["heads"]] == pytest.approx(
        table["induction"].tolist(), abs=1e-6
    )
    assert [row["role"] for row in found["heads"]] == roles(table)["role"].tolist()
    assert all(row["special"] is None for row in found["heads"])  # there are no special tokens


def test_heads_prints_every_head_with_its_role(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    lines = headwise("heads", models[0], "--data", data, "--quiet").out.splitlines()
    texts = chosen(models[0])[1]
    told = f"6 heads in 2 layers, on {len(texts)} texts of {sum(map(len, texts))} tokens in all"
    assert lines[0] == f"{models[0]}: {told}"
    assert lines[2] == "strength of each head, marked by its role"
    assert sum(line.startswith("  layer ") for line in lines) == LAYERS * HEADS


def test_heads_says_how_many_queries_it_looked_at(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = "heads", models[0], "--data", data, "--every", 4, "--quiet"
    found = last_json(headwise(*arguments, "--json"))
    subject, texts = chosen(models[0])
    result = statistics(subject, texts, every=4)
    assert found["every"] == 4
    assert found["queries"] == result.counts["entropy"][0] < found["tokens"] / 2
    assert [row["entropy"] for row in found["heads"]] == pytest.approx(
        result.table["entropy"].tolist(), abs=1e-6
    )
    assert f"; {found['queries']} queries looked at, one in 4" in headwise(*arguments).out


def test_heads_writes_tables_and_pictures_whole(
    headwise: Callable, models, data: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    for suffix in ("csv", "json"):
        table, picture = tmp_path / f"t.{suffix}", tmp_path / "grid.svg"
        done = headwise("heads", models[0], "--data", data, "-o", table, "--plot", picture, "--by", "entropy")
        assert f"wrote the statistics to {table}" in done.out
        read = pd.read_csv(table) if suffix == "csv" else pd.read_json(table)
        assert len(read) == LAYERS * HEADS
        assert {"layer", "head", "role", "entropy", "previous_uniform"} <= set(read.columns)
        assert "entropy of each head" in picture.read_text(encoding="utf-8")


def test_columns_are_explained(headwise: Callable, models) -> None:  # type: ignore[no-untyped-def]
    out = headwise("heads", models[0], "--columns").out
    assert "previous                 mass on the position before [share, over queries that see it]" in out
    assert "induction                on random tokens repeated once, the mass on what followed" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["heads", "{a}", "--by", "beauty"], "--by 'beauty' is not a statistic; there are strength, self"),
        (["heads", "{a}", "--by", "induction", "--no-repeated"], "leave out --no-repeated"),
        (["ablate", "{a}", "--measure", "output", "--importance"], "leave out --importance"),
        (["heads", "{a}", "--text", "abc", "--data", "{data}"], "give either --text or --data"),
        (["heads", "{a}", "--text", ""], "holds no text"),
        (["heads", "{a}", "--text", "xyz"], "'x'"),
        (["heads", "{a}", "--text", "xyz"], "give text of the kind that it was trained on"),
        (["heads", "{a}", "--data", ""], "the name of the text is empty"),
        (["heads", "{a}", "--data", "{data}", "-o", "{data}/t.csv"], "is not a folder"),
        (["heads", "{a}", "--data", "{data}", "--plot", "{data}/t.png"], "is not a folder"),
        (["heads", "{a}", "--data", "{data}", "-o", "{a}/config.json"], "is a part of the model"),
        (["ablate", "{a}", "--data", "{data}", "-o", "{a}/tokenizer.json"], "is a part of the model"),
        (["compare-heads", "{a}", "{b}", "--text", "abc", "-o", "{b}/config.json"], "is a part of the model"),
        (["compare-heads", "{a}", "{b}", "--text", "a"], "one token each"),
        (["heads", "{a}", "--texts", "0", "--data", "{data}"], "texts must be at least 1"),
        (["heads", "{a}", "--length", "1", "--data", "{data}"], "length must be at least 2"),
        (["heads", "{a}", "-o", "t.txt", "--data", "{data}"], "must end in .csv, .json, .parquet"),
        (["heads", "{a}", "--plot", "t.txt", "--data", "{data}"], "must end in .png or .svg"),
        (["heads", "{a}/nothing", "--data", "{data}"], "nothing"),
        (["ablate", "{a}", "--data", "{data}", "-o", "t.txt"], "must end in .csv, .json, .parquet"),
        (["ablate", "{a}", "--text", "a"], "at least 2 are needed"),
        (["compare-heads", "{a}", "{a}/nothing", "--data", "{data}"], "nothing"),
    ],
)
def test_mistakes_end_in_one_line(  # type: ignore[no-untyped-def]
    headwise: Callable, models, data: Path, arguments: list[str], says: str
) -> None:
    given = [part.format(a=models[0], b=models[1], data=data) for part in arguments]
    done = headwise(*given)
    assert done.code == 2
    assert says in done.err
    assert done.err.startswith("headwise: ")
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_ablate_gives_the_librarys_own_numbers(headwise: Callable, models, data: Path, how: How) -> None:  # type: ignore[no-untyped-def]
    arguments = "ablate", models[0], "--data", data, "--how", how, "--seed", "3", "--quiet", "--json"
    found = last_json(headwise(*arguments))
    subject, texts = chosen(models[0])
    measured = ablate(subject, texts, how=how, seed=3)
    agreement = measured.agreement(importance(subject, texts, how=how, seed=3))  # of what was done
    assert [row["delta"] for row in found["heads"]] == pytest.approx(
        measured.table["delta"].tolist(), abs=1e-6
    )
    assert [row["low"] for row in found["heads"]] == pytest.approx(measured.table["low"].tolist(), abs=1e-6)
    assert found["agreement"]["predicted"] == pytest.approx(agreement.predicted)
    assert found["baseline"]["all"] == pytest.approx(measured.baseline["all"], abs=1e-6)


def test_ablate_says_how_many_heads_matter(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    out = headwise("ablate", models[0], "--data", data, "--quiet", "--retrieval", "none").out
    assert "of 6 heads are missed (interval above 0)" in out
    assert "rank correlation with gradients:" in out
    told = "on retrieval: lost on tokens of random sequences that can only be looked up"
    assert told not in out
    assert told in headwise("ablate", models[0], "--data", data, "--quiet").out
    assert sum(line.startswith("  layer ") for line in out.splitlines()) == LAYERS * HEADS


def test_ablate_measures_what_it_is_asked_for(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = "ablate", models[0], "--data", data, "--measure", "output", "--quiet", "--json"
    plain, asked = last_json(headwise(*arguments)), last_json(headwise(*arguments, "--retrieval", "repeat"))
    assert all(row["delta_retrieval"] is None for row in plain["heads"])
    subject, texts = chosen(models[0])
    table = ablate(subject, texts, measure="output", retrieval="repeat").table
    assert [row["delta_retrieval"] for row in asked["heads"]] == pytest.approx(
        table["delta_retrieval"].tolist(), abs=1e-6
    )


def test_ablate_on_one_text_has_no_interval(headwise: Callable, models) -> None:  # type: ignore[no-untyped-def]
    found = last_json(
        headwise("ablate", models[0], "--text", "나는 학교에", "--quiet", "--json", "--no-importance")
    )
    assert all(row["low"] is None for row in found["heads"])
    assert found["agreement"] is None


def test_a_text_of_which_a_part_is_looked_at_is_told(headwise: Callable, models) -> None:  # type: ignore[no-untyped-def]
    text = "나는 학교에 " * 2
    whole = headwise("heads", models[0], "--text", text, "--length", len(text), "--texts", "1")
    assert whole.err == ""
    part = headwise("heads", models[0], "--text", text, "--length", "8", "--texts", "1")
    assert part.err == (
        f"note: --text has {len(text)} tokens, of which 8 are looked at; --length takes longer texts\n"
    )


def test_few_queries_are_said_to_be_few(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    out = headwise("heads", models[0], "--text", "나는").out
    assert "on 1 text of 2 tokens in all" in out
    assert "note: roles rest on what 2 queries look at" in out
    assert "note:" not in headwise("heads", models[0], "--data", data, "--quiet").out


def test_ablate_goes_on_from_its_folder_and_refuses_another_sweep(  # type: ignore[no-untyped-def]
    headwise: Callable, models, data: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    first = last_json(headwise("ablate", models[0], "--data", data, "--work", work, "--quiet", "--json"))
    again = last_json(headwise("ablate", models[0], "--data", data, "--work", work, "--quiet", "--json"))
    assert first == again
    done = headwise("ablate", models[0], "--data", data, "--work", work, "--how", "mean")
    assert done.code == 2
    assert "other settings" in done.err


def test_compare_heads_gives_the_librarys_own_numbers(headwise: Callable, models, data: Path) -> None:  # type: ignore[no-untyped-def]
    found = last_json(headwise("compare-heads", *models, "--data", data, "--quiet", "--json"))
    subject, texts = chosen(models[0])
    table = compare(subject, open_subject(models[1]), texts)
    assert [row["map_distance"] for row in found["heads"]] == pytest.approx(
        table["map_distance"].tolist(), abs=1e-6
    )
    same = last_json(headwise("compare-heads", models[0], models[0], "--data", data, "--quiet", "--json"))
    assert all(math.isclose(row["map_distance"], 0.0, abs_tol=1e-3) for row in same["heads"])
    assert all(row["change_entropy"] == 0 for row in same["heads"])
    assert "moved most" in headwise("compare-heads", *models, "--data", data, "--quiet").out


def test_a_table_never_takes_the_place_of_the_text(headwise: Callable, models, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = tmp_path / "text.csv"
    text.write_text(TEXT, encoding="utf-8")
    done = headwise("heads", models[0], "--data", text, "-o", text)
    assert done.code == 2
    assert "would be lost" in done.err
    assert text.read_text(encoding="utf-8") == TEXT


def small(folder: Path, text: str, heads: int, factor: float = 1.0) -> Path:
    tokenizer = Tokenizer.train("char", [text])
    config = GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=1, n_head=heads, d_model=8, block_size=8)
    model = GPT(config)
    with torch.no_grad():
        model.token_embedding.weight.mul_(factor)
    save_model(folder, model, tokenizer)
    return folder


def test_what_json_has_no_number_for_is_null(headwise: Callable, tmp_path: Path) -> None:
    done = headwise("ablate", small(tmp_path / "one", "abcd", 1), "--text", "abcdab", "--json")
    result = json.loads(done.out.splitlines()[-1], parse_constant=pytest.fail)
    assert result["agreement"] == {"importance": None, "predicted": None}  # one head has no rank
    assert result["baseline"]["punctuation"] is None


def test_a_vocabulary_too_small_for_repeated_tokens_leaves_their_scores_out(
    headwise: Callable, tmp_path: Path
) -> None:
    done = headwise("heads", small(tmp_path / "ab", "ab", 2), "--text", "abab", "--json")
    assert done.code == 0
    heads = last_json(done)["heads"]
    assert {head["induction"] for head in heads} == {None}
    assert None not in {head["previous"] for head in heads}


@pytest.mark.parametrize("verb", ["heads", "ablate", "compare-heads", "view"])
def test_weights_that_are_not_numbers_are_one_line(headwise: Callable, tmp_path: Path, verb: str) -> None:
    model = small(tmp_path / "nan", "abcd", 2, math.nan)
    both = [model, model] if verb == "compare-heads" else [model]
    to = ["-o", tmp_path / "page.html"] if verb == "view" else []
    done = headwise(verb, *both, "--text", "abcdab", *to)
    assert done.code == 2
    assert "NaN" in done.err
    assert done.err.startswith("headwise: ")
    assert done.err.count("\n") == 1
