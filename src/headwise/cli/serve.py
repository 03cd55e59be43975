"""headwise serve: the page of heads, live."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from headwise.cli.interrupts import interruptible
from headwise.cli.options import Device, Quiet, Unknown
from headwise.cli.subjects import open_model


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Model folders of headwise, or Hugging Face folders or names; the page offers each.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(help="What the page begins with. Default: the beginning of what training held out."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Where to listen. Any but this machine's own address makes the page ask for a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWISE_TOKEN", help="What the page has to be asked with. Default: a new one if needed."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name by which the server may be asked; may be repeated."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest text, in tokens, as far as the model reads.")
    ] = 512,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens that are written at once.")] = 400,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Serve the page of heads on this machine: type a text, switch heads off, and see what changes.

    Next-token probabilities, the loss of each token and the text that the model writes stand beside those of
    the untouched model. Ctrl-C ends it.
    """
    for name in ("fastapi", "uvicorn"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(
                f"serve needs {name} ({error}); install it with `pip install headwise[page]`"
            ) from error
    from headwise.hub.origin import head_numbers
    from headwise.report.server import Address, Limits, Worker, make_app
    from headwise.report.server import serve as run
    from headwise.report.server.first_text import first_text

    if text is not None and not text.strip():
        raise ValueError("--text is empty; give a text of at least one character")
    for option, number in (("--max-tokens", max_tokens), ("--max-new-tokens", max_new_tokens)):
        if number < 1:
            raise ValueError(f"{option} must be at least 1, got {number}")
    if len(set(models)) < len(models):
        raise ValueError("a model is named twice; name each once")
    limits = Limits(max_tokens, max_new_tokens)
    with interruptible("stopped"):
        address = Address.open(
            host, port, token=token, names=allow_host or ()
        )  # before models, which take long
        try:
            workers = [
                Worker(open_model(name, device, unknown), most=limits.waiting, heads=head_numbers(name))
                for name in models
            ]
            begin = first_text(workers[0].subject, models[0], limits.tokens) if text is None else text
            app = make_app(workers, begin, limits)
        except BaseException:
            address.socket.close()
            raise

        def ready(url: str) -> None:
            if not quiet:
                typer.echo(f"the page is at {url} (Ctrl-C ends it)")
            if open_browser:
                import webbrowser

                webbrowser.open(url)

        run(app, workers, address, ready)
