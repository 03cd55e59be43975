"""Roles are rules on statistics: the nearest thresholds decide, uniform attention never does."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from headwise.heads.role_rules import INITIALS, NO_ROLE, ROLES, judged, roles


def head(**scores: float) -> pd.DataFrame:
    return pd.DataFrame([{"layer": 0, "head": 0, **scores}])


def test_a_score_counts_from_uniform_attention_on() -> None:
    # two tokens: half of the weight on the one before is what uniform attention gives
    found = roles(head(previous=0.5, previous_uniform=0.5)).iloc[0]
    assert found.role == NO_ROLE
    assert found.strength == 0.0
    found = roles(head(previous=0.8, previous_uniform=0.5)).iloc[0]
    assert found.role == "previous token"
    assert found.strength == pytest.approx(0.6)
    assert found.evidence == "previous 0.80, uniform 0.50"


@pytest.mark.parametrize("role", ROLES)
def test_each_role_begins_at_its_threshold(role) -> None:  # type: ignore[no-untyped-def]
    at = roles(head(**{role.column: role.threshold})).iloc[0]
    below = roles(head(**{role.column: role.threshold - 1e-6})).iloc[0]
    assert at.role == role.name
    assert below.role == NO_ROLE
    assert below.strength == pytest.approx(role.threshold - 1e-6)


def test_the_special_role_is_named_before_the_place_where_the_head_rests() -> None:
    found = roles(head(first=0.9, first_uniform=0.05, induction=0.7)).iloc[0]
    assert (found.role, found.also) == ("induction", "first token")


def test_a_statistic_that_no_query_has_gives_no_role() -> None:
    found = roles(head(punctuation=math.nan, previous=0.1, previous_uniform=0.02)).iloc[0]
    assert found.role == NO_ROLE
    assert found.evidence == "previous 0.10, uniform 0.02"


def test_one_token_alone_gives_no_role() -> None:
    found = roles(head(self=1.0, self_uniform=1.0, first=1.0, first_uniform=1.0)).iloc[0]
    assert found.role == NO_ROLE
    assert math.isnan(found.strength)
    assert found.evidence == ""


def test_what_was_not_measured_is_not_judged() -> None:
    table = head(previous=0.9)
    assert [role.name for role in judged(table)] == ["previous token"]
    assert math.isnan(roles(table).iloc[0].output_share)
    assert roles(head(previous=0.9, output_share=0.25)).iloc[0].output_share == 0.25


def test_initials_are_different() -> None:
    assert len(set(INITIALS.values())) == len(ROLES) + 1


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'head'"):
        roles(pd.DataFrame([{"layer": 0, "previous": 1.0}]))
