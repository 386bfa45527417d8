"""A decision inside a JSON record."""

from __future__ import annotations

from bench.gallery.use import (
    Place,
    Step,
    Use,
    by_completions,
    data_file,
    options,
)
from bench.gpu.jobs import RECORD, TASKS
from bench.measuring import read_rows, write_rows

__all__ = ["RECORDS", "TASK"]

TASK = "agnews"
SPLITS = {"train": 120, "validation": 60, "test": 150}
SMALL_SPLITS = {"train": 40, "validation": 16, "test": 80}
PASTING = ("uv", "run", "python", "-m", "bench.gallery.pasting")


def _records(place: Place) -> list[Step]:
    """Topics of news in a record with a reason, learned from samples."""
    source = data_file(place, f"{TASK}.jsonl")
    if source is None:
        raise FileNotFoundError(f"{TASK}.jsonl is not in {place.data}")
    rows = read_rows(source)
    kept = []
    splits = SMALL_SPLITS if place.small else SPLITS
    for split, number in splits.items():
        kept += [row for row in rows if row["split"] == split][:number]
    records = (
        row | {"prompt": row["prompt"].replace("Answer with one word.", RECORD)} for row in kept
    )
    task = options(
        *place.model,
        data=write_rows(place.out / "records.jsonl", records),
        reward="bench.gpu.rewards:right_record",
        max_tokens=60,
        store=place.out / "store.db",
        deploy="greedy",
    )
    # The small size spares the curve and a strength. It does not spare the search (of two draws of
    # 120 completions without one, one earned .12 more than the model and one .10 less), nor the
    # test prompts: with 40 of them the bias was level with the model.
    samples = 4 if place.small else 6
    taus = 0.25 if place.small else (0.25, 0.5)
    extent = options(samples_per_prompt=samples, tau=taus)
    from_samples = options(learn_from="samples")
    fit = options("fit", *task, *from_samples, *extent, out=place.out / "fit")
    instruction = (
        f'The label must be one of {", ".join(TASKS[TASK])}. Write {{"label": ..., "reason": ...}}.'
    )
    judged = options(place.bias("bias", "fit"), *task, baseline_prompt=instruction)
    evaluation = options("eval", *judged, out=place.out / "eval")
    title = "Topics of news, inside a record"
    steps = [
        Step("fit", fit),
        Step("eval", evaluation, title),
        Step("pasting", judged, program=PASTING),
    ]
    if place.small:
        return steps
    prompts = splits["train"]
    parts = [(10, 1), (prompts, 1), (prompts, samples)]
    return [
        *steps,
        *by_completions(place, task, parts, tau=0.25, title=title, learning=from_samples),
    ]


RECORDS = Use(
    "A decision inside a JSON record",
    'Topics of news (AG News), asked for as {"label": ..., "reason": ...}; greedy, at most 60'
    " tokens. The reward is 1 for a record that parses and has the right label; the bias learns"
    " from samples with that reward. Rivals: an instruction that repeats the labels; and the label"
    " of a classifier of words, which learned from the same rows, pasted into the record"
    " afterwards. That breaks a record whose reason names another label and not the pasted one.",
    _records,
    files=(f"{TASK}.jsonl",),
    second_model=True,
)
