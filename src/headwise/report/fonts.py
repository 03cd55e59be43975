"""Fonts for labels: installed ones that have every character, so that Hangul never turns into boxes."""

from __future__ import annotations

import importlib.util
import logging
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from matplotlib import font_manager

logger = logging.getLogger(__name__)

# The font of the extra `headwise[cjk]`: Noto Sans KR (SIL Open Font License 1.1), all 11,172 syllables,
# 8,138 Chinese characters and kana. It is registered by its path; the package is never imported.
_EXTRA_PACKAGE = "pylopdf_fonts_ko"
_EXTRA_FILE = "NotoSansKR-Regular.otf"

# Fonts that claim characters they only draw as boxes (Last Resort), or hold mathematics in places where
# Unicode has other characters (Computer Modern as matplotlib ships it).
_NOT_FOR_LABELS = (
    "Last Resort",
    "LastResort",
    ".LastResort",
    "cmr10",
    "cmb10",
    "cmex",
    "cmmi",
    "cmss",
    "cmsy",
)

_said: set[str] = set()


@dataclass(frozen=True)
class Lettering:
    """The fonts chosen for some texts.

    Attributes:
        families: font families in order of use, for matplotlib's `fontfamily`.
        missing: characters that none of them has.
    """

    families: tuple[str, ...]
    missing: frozenset[str]

    def legible(self, text: str) -> str:
        """`text`, with each character that would become a box written as its code point, as in `U+D559`."""
        if self.missing.isdisjoint(text):
            return text
        return "".join(f"U+{ord(c):04X}" if c in self.missing else c for c in text)


def lettering(texts: Iterable[str]) -> Lettering:
    """Choose fonts that cover every character of `texts`, by their real character maps.

    The configured matplotlib font comes first, then as few others as cover the rest. If no installed font
    has some character, a warning says so once, and how to get a font where headwise knows one.
    """
    wanted = {c for text in texts for c in text if not _draws_nothing(c)}
    families = [font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).family_name]
    missing = wanted - _characters(families[0])
    candidates = _candidates() if missing else []
    while missing and candidates:
        best = max(candidates, key=lambda family: len(missing & _characters(family)))
        found = missing & _characters(best)
        if not found:
            break
        families.append(best)
        missing -= found
    _say_once(missing)
    return Lettering(tuple(families), frozenset(missing))


def _draws_nothing(character: str) -> bool:
    """Spaces, joiners, variation selectors and the like need no glyph."""
    return (
        character.isspace()
        or unicodedata.category(character) in ("Cc", "Cf")
        or "\ufe00" <= character <= "\ufe0f"
    )


def _candidates() -> list[str]:
    """Installed upright families of normal weight: the extra's font, then sans serif, then by name."""
    extra = _register_extra()
    families = {
        entry.name
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and not entry.name.startswith(_NOT_FOR_LABELS)
    }
    sans = ("Sans", "Gothic", "Hei")
    return sorted(families, key=lambda f: (f != extra, not any(word in f for word in sans), f))


@lru_cache(maxsize=1)
def _register_extra() -> str | None:
    """Tell matplotlib of the font of `headwise[cjk]`, if that is installed, and return its family."""
    package = importlib.util.find_spec(_EXTRA_PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        path = Path(folder) / _EXTRA_FILE
        if path.is_file():
            font_manager.fontManager.addfont(path)
            return font_manager.get_font(path).family_name
    return None


@lru_cache(maxsize=4096)
def _characters(family: str) -> frozenset[str]:
    """The characters that matplotlib can draw when it is asked for `family`."""
    properties = font_manager.FontProperties(family=[family])
    try:
        path = font_manager.findfont(properties, fallback_to_default=False)
        font = font_manager.get_font(path)
    except (
        ValueError,
        RuntimeError,
        OSError,
    ):  # gone since the cache was made, or a kind FreeType cannot open
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()


def _say_once(missing: set[str]) -> None:
    kinds: dict[str, list[str]] = {}
    for character in sorted(missing):
        kinds.setdefault(_kind(character), []).append(f"U+{ord(character):04X}")
    for kind, points in kinds.items():
        if kind in _said:
            continue
        _said.add(kind)
        if kind == "other" or _register_extra():
            advice = "install one that does"
        else:
            advice = 'get one with: pip install "headwise[cjk]"'
        some = ", ".join(points[:3]) + (f" and {len(points) - 3} more" if len(points) > 3 else "")
        what = some if kind == "other" else f"{kind} ({some})"
        logger.warning("No installed font has %s, so labels show code points; %s", what, advice)


def _kind(character: str) -> str:
    """What the warning calls a character, and whether the extra's font would have it."""
    name = unicodedata.name(character, "")
    if name.startswith("HANGUL"):
        return "Hangul"
    if name.startswith(("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "IDEOGRAPHIC")):
        return "East Asian characters"
    return "other"
