"""What tokens cost in a run: of the model, and of the model that judges."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.prices import Prices, find_prices, parse_prices
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.judge import Judge


def prices_of(session: Session, price: str | None, table: Path | None) -> Prices | None:
    """The price of the session's model: ``price``, else a row of ``table``, else of the packaged
    one.
    """
    if price is not None:
        return parse_prices(price)
    return find_prices(session.profile.name, session.model, table)


def price_model(
    budget: SpendLimit, session: Session, price: str | None = None, table: Path | None = None
) -> None:
    """Give the budget the prices of the model.

    Raises:
        InputError: the budget has a limit in dollars, and the price is not known.
    """
    budget.prices = prices_of(session, price, table)
    if budget.prices is None:
        _check_unpriced(budget, session.profile.name, session.model, takes_price=True)


def price_judge(
    budget: SpendLimit, reward: Reward, table: Path | None = None, *, takes_price: bool = True
) -> None:
    """Give the budget the prices of the reward's judge, if it has one.

    takes_price: whether the caller has a parameter for a price beside one for a table.

    Raises:
        InputError: the budget has a limit in dollars, and the judge's price is not known.
    """
    judge = reward.remote.file if isinstance(reward.remote, Judge) else None
    if judge is None:
        return
    budget.judge_prices = _judge_prices(judge.base_url, judge.model, table)
    if budget.judge_prices is None:
        host = urlsplit(judge.base_url).hostname or ""
        _check_unpriced(budget, host, judge.model, takes_price=takes_price)


def _check_unpriced(budget: SpendLimit, provider: str, model: str, *, takes_price: bool) -> None:
    if budget.limits.dollars is None:
        return
    price = (
        "``price=PROMPT,COMPLETION`` in dollars for a million tokens (0,0 for what costs nothing),"
        " or "
    )
    other = price if takes_price else ""
    raise InputError(
        f"``max_cost`` needs the price of {model} on {provider}, which is not known: give"
        f" {other}``prices=FILE`` with a row [[price]] whose provider is {provider!r};"
        " ``max_tokens_total`` needs no price"
    )


def _judge_prices(base_url: str, model: str, table: Path | None) -> Prices | None:
    """The prices of a judge: by the profile that has its host, or by the host itself."""
    host = urlsplit(base_url).hostname or ""
    profiles = (load_profile(name) for name in profile_names())
    names = [
        profile.name
        for profile in profiles
        if urlsplit(profile.connection.base_url or "").hostname == host
    ]
    for name in [host, *names]:
        prices = find_prices(name, model, table)
        if prices is not None:
            return prices
    return None
