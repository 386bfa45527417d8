"""Wanted shares of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.gallery.stories import WRITING
from bench.gallery.use import Place, Step, Use, by_rows, options
from bench.gallery.writing import LATER_LOGPROB
from bench.measuring import write_rows

__all__ = ["MARGINS"]

AGES = ("young", "adult", "middle", "old")
AGES_BY_CITY = {
    "Lisbon": (0.4, 0.3, 0.2, 0.1),
    "Oslo": (0.1, 0.2, 0.3, 0.4),
    "Quito": (0.2, 0.3, 0.3, 0.2),
    "Perth": (0.1, 0.4, 0.4, 0.1),
}
"""Wanted shares of the age groups; their mean over the cities is .2, .3, .3, .2."""
SHOPS: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("bakery", "bookshop", "florist", "gym", "pharmacy"),
        *("toy shop", "wine shop", "hardware store", "pet shop"),
    ),
    "validation": ("record shop", "butcher", "travel agency", "shoe shop"),
    "test": (
        *("cinema", "fish market", "tea house", "bicycle shop"),
        *("garden centre", "optician"),
    ),
}
PROFILES = (
    "Write one line about a customer of a {shop} in {city}. Begin with the age group: {ages}.",
    "In one line, describe somebody who shops at a {shop} in {city}, age group ({ages}) first.",
)
DIGIT = "{verb} a random digit from 0 to 9 for {purpose}. Answer with the digit alone."
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("a locker", "a raffle", "a quiz", "a house number", "a bus line", "a jersey"),
        *("a hotel room", "a seat", "a bingo game", "a PIN", "a password", "a table"),
    ),
    "validation": ("a lottery", "a parking place", "a phone number", "a shelf", "a gate"),
    "test": (
        *("a magic trick", "a maths game", "a queue ticket", "a dice app", "a train platform"),
        *("a postcode", "a competition", "a key code", "a card game", "a draw"),
    ),
}
VERBS = ("Give me", "Pick", "Choose", "Name")


def _profile_rows() -> list[dict[str, Any]]:
    """Prompts for profiles of customers, with the shares of their city."""
    ages = ", ".join(AGES)
    return [
        {
            "prompt": frame.format(shop=shop, city=city, ages=ages),
            "answer": dict(zip(AGES, shares, strict=True)),
            "city": city,
            "split": split,
        }
        for split, shops in SHOPS.items()
        for shop in shops
        for frame in PROFILES
        for city, shares in AGES_BY_CITY.items()
    ]


def _digit_rows() -> list[dict[str, Any]]:
    """Prompts for a random digit, every digit as often as any other."""
    return [
        {
            "prompt": DIGIT.format(verb=verb, purpose=purpose),
            "answer": {str(digit): 1 for digit in range(10)},
            "split": split,
        }
        for split, purposes in PURPOSES.items()
        for purpose in purposes
        for verb in VERBS
    ]


def _margins(place: Place) -> list[Step]:
    """Profiles with wanted age groups, by a bias for the first token alone and by one for every
    token; and a digit that is to be uniform.
    """
    profiles = write_rows(place.out / "profiles.jsonl", _profile_rows())
    digits = write_rows(place.out / "digits.jsonl", _digit_rows())
    drawn = options(test_samples=4)
    profile = options(*place.model, data=profiles, reward="distribution:city", max_tokens=6)
    profile += options(*drawn, store=place.out / "store.db")
    digit = options(*place.model, data=digits, reward="distribution", max_tokens=3)
    digit += options(*drawn, store=place.out / "digits.db")
    longer = options(
        place.bias("by-city"),
        place.bias("every-token"),
        *place.model,
        data=profiles,
        reward="distribution:city",
        max_tokens=40,
        store=place.out / "store.db",
        deploy="temperature=1",
        test_samples=2,
    )
    measured = options(measure=("words", "repeated 3-grams", LATER_LOGPROB))
    first = options(phases="only-first")
    for_city = options(*profile, *first, depends_on="groups:city")
    by_city = options("fit", *for_city, out=place.out / "by-city")
    every = options("fit", *profile, depends_on="groups:city", out=place.out / "every-token")
    profiles_eval = options(
        "eval",
        place.bias("by-city"),
        place.bias("every-token"),
        *profile,
        rivals=True,
        out=place.out / "profiles",
    )
    digit_eval = options("eval", place.bias("digit"), *digit, rivals=True, out=place.out / "digit")
    title = "Age groups by city"
    parts = [(8, 8), (24, 16), (72, 32)]
    return [
        Step("by-city", by_city),
        Step("every-token", every, repeats=True),
        Step("profiles_eval", profiles_eval, title),
        *by_rows(place, for_city, profile, parts, title=title, bias="by-city", examples="prompts"),
        Step("longer", options("eval", *longer, out=place.out / "longer"), repeats=True),
        Step("writing", (*longer, *measured), program=WRITING, repeats=True),
        Step("digit", options("fit", *digit, *first, out=place.out / "digit"), repeats=True),
        Step("digit_eval", digit_eval, "A random digit", repeats=True),
    ]


MARGINS = Use(
    "Wanted shares of labels",
    "Profiles of customers (made up) begin with an age group, whose wanted shares differ by city;"
    " and a random digit. At temperature 1, on shops and purposes that were not learned. The reward"
    " is minus the total variation between the first label in six tokens and the wanted shares."
    " Rivals: temperature 1.5, the shares in words, and the label drawn in code and asked for. The"
    " biases act at the first token alone, but for every-token; lines of 40 tokens show the rest.",
    _margins,
)
