"""What a use of the gallery is made of: where it runs, its commands, and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "COMPLETIONS",
    "Place",
    "Step",
    "Use",
    "by_completions",
    "by_rows",
    "data_file",
    "options",
    "split_column",
]

COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a use runs.

    model: options of ``blb`` that name the model.
    out: folder of the use's runs.
    data: folder of tasks as JSONL, or None.
    small: fewer samples and prompts, for uses that take more than a quarter of an hour.
    """

    model: tuple[str, ...]
    out: Path
    data: Path | None = None
    small: bool = False

    def bias(self, name: str, fit: str = "") -> str:
        """The argument of ``blb eval`` for the bias of the fit ``fit``, by default ``name``."""
        return f"{name}={self.out / (fit or name) / 'bias.json'}"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``blb``, or of another program.

    name: of its result.
    words: of the command.
    title: of an evaluation, under which the page shows it.
    program: another program than ``blb``, in words.
    labels: labelled examples that the policies of an evaluation had; evaluations of one title that
        have them make a curve.
    learned_from: bias of an evaluation -> number of examples that it was learned from; they are a
        curve beside the evaluation of the same title.
    examples: what ``learned_from`` counts: completions, labels or prompts.
    repeats: the command is like an earlier one, and a page does not show it.
    """

    name: str
    words: tuple[str, ...]
    title: str = ""
    program: tuple[str, ...] = ()
    labels: int | None = None
    learned_from: Mapping[str, int] = field(default_factory=dict)
    examples: str = COMPLETIONS
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """A page of the gallery.

    intro: at most five sentences: data, reward, rivals, settings.
    steps: the commands at a place.
    files: what the folder of tasks must hold.
    second_model: the use is made for Qwen2.5-Coder-0.5B.
    """

    title: str
    intro: str
    steps: Callable[[Place], list[Step]]
    files: tuple[str, ...] = ()
    second_model: bool = False

    def lacks(self, place: Place) -> tuple[str, ...]:
        """The files that the folder of tasks does not hold."""
        return tuple(name for name in self.files if data_file(place, name) is None)


def options(*words: object, **values: object) -> tuple[str, ...]:
    """Words of a command: ``words`` as they are, then ``--name value`` for each of ``values``.

    A sequence repeats its option for each value. True is an option without a value.
    """
    spelled = [str(word) for word in words]
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            spelled.append(option)
            continue
        repeated = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for item in repeated:
            spelled += [option, str(item)]
    return tuple(spelled)


def by_completions(
    place: Place,
    task: Sequence[str],
    parts: Sequence[tuple[int, int]],
    *,
    tau: float,
    title: str,
    learning: Sequence[str] = (),
    bias: str = "bias",
) -> list[Step]:
    """The curve by completions: fits of fewer completions from the same store, without a search,
    and one evaluation of them.

    task: the words of fits and evaluations; ``learning``: those of fits alone.
    parts: training prompts and completions of each, fewest first; the last is what ``bias`` of the
        evaluation ``title`` learned from, which is not fitted again.
    """
    from_store = options("fit", *task, *learning, only_stored=True)
    fits = {
        prompts * samples: options(
            *from_store,
            limit=prompts,
            samples_per_prompt=samples,
            tau=tau,
            l2="cv",
            entries=300,
        )
        for prompts, samples in parts[:-1]
    }
    prompts, samples = parts[-1]
    return _curve(place, fits, task, title, {bias: prompts * samples}, COMPLETIONS)


def by_rows(
    place: Place,
    fit: Sequence[str],
    judged: Sequence[str],
    parts: Sequence[tuple[int, int]],
    *,
    title: str,
    bias: str,
    examples: str = "labels",
) -> list[Step]:
    """The curve by rows with an answer: the same fit of fewer rows, and one evaluation of them.

    fit: the words of the fit; ``judged``: those of the evaluation.
    parts: training and validation rows, fewest first; the last are those of ``bias`` of the
        evaluation ``title``, which is not fitted again.
    """
    fits = {
        sum(part): options("fit", *fit, limit=part[0], validation_limit=part[1])
        for part in parts[:-1]
    }
    return _curve(place, fits, judged, title, {bias: sum(parts[-1])}, examples)


def _curve(
    place: Place,
    fits: Mapping[int, tuple[str, ...]],
    judged: Sequence[str],
    title: str,
    whole: Mapping[str, int],
    examples: str,
) -> list[Step]:
    """The fits by their number of examples, and one evaluation; ``whole``: the bias that was
    learned from all.
    """
    names = {f"of {number}": number for number in fits}
    steps = [
        Step(
            f"few-{number}",
            options(*words, out=place.out / f"few-{number}"),
            repeats=examples != COMPLETIONS or number != min(fits),
        )
        for number, words in fits.items()
    ]
    biases = [place.bias(name, f"few-{number}") for name, number in names.items()]
    evaluation = options("eval", *biases, *judged, out=place.out / "few-eval")
    learned_from = {**names, **whole}
    return [
        *steps,
        Step(
            "few-eval",
            evaluation,
            title,
            learned_from=learned_from,
            examples=examples,
            repeats=True,
        ),
    ]


def split_column(splits: Mapping[str, int]) -> list[str]:
    """The split of each row, for so many rows of each."""
    return [split for split, number in splits.items() for _ in range(number)]


def data_file(place: Place, name: str) -> Path | None:
    """A file in the folder of tasks or beside it, None where it is in neither."""
    if place.data is None:
        return None
    for folder in (place.data, place.data.parent):
        if (folder / name).exists():
            return folder / name
    return None
