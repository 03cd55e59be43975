"""headwise group, headwise prune, headwise export, headwise import."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headwise.cli.subjects import calibration_rows
from headwise.compress.rows import losses
from headwise.hub import open_subject
from headwise.hub.dtypes import in_dtype
from headwise.hub.export import save_transformers, tokenizer_of
from headwise.hub.origin import head_numbers, origin_of, teacher_of, write_origin
from headwise.hub.surgery import head_counts
from headwise.model import GPT, GPTConfig, load_model, save_model
from headwise.text import Tokenizer

TEXT = "나는 학교에 간다. abc, abc; " * 8
NUMBERS = ["--tokens", "60", "--held-out", "40"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train("char", [TEXT])
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, d_model=16, block_size=16)
    folder = tmp_path_factory.mktemp("models") / "a"
    save_model(folder, GPT(config), tokenizer)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def last_json(done) -> dict:  # type: ignore[no-untyped-def, type-arg]
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def test_group_writes_a_model_with_fewer_key_value_heads(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "slim"
    result = last_json(
        headwise(
            "group",
            model,
            "--kv-heads",
            "2,1",
            "--method",
            "mean",
            "--data",
            data,
            *NUMBERS,
            "-o",
            out,
            "--json",
        )
    )
    made, _ = load_model(out)
    assert head_counts(made) == [(4, 2), (4, 1)]
    assert result["n_kv_head"] == [2, 1]
    assert result["cache_share"] == 3 / 8
    assert result["loss_before"] != result["loss_after"]


def test_group_measures_all_methods_and_keeps_the_best(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    done = headwise(
        "group", model, "--cache", "0.5", "--data", data, *NUMBERS, "-o", tmp_path / "slim", "--json"
    )
    result = last_json(done)
    assert len(result["candidates"]) == 7
    assert (
        min(result["candidates"], key=result["candidates"].get) == f"{result['method']}, {result['groups']}"
    )
    assert result["cache_share"] <= 0.5
    assert done.err.splitlines() == [
        f"{name}: loss {loss:.4f}" for name, loss in result["candidates"].items()
    ]
    quiet = headwise(
        *(
            "group",
            model,
            "--cache",
            "0.5",
            "--data",
            data,
            *NUMBERS,
            "-o",
            tmp_path / "quiet",
            "--json",
            "-q",
        )
    )
    assert (quiet.code, quiet.err) == (0, "")


def test_the_loss_told_is_of_text_that_auto_did_not_choose_by(
    headwise: Callable, model: Path, tmp_path: Path
) -> None:
    # whatever is held out, the choice stays
    found = []
    for end in (TEXT[60:], TEXT[60:][::-1]):
        data = tmp_path / f"{len(found)}.txt"
        data.write_text(TEXT[:60] + end, encoding="utf-8")
        out = tmp_path / f"slim{len(found)}"
        numbers = ["--tokens", "48", "--held-out", "40"]
        found.append(
            last_json(
                headwise("group", model, "--kv-heads", "1", "--data", data, *numbers, "-o", out, "--json")
            )
        )
    assert found[0]["candidates"] == found[1]["candidates"]
    assert found[0]["loss_after"] != found[1]["loss_after"]


def test_prune_takes_out_the_named_heads(headwise: Callable, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "slim"
    result = last_json(
        headwise("prune", model, "--heads", "0.3, 1.0,1.1", "--data", data, *NUMBERS, "-o", out, "--json")
    )
    assert result["removed"] == ["0.3", "1.0", "1.1"]
    made, _ = load_model(out)
    assert head_counts(made) == [(3, 3), (2, 2)]


@pytest.mark.parametrize(
    "options", [["prune", "--heads", "0.1"], ["prune", "--count", "1"], ["group", "--cache", "0.5"]]
)
def test_damaged_weights_are_refused_and_nothing_is_written(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, options: list[str]
) -> None:
    gpt, tokenizer = load_model(model)
    with torch.no_grad():
        gpt.blocks[0].attention.q_proj.weight[0, 0] = float("nan")
    save_model(tmp_path / "broken", gpt, tokenizer)
    done = headwise(
        options[0], tmp_path / "broken", *options[1:], "--data", data, *NUMBERS, "-o", tmp_path / "x"
    )
    assert done.code == 2
    assert "broken gives numbers that are not finite" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_advice_about_a_number_that_cannot_be_met_is_about_what_was_said(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    base = ("prune", model, "--count", "8", "--data", data, *NUMBERS, "-o", tmp_path / "x")
    free = headwise(*base, "--protect", "none")
    assert free.err.endswith("parts of 1 heads, and 6 is the nearest below; ask for that\n")
    some = headwise(*base, "--protect", "0.0,0.1,0.2")
    assert some.err.endswith("and 4 is the nearest below; ask for that, or protect fewer heads\n")


@pytest.mark.parametrize("options", [["prune", "--count", "1"], ["group", "--kv-heads", "1"]])
def test_an_encoder_is_told_what_can_be_done_with_its_heads(
    headwise: Callable, model: Path, tmp_path: Path, options: list[str]
) -> None:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = tokenizer_of(load_model(model)[1], 16)
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)
    save_transformers(tmp_path / "bert", transformers.BertForMaskedLM(config), tokenizer)
    done = headwise(options[0], tmp_path / "bert", *options[1:], "-o", tmp_path / "x")
    assert done.code == 2
    assert "bert does not predict the next token, and heads can be merged or taken out of models" in done.err
    assert "headwise ablate says what its heads are worth" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["group", "prune", "export"])
def test_a_model_stored_in_bfloat16_stays_in_bfloat16(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, verb: str
) -> None:
    gpt, tokenizer = load_model(model)
    save_model(tmp_path / "half", in_dtype(gpt, torch.bfloat16), tokenizer)
    options = {"group": ["--kv-heads", "2", "--method", "mean"], "prune": ["--heads", "0.1"], "export": []}
    more = [] if verb == "export" else ["--data", data, *NUMBERS, "--json"]
    done = headwise(verb, tmp_path / "half", *options[verb], *more, "-o", tmp_path / "made")
    assert done.code == 0, done.err
    made = open_subject(tmp_path / "made")
    assert made.stored_dtype == torch.bfloat16
    if verb == "group":  # the loss is of the weights as they were written
        _, unseen = calibration_rows(made, str(tmp_path / "made"), str(data), 60, 40)
        assert last_json(done)["loss_after"] == pytest.approx(
            float(losses(made.model, unseen).mean()), abs=1e-6
        )


@pytest.mark.parametrize("by", ["importance", "ablation"])
def test_prune_counts_heads_and_leaves_the_protected(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, by: str
) -> None:
    options = ["--count", "3", "--by", by, "--protect", "0.0,0.1,1.3", "--data", data, *NUMBERS, "--json"]
    result = last_json(headwise("prune", model, *options, "-o", tmp_path / "slim"))
    assert len(result["removed"]) == 3
    assert not set(result["removed"]) & {"0.0", "0.1", "1.3"}
    assert result["protected"] == ["0.0", "0.1", "1.3"]


def test_heads_keep_their_numbers_however_often_others_are_taken_out(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    one, two, page = tmp_path / "one", tmp_path / "two", tmp_path / "page.html"
    last_json(
        headwise("prune", model, "--heads", "0.1,1.0", "--data", data, *NUMBERS, "-o", one, "--json", "-q")
    )
    last_json(headwise("prune", one, "--heads", "0.1", "--data", data, *NUMBERS, "-o", two, "--json", "-q"))
    assert head_numbers(model) is None
    assert head_numbers(one) == {0: [0, 2, 3], 1: [1, 2, 3]}
    assert head_numbers(two) == {0: [0, 3], 1: [1, 2, 3]}
    last_json(headwise("view", two, "--text", "abc", "--beside", model, "-o", page, "--json"))
    written = page.read_text(encoding="utf-8")
    for heads in ("[0,3]", "[1,2,3]", "[0,1,2,3]"):
        assert f'"heads":{heads}' in written
    (two / "made_from.json").write_text('{"parent": "one", "heads": [1]}')
    assert "is damaged" in headwise("view", two, "--text", "abc", "-o", page).err


@pytest.mark.parametrize("verb", ["heads", "ablate"])
def test_heads_are_told_with_the_numbers_they_had_before_others_were_taken_out(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, verb: str
) -> None:
    for source, name, gone in ((model, "one", "0.1,1.3"), (tmp_path / "one", "two", "0.0")):
        done = headwise("prune", source, "--heads", gone, "--data", data, *NUMBERS, "-o", tmp_path / name)
        assert done.code == 0, done.err
    look = (verb, tmp_path / "two", "--data", data, "--texts", "2", "--length", "16", "-q")
    told = headwise(*look).out
    line = f"heads are numbered as they are now; in {model}, as in headwise view, 0.0 was 0.2, 0.1 was 0.3\n"
    assert line in told
    rows = last_json(headwise(*look, "--json"))["heads"]
    assert [(row["layer"], row["head"], row["head_before"]) for row in rows] == [
        *((0, 0, 2), (0, 1, 3)),
        *((1, 0, 0), (1, 1, 1), (1, 2, 2)),
    ]
    whole = (verb, model, *look[2:])
    assert "numbered" not in headwise(*whole).out
    assert "head_before" not in last_json(headwise(*whole, "--json"))["heads"][0]
    origin = tmp_path / "two" / "made_from.json"
    origin.write_text('{"parent": "../one", "heads": {"0": [1, 2, 3], "1": [0, 1, 2]}}')
    done = headwise(*look)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "made_from.json names 3 heads of layer 0, which has 2" in done.err


def test_two_models_head_by_head_with_the_numbers_their_heads_had(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    slim = tmp_path / "slim"
    done = headwise("prune", model, "--heads", "0.0,1.1", "--data", data, *NUMBERS, "-o", slim)
    assert done.code == 0, done.err
    look = ("--data", data, "--texts", "2", "--length", "16", "-q")
    line = f"heads of {slim} are numbered as they are now; in {model}, as in headwise view, 0.0 was 0.1, "
    note = "heads of the same number now are compared, whatever numbers they had\n"
    for pair in ((model, slim), (slim, model)):
        told = headwise("compare-heads", *pair, *look).out
        assert line in told
        assert note in told
    rows = last_json(headwise("compare-heads", model, slim, *look, "--json"))["heads"]
    left = {0: [1, 2, 3], 1: [0, 2, 3]}
    for row in rows:
        assert "head_before" not in row
        for match in ("map_match", "output_match"):
            assert row[f"{match}_before"] == left[row["layer"]][int(row[match])]
    assert rows[1]["map_match_before"] == 1  # the first layer reads the same, so head 0.1 finds itself
    rows = last_json(headwise("compare-heads", slim, model, *look, "--json"))["heads"]
    assert [row["head_before"] for row in rows] == [*left[0], *left[1]]
    assert note not in headwise("compare-heads", model, model, *look).out


def test_export_and_import_come_back_to_the_same_model(
    headwise: Callable, model: Path, tmp_path: Path
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    assert headwise("export", model, "-o", there).code == 0
    assert headwise("import", there, "-o", back).code == 0
    ours, stock, again = (open_subject(folder) for folder in (model, there, back))
    ids = ours.encode("나는 abc")
    assert stock.encode("나는 abc") == ids
    with torch.no_grad():
        logits = [subject.run(subject.batch([ids])) for subject in (ours, stock, again)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[2], logits[0], atol=1e-5, rtol=0)


def test_export_and_import_keep_the_parent_and_the_numbers_of_heads(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    slim, there, back = tmp_path / "slim", tmp_path / "sub" / "there", tmp_path / "back"
    taken = headwise("prune", model, "--heads", "0.1,0.2,1.0,1.3", "--data", data, *NUMBERS, "-o", slim, "-q")
    assert taken.code == 0, taken.err
    assert headwise("export", slim, "-o", there).code == 0
    assert headwise("import", there, "-o", back).code == 0
    for folder in (there, back):
        assert head_numbers(folder) == {0: [0, 3], 1: [1, 2]}
        assert Path(str(origin_of(folder))).resolve() == model.resolve()
    write_origin(slim, "a/name", learned_from="../gone")
    headwise("export", slim, "-o", tmp_path / "sub" / "named")
    assert (origin_of(tmp_path / "sub" / "named"), teacher_of(tmp_path / "sub" / "named")) == (
        "a/name",
        str(tmp_path / "gone"),
    )
    (slim / "made_from.json").write_text("{}")
    done = headwise("export", slim, "-o", tmp_path / "no")
    assert "made_from.json is damaged" in done.err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("heads", ["0.1,1.0", "0.1,0.2"])
@torch.no_grad()
def test_export_fills_up_heads_that_no_stock_class_holds(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, heads: str
) -> None:
    slim, there = tmp_path / "slim", tmp_path / "there"
    assert headwise("prune", model, "--heads", heads, "--data", data, *NUMBERS, "-o", slim).code == 0
    done = headwise("export", slim, "-o", there)
    assert "note: stock classes hold one number of heads" in done.out
    assert "filled up to 4 query heads and 4 key/value heads" in done.out
    ours, stock = (open_subject(folder) for folder in (slim, there))
    ids = ours.encode("나는 abc")
    logits = [subject.run(subject.batch([ids])) for subject in (ours, stock)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)
    assert head_numbers(there) is None
    assert Path(str(origin_of(there))).resolve() == model.resolve()
    slimmer = headwise("prune", there, "--heads", "0.0,1.0", "--data", data, *NUMBERS, "-o", tmp_path / "hf")
    assert "note: stock classes hold" in slimmer.out, slimmer.err


@pytest.mark.parametrize("by", ["ablation", "greedy", "random"])
def test_prune_takes_heads_out_in_rounds_and_lets_the_model_learn(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, by: str
) -> None:
    options = ["--count", "4", "--by", by, "--steps", "2", "--protect", "0.0", "--data", data, *NUMBERS, "-q"]
    plain = last_json(headwise("prune", model, *options, "-o", tmp_path / "plain", "--json"))
    assert [len(part["removed"]) for part in plain["rounds"]] == [2, 2]
    assert sorted(name for part in plain["rounds"] for name in part["removed"]) == plain["removed"]
    assert "0.0" not in plain["removed"]
    assert plain["rounds"][-1]["loss"] == plain["loss_after"]
    assert sum(h for h, _ in head_counts(load_model(tmp_path / "plain")[0])) == 4
    learned = headwise("prune", model, *options, "--recover", "200", "-o", tmp_path / "learned", "--json")
    result = last_json(learned)
    assert result["recovered_on"] == 200
    assert result["loss_after"] < plain["loss_after"]  # the text is short, and learned by heart


def test_heads_that_look_things_up_are_protected(
    headwise: Callable, make_recaller: Callable, tmp_path: Path
) -> None:
    subject = make_recaller()
    save_model(tmp_path / "recalls", subject.gpt, subject.tokenizer)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox 12 jumps over.\n the lazy dog sits there. " * 4, encoding="utf-8")
    options = ["--count", "4", "--data", text, "--tokens", "100", "--held-out", "100", "-q", "--json"]
    result = last_json(headwise("prune", tmp_path / "recalls", *options, "-o", tmp_path / "kept"))
    assert result["protected"] == ["1.0"]
    given = last_json(
        headwise("prune", tmp_path / "recalls", *options, "--protect", "none", "-o", tmp_path / "any")
    )
    assert given["protected"] == []


def test_group_keeps_a_hugging_face_model_in_its_class(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    there, out = tmp_path / "there", tmp_path / "slim"
    headwise("export", model, "-o", there)
    options = ["--kv-heads", "1", "--method", "closed", "--data", data, *NUMBERS, "-o", out]
    assert headwise("group", there, *options).code == 0
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["group", "{model}"], "either --kv-heads 2, or --cache 0.25"),
        (["group", "{model}", "--kv-heads", "2", "--cache", "0.5"], "either --kv-heads 2, or --cache 0.25"),
        (["group", "{model}", "--kv-heads", "two"], "must be a number or numbers with commas"),
        (["group", "{model}", "--kv-heads", "3"], "3"),
        (["group", "{model}", "--cache", "0.01"], "share=0.01"),
        (["prune", "{model}"], "either --count 8, or --heads 0.3,2.1"),
        (["prune", "{model}", "--count", "0"], "--count must be at least 1"),
        (["prune", "{model}", "--heads", "0.1", "--steps", "2"], "--steps ranks heads anew"),
        (["prune", "{model}", "--count", "2", "--steps", "3"], "steps must lie in 1 … 2, got 3"),
        (["prune", "{model}", "--count", "1", "--recover", "0"], "--recover must be at least 1, got 0"),
        (["prune", "{model}", "--heads", "0-1"], "layer.head with commas"),
        (["prune", "{model}", "--heads", "7.0"], "heads names layer 7"),
        (["prune", "{model}", "--heads", "0.1,0.2,0.1"], "--heads names 0.1 twice; name each head once"),
        (["prune", "{model}", "--heads", "0.1", "--protect", "0.1"], "protected"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    headwise: Callable, model: Path, data: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    given = [part.format(model=model) for part in arguments]
    done = headwise(*given, "--data", data, *NUMBERS, "-o", tmp_path / "slim")
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "slim").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--heads", "0.0", "--by", "greedy"),
            "--by is about which heads to choose; leave it out with --heads",
        ),
        (("--heads", "0.0", "--rule", "groups", "--uniform"), "--rule, --uniform is about which heads"),
        (("--count", "1", "--seed", "3"), "--seed is for --by random and for --recover"),
        (("--count", "1", "--by", "random", "--seed", "-1"), "--seed must be from 0 to 2^63 - 1, got -1"),
    ],
)
def test_options_of_prune_that_would_do_nothing_are_refused(
    options: tuple[str, ...], message: str, headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    done = headwise("prune", model, *options, "--data", data, *NUMBERS, "-o", tmp_path / "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err


def test_a_model_with_damaged_weights_is_not_grouped(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    broken, tokenizer = load_model(model)
    with torch.no_grad():
        broken.blocks[0].attention.q_proj.weight[0, 0] = float("nan")  # type: ignore[union-attr, index, operator]
    save_model(tmp_path / "broken", broken, tokenizer)
    for method in ("auto", "mean"):
        options = ("--kv-heads", "1", "--method", method, "--data", data, *NUMBERS)
        done = headwise("group", tmp_path / "broken", *options, "-o", tmp_path / "out")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "broken gives numbers that are not finite" in done.err
    assert not (tmp_path / "out").exists()


def test_a_model_that_lost_all_heads_has_none_to_group(
    headwise: Callable, model: Path, data: Path, tmp_path: Path
) -> None:
    every = ",".join(f"{layer}.{head}" for layer in range(2) for head in range(4))
    done = headwise("prune", model, "--heads", every, "--data", data, *NUMBERS, "-o", tmp_path / "none")
    assert done.code == 0, done.err
    for how in (("--kv-heads", "1"), ("--cache", "0.5")):
        done = headwise("group", tmp_path / "none", *how, "--data", data, *NUMBERS, "-o", tmp_path / "out")
        assert done.code == 2
        assert "all layers of the model have lost their heads" in done.err


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    headwise: Callable, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for verb in (("group", model, "--kv-heads", "1"), ("prune", model, "--count", "1")):
        done = headwise(*verb, "--data", tmp_path / "nothing-is-read", "-o", tmp_path / "file" / "out")
        assert done.code == 2
        assert "file is not a folder" in done.err


def test_nothing_is_written_over(headwise: Callable, model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "slim").mkdir()
    (tmp_path / "slim" / "precious.txt").write_text("mine")
    for verb, *more in (["group", "--kv-heads", "1"], ["prune", "--count", "1"], ["export"], ["import"]):
        done = headwise(verb, model, *more, "-o", tmp_path / "slim")
        assert done.code == 2
        assert "is there already" in done.err
    assert [file.name for file in (tmp_path / "slim").iterdir()] == ["precious.txt"]


def test_too_little_text_is_refused(headwise: Callable, model: Path, data: Path, tmp_path: Path) -> None:
    done = headwise("group", model, "--kv-heads", "1", "--data", data, "-o", tmp_path / "slim")
    assert done.code == 2
    such = re.search(r"give more text or smaller numbers, such as (--tokens \d+) (--held-out \d+)$", done.err)
    assert such is not None
    numbers = [part for option in such.groups() for part in option.split()]
    done = headwise("group", model, "--kv-heads", "1", "--data", data, *numbers, "-o", tmp_path / "slim")
    assert done.code == 0, done.err
