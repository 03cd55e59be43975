"""What each way of grouping costs a model of transformers, without training: perplexity, minutes, memory.

    python bench/grouping.py --model FOLDER                       every method, to one key/value head
    python bench/grouping.py --model FOLDER --only closed,fitted  some
    python bench/grouping.py --model FOLDER --other FILE          measured on this text too; can be repeated
    python bench/grouping.py --model FOLDER --back                expanded and grouped back: what changes
    python bench/grouping.py --model FOLDER --uptrain 32768       and uptrained on so many tokens, in bfloat16
    python bench/grouping.py --model FOLDER --json FILE           also write the numbers

The text is Python's own `pydoc_data.topics`, its topics joined by blank lines. Tokens 20,000 to 24,096 are
what methods are calibrated on (--calibrate 16384 for more of them, from 20,000 on), tokens 60,000 to 62,048
what they are measured on, in rows of 512; of each other text its first 2,048 tokens. What they are uptrained
on are the tokens between, 1,024 a step, with AdamW at 2e-4 and KL to the parent. Times are of the
processor, with as many threads as OMP_NUM_THREADS says; memory is the peak of the process so far.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import resource
import sys
import time
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from headwise.compress import expand, group, uptrain
from headwise.compress.grouping import Method
from headwise.compress.rows import perplexity
from headwise.hub.surgery import head_counts, next_token_logits

ROW, STEP = 512, 1024
FROM, MEASURED = 20_000, (60_000, 62_048)


def main() -> None:
    parser = argparse.ArgumentParser(description="Grouping heads of a model, method by method.")
    parser.add_argument("--model", required=True, help="a folder of transformers")
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--only", default=",".join(get_args(Method)), help="methods, with commas")
    parser.add_argument("--calibrate", type=int, default=4096, help="tokens to calibrate on")
    parser.add_argument("--other", action="append", default=[], help="another text file to measure on")
    parser.add_argument("--back", action="store_true", help="expand to all heads, group back, compare logits")
    parser.add_argument("--uptrain", type=int, default=0, help="tokens to uptrain on; 0 for none")
    parser.add_argument("--json", help="file to write the numbers to")
    options = parser.parse_args()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokens = tokens_of(tokenizer, "\n\n".join(pydoc_data.topics.topics.values()))
    calibration = rows(tokens[FROM : FROM + options.calibrate])
    texts = {"topics": rows(tokens[slice(*MEASURED)])}
    for file in options.other:
        text = Path(file).read_text(encoding="utf-8")[:20_000]
        texts[Path(file).stem] = rows(tokens_of(tokenizer, text)[:2048])
    found: list[dict[str, Any]] = [{"method": "parent"} | perplexities(model, texts)]
    tell(found[-1])
    for method in options.only.split(","):
        start = time.process_time()
        if options.back:
            made = group(expand(model), head_counts(model)[0][1], method, calibration).model
            found.append(
                {"method": method, "largest change of a logit": change(model, made, texts["topics"])}
            )
        else:
            made = group(model, options.kv_heads, method, calibration).model
            found.append({"method": method, "minutes": round((time.process_time() - start) / 60, 1)})
            found[-1] |= {"MiB": peak_mib()} | perplexities(made, texts)
        tell(found[-1])
        if options.uptrain and not options.back:
            between = tokens[FROM + options.calibrate : MEASURED[0]]
            found += uptrained(made, model, between, options.uptrain, method, texts)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def uptrained(
    child: nn.Module,
    parent: nn.Module,
    tokens: Tensor,
    amount: int,
    method: str,
    texts: dict[str, list[Tensor]],
) -> list[dict[str, Any]]:
    """Uptrain, and return what it comes to after an eighth, a quarter, half and all of the tokens."""
    windows = tokens[: (len(tokens) - 1) // ROW * ROW + 1]
    ids, targets = windows[:-1].view(-1, ROW), windows[1:].view(-1, ROW)
    data = list(zip(ids.split(STEP // ROW), targets.split(STEP // ROW), strict=True))
    found, start = [], time.process_time()

    def mark(model: nn.Module, learned: int) -> None:
        spent = time.process_time() - start
        with torch.autocast("cpu", enabled=False):
            found.append({"method": method, "uptrained": learned, "minutes": round(spent / 60, 1)})
            found[-1] |= perplexities(model, texts)
        tell(found[-1])

    steps = -(-amount // STEP)
    recipe: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 2e-4}
    at = sorted({-(-steps // part) * STEP for part in (8, 4, 2, 1)})
    with torch.autocast("cpu", torch.bfloat16):
        uptrain(child, parent, data, tokens=amount, at=at, on_mark=mark, **recipe)
    return found


def tokens_of(tokenizer: Any, text: str) -> Tensor:
    """Return the tokens (T,) of a text; tokenizers warn of texts longer than a model's context."""
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"])


def rows(tokens: Tensor) -> list[Tensor]:
    """Cut tokens (T,) into rows (1, 512)."""
    return [row[None] for row in tokens.split(ROW)]


def perplexities(model: nn.Module, texts: dict[str, list[Tensor]]) -> dict[str, float]:
    return {name: round(perplexity(model, text), 2) for name, text in texts.items()}


@torch.no_grad()
def change(one: nn.Module, other: nn.Module, text: list[Tensor]) -> float:
    """Return the largest difference of a logit on a text."""
    return max(float((next_token_logits(one, r) - next_token_logits(other, r)).abs().max()) for r in text)


def peak_mib() -> int:
    """Return the most memory that this process has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> (20 if sys.platform == "darwin" else 10)


def tell(result: dict[str, Any]) -> None:
    print("  ".join(f"{name} {value}" for name, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
