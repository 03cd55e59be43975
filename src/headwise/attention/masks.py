"""Who may see whom: masks as values that combine, and become tensors only when a backend needs one.

Letters: B batch, H query heads, T queries, S keys. Query i of T sits at position ``offset + i``; by default
``offset = S - T``, so that the last query sits at the last key (bottom-right).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from headwise.attention import mask_convert, mask_picture
from headwise.attention.mask_documents import Documents
from headwise.attention.mask_positions import Band, Columns
from headwise.attention.mask_rules import AllOf, Always, Rule, all_of, allowed_by_all, any_of, crop_by_all
from headwise.attention.mask_rules import Region as Region
from headwise.attention.mask_tables import Given, Lengths

_BARE_TENSOR = (
    "a mask must be a Mask, got a bare {kind}; write Mask.keep(t) if True means 'may attend' "
    "or Mask.hide(t) if True means 'may not attend'"
)


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Which keys each query may attend to; immutable, made by the constructors below.

    ``a & b`` allows what both allow, ``a | b`` what either allows, ``~a`` what a hides. A mask knows its
    rules, not the sizes: one ``Mask.causal()`` serves any T and S, with or without a cache. Its tensors are
    those given to it, not copies, so do not write into them afterwards.

    Example: ``Mask.causal() & Mask.lengths(torch.tensor([3, 5]))``.
    """

    rules: tuple[Rule, ...]
    """What is seen is what all of these allow; no rules allow everything."""

    @staticmethod
    def causal() -> Mask:
        """A query sees the keys at its own position and before it."""
        return Mask((Band(((0, None),)),))

    @staticmethod
    def window(n: int) -> Mask:
        """A query sees n keys: the one at its own position and the n - 1 before it (n ≥ 1).

        Raises TypeError if n is not an int, ValueError if it is below 1.
        """
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(
                f"Mask.window needs an int, got {type(n).__name__}; n counts the keys seen, itself included"
            )
        if n < 1:
            raise ValueError(f"Mask.window got n={n}; a query sees at least itself, so give n ≥ 1")
        return Mask((Band(((0, n),)),))

    @staticmethod
    def prefix(n: int | Int[Tensor, " B"]) -> Mask:
        """A query sees the first n keys, wherever it is, and beyond them as `causal` allows (prefix LM).

        n is an int ≥ 0, or an integer tensor (B,) with one number per sequence. Keys count from the first key
        of the call, so with a cache from the first cached one.
        Raises TypeError if n is neither, ValueError if it is below 0 or the tensor is not 1-D.
        """
        if isinstance(n, Tensor):
            first: Rule = Lengths(_one_per_sequence(n, "Mask.prefix"), maker="Mask.prefix")
        elif isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(
                f"Mask.prefix needs an int or an integer tensor (B,), got {type(n).__name__}; "
                "n counts the keys that every query sees"
            )
        elif n < 0:
            raise ValueError(f"Mask.prefix got n={n}; n counts the keys that every query sees, so give n ≥ 0")
        else:
            first = Columns(((0, n),)) if n else Always(False)
        return _mask(any_of((first, *Mask.causal().rules)))

    @staticmethod
    def documents(ids: Int[Tensor, "*B S"]) -> Mask:
        """Packed documents: a query sees the keys of its own document, before and after it.

        Add ``& Mask.causal()`` for a language model. ids numbers the document at each position: an integer
        tensor (S,) for every sequence or (B, S), for all S keys, those in a cache too. Equal numbers are one
        document, whatever they are. A query at a position without a number (below 0, or beyond the last key)
        sees nothing.
        Raises TypeError if ids is no integer tensor, ValueError unless it has one or two axes.
        """
        if not _is_integer(ids):
            raise TypeError(
                f"Mask.documents needs an integer tensor of document numbers, got {_kind(ids)}; "
                "a True/False table of who may see whom goes into Mask.keep(t)"
            )
        if ids.ndim not in (1, 2):
            raise ValueError(
                f"Mask.documents needs a document number per key, (S,) or (B, S), got {tuple(ids.shape)}"
            )
        return Mask((Documents(ids),))

    @staticmethod
    def lengths(t: Int[Tensor, " B"]) -> Mask:
        """Key padding: queries of sequence b see only its keys 0 … t[b] - 1.

        t is an integer tensor (B,). A length beyond the last key means all keys, so that one mask serves a
        cache that grows. Raises TypeError if it is no integer tensor, ValueError if it is not 1-D or (on the
        CPU, where numbers can be looked at without waiting) holds one below 0.
        """
        return Mask((Lengths(_one_per_sequence(t, "Mask.lengths")),))

    @staticmethod
    def keep(t: Bool[Tensor, "*BH T S"]) -> Mask:
        """A query sees the keys where t is True.

        t is a bool tensor of shape (T, S), (B, T, S) or (B, H, T, S); B, H and T may be 1 and are then
        broadcast without a copy, the last axis is always S. Mind that three axes are batch, queries, keys.
        Raises TypeError if t is not a bool tensor, ValueError for another number of axes.
        """
        return Mask((Given(_table(t, "Mask.keep")),))

    @staticmethod
    def hide(t: Bool[Tensor, "*BH T S"]) -> Mask:
        """A query sees the keys where t is False; shapes and errors as for `keep`."""
        return Mask((Given(_table(t, "Mask.hide"), negated=True),))

    @staticmethod
    def from_torch(
        key_padding_mask: Bool[Tensor, "B S"] | Float[Tensor, "B S"] | None = None,
        attn_mask: Bool[Tensor, "*BH T S"] | Float[Tensor, "*BH T S"] | None = None,
        *,
        n_head: int | None = None,
    ) -> Mask:
        """Return the mask that these arguments mean to ``nn.MultiheadAttention``, where True hides.

        key_padding_mask: (B, S), or (S,) for one sequence.
        attn_mask: (T, S), or (B·H, T, S), which needs n_head = H.
        Either may be float and hold nothing but 0 (shown) and -inf (hidden), as
        ``nn.Transformer.generate_square_subsequent_mask`` makes them. Other numbers are no mask but are added
        to the scores: pass such a tensor as bias. None hides nothing.

        Where a query sees nothing this package gives 0; ``nn.MultiheadAttention`` gives NaN or 0.

        Raises TypeError for another dtype, ValueError for shapes that do not fit and for other numbers.
        """
        tables = mask_convert.from_torch(key_padding_mask, attn_mask, n_head)
        return _mask(all_of(Given(table, negated=True) for table in tables))

    @staticmethod
    def from_zero_hides(t: Num[Tensor, "*BH T S"]) -> Mask:
        """Return the mask of code that writes ``scores.masked_fill(t == 0, -inf)``: 1 shows, 0 hides.

        t holds 0 and 1 (or False and True); shapes as for `keep`, so that the (B, S) of Hugging Face's
        ``attention_mask`` is given as ``t[:, None, None, :]``.
        Raises TypeError if t is no tensor, ValueError for another number of axes and for other numbers.
        """
        return Mask.keep(mask_convert.from_zero_hides(t))

    def __and__(self, other: Mask) -> Mask:
        """Return the mask that allows what both allow; raises ValueError if made for different batches."""
        require_mask(other)
        return _mask(all_of((*self.rules, *other.rules)))

    def __or__(self, other: Mask) -> Mask:
        """Return the mask that allows what at least one of them allows; raises ValueError as ``&`` does."""
        require_mask(other)
        return _mask(any_of((all_of(self.rules), all_of(other.rules))))

    def __invert__(self) -> Mask:
        """Return the mask that allows what this one hides."""
        return _mask(all_of(self.rules).opposite())

    def __repr__(self) -> str:
        return f"Mask(a query sees {self.words()})"

    def words(self) -> str:
        """Say which keys a query sees, as the end of the sentence "a query sees …"."""
        return all_of(self.rules).words()

    def to_tensor(
        self, T: int, S: int, *, offset: int | None = None, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*BH T S"]:
        """Show the mask: a bool tensor, True where query i may attend to key j.

        The shape is (T, S), or (B|1, H|1, T, S) if the mask differs between sequences or heads. offset is the
        position of query 0 (default S - T); device defaults to that of the mask's own tensors, else the CPU.
        Raises ValueError if the mask does not fit T and S.
        """
        if T < 0 or S < 0:
            raise ValueError(f"to_tensor needs sizes of at least 0, got T={T}, S={S}")
        self.check(T, S)
        home = torch.device(device) if device is not None else self.device or torch.device("cpu")
        region = Region(0, T, 0, S, S - T if offset is None else offset)
        table = torch.ones(1, 1, T, S, dtype=torch.bool, device=home)
        for rule in self.rules:
            table = table & rule.allowed(region, self.device or home).to(home)
        return table[0, 0] if table.shape[:2] == (1, 1) else table

    def picture(
        self,
        T: int,
        S: int,
        offset: int | None = None,
        *,
        sequence: int | None = None,
        head: int | None = None,
    ) -> str:
        """Draw the mask as text: a row per query, a column per key, ■ seen and · hidden.

        T, S, offset: as for `to_tensor`. Long masks are thinned: a cell then stands for several queries and
        keys, and ▒ says that some of these pairs are seen. sequence, head: which ones to draw, if the mask
        differs between them; default the first few.
        Raises ValueError if the mask does not fit T and S, or there is no such sequence or head.
        """
        return mask_picture.survey(self, T, S, offset).text(sequence, head)

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's tensors, None if it has none."""
        tensors = [tensor for rule in self.rules for tensor in rule.tensors()]
        return tensors[0].device if tensors else None

    def check(
        self,
        T: int,
        S: int,
        *,
        B: int | None = None,
        H: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Raise ValueError unless the mask fits scores (B, H, T, S) on this device."""
        for rule in self.rules:
            rule.check(T, S, B, H)
            for tensor in rule.tensors():
                if device is not None and tensor.device != device:
                    raise ValueError(
                        f"the mask's tensor is on {tensor.device} and q is on {device}; "
                        "move one with .to(device)"
                    )

    def crop(self, region: Region) -> Region:
        """Return a rectangle within the region, as small as known, outside which every pair is hidden."""
        return crop_by_all(self.rules, region)

    def hides_nothing(self, region: Region) -> bool:
        """Return True only if every pair of the region is known to be allowed, without looking at tensors."""
        return all(rule.hides_nothing(region) for rule in self.rules)

    def allowed(self, region: Region, device: torch.device) -> Tensor | None:
        """Return True where a query may attend, (B|1, H|1, rows|1, keys), or None if nothing is hidden."""
        return allowed_by_all(self.rules, region, device)

    def varies_by_head(self) -> bool:
        """Return True if the mask may differ between the heads of one sequence."""
        return any(rule.varies_by_head() for rule in self.rules)

    def is_causal(self, region: Region) -> bool:
        """Return True only if the mask is known to be exactly: row r of the region sees its keys 0 … r."""
        rest = [rule for rule in self.rules if not rule.hides_nothing(region)]
        return bool(rest) and all(rule.is_top_left(region) for rule in rest)


def require_mask(mask: object) -> None:
    """Raise TypeError, naming `Mask.keep` and `Mask.hide`, if this is not a `Mask`."""
    if not isinstance(mask, Mask):
        raise TypeError(
            _BARE_TENSOR.format(kind="tensor" if isinstance(mask, Tensor) else type(mask).__name__)
        )


def _mask(rule: Rule) -> Mask:
    """Return the mask of one rule, taken apart if it is an "and"."""
    if isinstance(rule, AllOf):
        return Mask(rule.rules)
    return Mask(() if rule == Always(True) else (rule,))


def _kind(t: object) -> str:
    return str(t.dtype) if isinstance(t, Tensor) else type(t).__name__


def _is_integer(t: object) -> bool:
    if not isinstance(t, Tensor):
        return False
    return not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool)


def _one_per_sequence(t: Tensor, name: str) -> Tensor:
    """Check a user's tensor of one number per sequence, (B,)."""
    if not _is_integer(t):
        raise TypeError(
            f"{name} needs a 1-D integer tensor of lengths, got {_kind(t)}; "
            "a True/False table of real keys goes into Mask.keep(t[:, None, None, :])"
        )
    if t.ndim != 1:
        raise ValueError(
            f"{name} needs a 1-D tensor with one length per sequence, got shape {tuple(t.shape)}"
        )
    if _readable(t) and t.numel() and int(t.min()) < 0:
        raise ValueError(
            f"{name} got {int(t.min())}; it counts keys from the first one on, so give at least 0"
        )
    return t


def _readable(t: Tensor) -> bool:
    """Return True if numbers can be looked at without waiting for a device or breaking a traced graph."""
    if t.device.type != "cpu" or torch.compiler.is_compiling() or type(t) is not Tensor:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t)


def _table(t: Tensor, name: str) -> Tensor:
    """Check a user's bool table (T, S), (B, T, S) or (B, H, T, S)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} needs a bool tensor, got {type(t).__name__}")
    if t.dtype != torch.bool:
        raise TypeError(
            f"{name} needs a bool tensor, got {t.dtype}; write t.bool() if 1 and 0 mean True and False, "
            "Mask.from_torch(attn_mask=t) if it holds 0 and -inf, or pass numbers to be added to the scores "
            "as bias"
        )
    if t.ndim not in (2, 3, 4):
        raise ValueError(
            f"{name} needs a tensor (T, S), (B, T, S) or (B, H, T, S), got shape {tuple(t.shape)}"
        )
    return t
