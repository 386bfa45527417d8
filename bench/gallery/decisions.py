"""Decisions between labels: a built-in one, and four public ones with ever more labels."""

from __future__ import annotations

from bench.gallery.use import (
    Place,
    Step,
    Use,
    by_rows,
    data_file,
    options,
)
from bench.gpu.jobs import TASKS, instruction
from bench.measuring import read_rows, write_rows

__all__ = ["CONTINENTS", "LABELS", "TEST_PROMPTS"]

TEST_PROMPTS = 100
"""Test prompts of a decision, where its data have more."""
RIVALS = ("labels-only", "calibrate:contextual", "calibrate:batch", "classifier:tfidf")
NUMBERS = (10, 30, 100, 300)
"""Labels in all: a bias learns from two thirds of them and is chosen on the other third; a rival
has them all.
"""
SMALL_NUMBERS = (10, 300)
SMALL_TASKS = ("sst2", "trec")
SENTENCE = 32
"""Tokens of an answer at most, where it may be a sentence."""
UNLABELLED = 100
"""Prompts without an answer beside them, for a bias: as many as batch calibration in the client
reads, which are the test prompts.
"""
VARYING = (30, 100, 300)
"""Those from which a bias that depends on the words of the prompt is learned."""
TITLES = {
    "sst2": "SST-2, sentiment",
    "agnews": "AG News, topics",
    "trec": "TREC, kinds of questions",
    "rte": "RTE, entailment",
}


def _continents(place: Place) -> list[Step]:
    """The built-in task with greedy decisions and at .6."""
    task = options(*place.model, task="continents", reward="accuracy")
    out = place.out / "continents"
    evaluation = options(
        "eval",
        place.bias("bias", "continents"),
        *task,
        deploy=("greedy", "temperature=0.6"),
        test_samples=2,
        rival=("prompt:Answer with one word.", *RIVALS, "few-shot:4"),
        out=out,
    )
    title = "Continents of countries (built in, 104 labels)"
    # Four tokens cut the sentence that the model begins: here it may end it.
    sentence = options(
        "eval",
        place.bias("bias", "continents"),
        *place.model,
        task="continents",
        reward="contains",
        max_tokens=SENTENCE,
        deploy="greedy",
        out=place.out / "sentence",
    )
    return [
        Step("continents", options("fit", *task, out=out)),
        Step("continents_eval", evaluation, title),
        Step("sentence", sentence, f"The same with room for a sentence, {SENTENCE} tokens"),
        *by_rows(
            place,
            task,
            options(*task, deploy="greedy"),
            [(7, 3), (20, 10), (80, 24)],
            title=title,
            bias="bias",
        ),
    ]


def _labels(place: Place) -> list[Step]:
    """The steps of all four tasks, of two where the page is small; it shows the commands of the
    first with most labels.
    """
    tasks = SMALL_TASKS if place.small else tuple(TITLES)
    return [step for task in tasks for step in _labelled(place, task)]


def _labelled(place: Place, task: str) -> list[Step]:
    """Two biases and their rivals for each number of labels."""
    source = data_file(place, f"{task}.jsonl")
    if source is None:
        raise FileNotFoundError(f"{task}.jsonl is not in {place.data}")
    rows = read_rows(source)
    train = [row for row in rows if row["split"] == "train"]
    rest = [row for row in rows if row["split"] != "train"]
    test = [row for row in rest if row["split"] == "test"]
    asked = options(
        *place.model,
        reward="contains",
        max_tokens=4,
        test_limit=TEST_PROMPTS,
        labels=",".join(TASKS[task]),
        store=place.out / f"{task}.db",
    )
    steps = []
    for number in SMALL_NUMBERS if place.small else NUMBERS:
        name = f"{task}_{number}"
        repeats = task != next(iter(TITLES)) or number != NUMBERS[-1]
        labelled = train[:number]
        chosen_on = [row | {"split": "validation"} for row in labelled[number - number // 3 :]]
        learned_from = labelled[: len(labelled) - len(chosen_on)]
        others = [row for row in (*train[number:], *rest) if row["split"] != "test"]
        unlabelled = [{"prompt": row["prompt"], "split": "train"} for row in others[:UNLABELLED]]
        learned = write_rows(
            place.out / f"{name}.jsonl", [*learned_from, *unlabelled, *chosen_on, *test]
        )
        # An evaluation does not read the validation rows.
        whole = write_rows(place.out / f"{name}_all.jsonl", [*labelled, *rest])
        fit = options("fit", *asked, data=learned)
        biases = [place.bias("fixed", name)]
        steps.append(Step(name, options(*fit, out=place.out / name), repeats=repeats))
        if number in VARYING:
            biases.append(place.bias("words", f"{name}_words"))
            by_words = options(*fit, depends_on="words", out=place.out / f"{name}_words")
            steps.append(Step(f"{name}_words", by_words, repeats=repeats))
        evaluation = options(
            "eval",
            *biases,
            *asked,
            data=whole,
            deploy="greedy",
            rival=RIVALS,
        )
        if number in (NUMBERS[0], NUMBERS[-1]):
            evaluation += options(rival="few-shot:4")
        if number == NUMBERS[-1]:
            evaluation += options(
                rival=f"prompt:{instruction(task)}", deploy="temperature=0.6", test_samples=2
            )
        evaluation += options(out=place.out / f"{name}_eval")
        steps.append(Step(f"{name}_eval", evaluation, TITLES[task], labels=number, repeats=repeats))
    return steps


CONTINENTS = Use(
    "Decisions between labels",
    "On which continent does a country lie? The bias is learned from 80 right answers that come"
    " with the package, chosen on 24 more, and judged greedily and at temperature .6; the reward is"
    " the share of right answers. Rivals: the labels alone (all else forbidden), two calibrations,"
    " four examples in the prompt, an instruction, and a classifier of words without any language"
    " model. Ten rows do not show a fit that their answers are labels; `--labels` would name them.",
    _continents,
)
LABELS = Use(
    "Decisions, from 10 to 300 labels",
    "Four public decisions; an answer is right where its first four tokens contain the label. A"
    " bias learns from two thirds of the labels and is chosen on the other third, beside 100"
    " prompts without an answer; a rival has all labels, and batch calibration in the client reads"
    ' the 100 test prompts. "fixed" is one bias for all prompts; "words", tried from 30 labels on,'
    " may depend on the words of the prompt. Rivals: the labels alone, two calibrations and an"
    " instruction, which need no label; four examples in the prompt; a classifier of words without"
    " any language model. Greedy, and for 300 labels at temperature .6, too.",
    _labels,
    files=tuple(f"{task}.jsonl" for task in TITLES),
)
