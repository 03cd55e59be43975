"""headwise cost: what a model costs, by formula and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwise.cli.result import print_json

if TYPE_CHECKING:
    from headwise.cost import Architecture, Workload

_SIZES = "Sizes, where no model is given"
_DTYPES = Literal["fp64", "fp32", "bf16", "fp16"]


def cost(
    model: Annotated[
        Path | None,
        typer.Argument(help="A model folder of headwise, or a Hugging Face config.json or its folder."),
    ] = None,
    d_model: Annotated[
        int | None, typer.Option(help="D: width of the model.", rich_help_panel=_SIZES)
    ] = None,
    n_head: Annotated[
        str | None,
        typer.Option(help="H: query heads; one number, or one per layer: 8,8,4.", rich_help_panel=_SIZES),
    ] = None,
    n_kv_head: Annotated[
        str | None,
        typer.Option(
            help="G: number of key/value heads, also per layer. Default: H.", rich_help_panel=_SIZES
        ),
    ] = None,
    d_head: Annotated[
        int | None, typer.Option(help="K: width of a head. Default: D / H.", rich_help_panel=_SIZES)
    ] = None,
    n_layer: Annotated[
        int | None, typer.Option(help="L: number of layers. Default: 1.", rich_help_panel=_SIZES)
    ] = None,
    d_ff: Annotated[
        int | None,
        typer.Option(help="Hidden width of the feed-forward part. Default: none.", rich_help_panel=_SIZES),
    ] = None,
    mlp: Annotated[
        Literal["swiglu", "gelu"] | None,
        typer.Option(help="Kind of the feed-forward part. Default: swiglu.", rich_help_panel=_SIZES),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Tokens; without it no embeddings are counted.", rich_help_panel=_SIZES),
    ] = None,
    tied_embeddings: Annotated[
        bool | None,
        typer.Option(help="The output layer reuses the embedding. Default: no.", rich_help_panel=_SIZES),
    ] = None,
    norm: Annotated[
        Literal["none", "rms", "layer"] | None,
        typer.Option(help="Kind of the norms. Default: none.", rich_help_panel=_SIZES),
    ] = None,
    bias: Annotated[
        bool | None,
        typer.Option(help="Biases in every matrix and layer norm. Default: no.", rich_help_panel=_SIZES),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Keys a query sees at most, itself included. Default: all.", rich_help_panel=_SIZES
        ),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(help="Rows of a learned table of positions. Default: none.", rich_help_panel=_SIZES),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="T: tokens. Default: the model's context, or 1024.")
    ] = None,
    batch: Annotated[int, typer.Option(help="B: sequences at once.")] = 1,
    dtype: Annotated[
        _DTYPES | None, typer.Option(help="Of weights and activations. Default: the model's own, or fp16.")
    ] = None,
    state_dtype: Annotated[
        _DTYPES | None,
        typer.Option(help="Of weights, gradients and moments in training. Default: --dtype."),
    ] = None,
    cache_dtype: Annotated[
        Literal["fp64", "fp32", "bf16", "fp16", "fp8", "int8", "int4"] | None,
        typer.Option(help="Of cached keys and values. Default: --dtype."),
    ] = None,
    cache_scales: Annotated[
        Literal["none", "layer", "token-head"] | None,
        typer.Option(help="fp32 scales of the cache. Default: token-head for int8 and int4, layer for fp8."),
    ] = None,
    cache_block: Annotated[int, typer.Option(help="The cache grows in blocks of this many tokens.")] = 1,
    memory: Annotated[
        str | None, typer.Option(help="Say which context and batch fit this much, for example 24GiB.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another model: print the costs of both, each in its own dtype, side by side."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw costs over heads and length to this .png or .svg file.")
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="List heads (H, G, d_head) that fit --cache-budget.")
    ] = False,
    cache_budget: Annotated[
        str | None, typer.Option(help="Most that the cache may take, for --advise: 1GiB.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Build the model at a size that fits and measure what is predicted."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no tables.")] = False,
) -> None:
    """What a model costs: parameters, memory, FLOPs; by formula and measured.

    From a model (MODEL) or from sizes (--d-model, --n-head …). All is computed by formula, so any size can
    be asked for; bytes are exact. With --verify the formulas are held against a real model.
    """
    if plot is not None:
        from headwise.report.figures import check_picture

        check_picture(plot)
    if advise != (cache_budget is not None):
        raise ValueError("--advise and --cache-budget belong together: --advise --cache-budget 1GiB")

    from dataclasses import replace

    from headwise.cost import Workload, read_architecture

    sizes = {
        "d_model": d_model,
        "n_head": _counts("--n-head", n_head),
        "n_kv_head": _counts("--n-kv-head", n_kv_head),
        "d_head": d_head,
        "n_layer": n_layer,
        "d_ff": d_ff,
        "gated": None if mlp is None else mlp == "swiglu",
        "vocab_size": vocab_size,
        "tied": tied_embeddings,
        "norm": norm,
        "bias": bias,
        "window": window,
        "positions": positions,
    }
    architecture, own_dtype = _architecture(model, sizes, needed=not advise, verify=verify)
    compared, other_dtype = (None, None) if against is None else read_architecture(against)
    workload = Workload(
        batch=batch,
        length=_usual_length(architecture) if length is None else length,
        dtype=dtype or own_dtype or other_dtype or "fp16",
        state_dtype=state_dtype,
        cache_dtype=cache_dtype,
        cache_scales=cache_scales,
        cache_block=cache_block,
    )
    result: dict[str, Any] = {}
    lines: list[str] = []
    if architecture is not None:
        other = None
        if compared is not None:
            other = compared, replace(workload, dtype=dtype or other_dtype or workload.dtype)
        _costs(architecture, workload, memory, other, result, lines)
    if advise:
        wide = architecture.d_model if architecture else d_model
        layers = architecture.n_layer if architecture else n_layer or 1
        _advice(wide, str(cache_budget), workload, layers, result, lines)
    if plot is not None:
        _draw(architecture, workload, plot, result, lines)
    agree = _verify(architecture, workload, result, lines) if verify and architecture else True
    if as_json:
        print_json(result)
    else:
        typer.echo("\n".join(lines))
    if not agree:
        raise typer.Exit(1)


def _architecture(
    model: Path | None, sizes: dict[str, Any], *, needed: bool, verify: bool
) -> tuple[Architecture | None, str | None]:
    """The architecture and dtype of the model or the sizes; None if neither is given and none is needed."""
    from headwise.cost import from_config, from_sizes, read_architecture

    given = {name: value for name, value in sizes.items() if value is not None}
    if model is not None:
        if given:
            flags = ", ".join(_flag(name) for name in given)
            raise ValueError(f"give either a model or sizes, not both: {model} and {flags}")
        return read_architecture(model)
    if "n_head" in given and "d_model" in given:
        _check_companions(given)
        return from_sizes(**given), None
    if not given and verify:
        from headwise.model import PRESETS, GPTConfig

        return from_config(
            GPTConfig(vocab_size=256, **PRESETS["gpt"].model_dump()), name="preset gpt"
        ), "fp32"
    if needed:
        raise ValueError(
            "say what to count: a model folder or config.json, or at least --d-model and --n-head"
        )
    if "d_model" not in given:
        raise ValueError("--advise needs the width of the model: give --d-model or a model")
    return None, None


def _check_companions(given: dict[str, Any]) -> None:
    """Refuse options that have nothing to act on."""
    for flag, needs in (("gated", "d_ff"), ("tied", "vocab_size")):
        if flag in given and needs not in given:
            raise ValueError(f"{_flag(flag)} has no effect without {_flag(needs)}")


def _flag(name: str) -> str:
    names = {"gated": "mlp", "tied": "tied-embeddings"}
    return "--" + names.get(name, name).replace("_", "-")


def _counts(flag: str, text: str | None) -> int | list[int] | None:
    """One number, or a list with one for each layer."""
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{flag} must be a whole number, or one for each layer as in 8,8,4, got {text!r}"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _usual_length(architecture: Architecture | None) -> int:
    return architecture.context if architecture and architecture.context else 1024


def _costs(
    architecture: Architecture,
    workload: Workload,
    memory: str | None,
    against: tuple[Architecture, Workload] | None,
    result: dict[str, Any],
    lines: list[str],
) -> None:
    from dataclasses import asdict

    from headwise.cost import compare, estimate, fits
    from headwise.cost.numbers import read_bytes
    from headwise.report.cost_tables import change_lines, cost_lines, fit_lines

    costs = estimate(architecture, workload)
    result.update(costs.to_json())
    if against is None:
        lines.extend(cost_lines(architecture, costs))
    else:
        other = estimate(*against)
        changes = {change.cost: change.to_json() for change in compare(costs, other)}
        result["against"] = {"name": other.name, "dtype": other.workload.dtype} | changes
        lines.extend(change_lines((architecture, costs), (against[0], other)))
    if memory is not None:
        found = fits(architecture, workload, read_bytes("--memory", memory))
        result["fits"] = [asdict(fit) for fit in found]
        lines.extend(fit_lines(found, costs))


def _advice(
    d_model: int | None,
    budget: str,
    workload: Workload,
    n_layer: int,
    result: dict[str, Any],
    lines: list[str],
) -> None:
    from headwise.cost import advise
    from headwise.cost.numbers import read_bytes
    from headwise.report.cost_tables import advice_lines

    candidates = advise(d_model or 0, read_bytes("--cache-budget", budget), workload, n_layer=n_layer)
    result["advice"] = [candidate.to_json() for candidate in candidates]
    lines += ([""] if lines else []) + list(advice_lines(candidates))


def _draw(
    architecture: Architecture | None,
    workload: Workload,
    plot: Path,
    result: dict[str, Any],
    lines: list[str],
) -> None:
    from headwise.cost import sweep_from
    from headwise.report.cost_curves import cost_curves
    from headwise.report.figures import save_figure

    if architecture is None:
        raise ValueError("--plot draws from a model or from --d-model and --n-head; give one of them")
    save_figure(cost_curves(sweep_from(architecture, workload)), plot)
    result["plot"] = str(plot)
    lines += ["", f"drew the curves to {plot}"]


def _verify(architecture: Architecture, workload: Workload, result: dict[str, Any], lines: list[str]) -> bool:
    from headwise.cost.own import to_config
    from headwise.cost.verification import size_that_fits, verify
    from headwise.report.cost_tables import check_lines

    config, asked = size_that_fits(to_config(architecture), workload)
    checks = verify(config, batch=asked.batch, length=asked.length)
    agree = all(check.agrees for check in checks)
    built = (
        f"L={config.n_layer} D={config.d_model} H={config.n_head} G={config.kv_heads} K={config.head_width}"
    )
    built += f" vocabulary={config.vocab_size}; B={asked.batch} T={asked.length} fp32"
    result["built"] = config.model_dump() | {"batch": asked.batch, "length": asked.length}
    result["checks"] = [check.to_json() for check in checks]
    lines += ["", f"Verified on a model that was built and run: {built}", *check_lines(checks)]
    lines.append("All predictions hold." if agree else "Some predictions do not hold; please report this.")
    return agree
