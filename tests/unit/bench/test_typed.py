"""The study of typed structs compares readers that give the same arrays."""

from __future__ import annotations

import pytest

from bench.collector_server import DIALECTS, Dialect, answers
from bench.studies.typed_reader import TextReader, TypedReader, check_same, ordinary_tokens
from blackbox_lb import load_profile
from blackbox_lb.api.wire import AnswerReader


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_readers_of_the_study_agree(dialect: Dialect) -> None:
    """To the last bit, and none leaves an answer to the plain reader; a token that is new is
    learned on the way.
    """
    profile = load_profile(dialect)
    kinds = (AnswerReader, TypedReader, TextReader)
    readers = [kind(profile, profile.endpoint("chat"), ordinary_tokens()) for kind in kinds]
    bodies = [*answers(12, 5, 3, dialect), *answers(12, 5, 3, dialect, seed=1)]
    check_same(readers, bodies)
    check_same(readers, bodies)
