"""The paper's reference with weights: LoRA trained by GRPO, with this package's problems, reward,
selection and evaluation.

Settings: the paper, appendix "LoRA-GRPO baseline" and "Compression experiment", as
``bench/paper/*.toml`` have them. Needs the group ``lora`` (torch, trl, peft). Writes what ``python
-m bench.paper --lora FILE`` puts beside the paper's row.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from bench.paper.configuration import Configuration, load_configuration
from bench.paper.lora_scoring import Checkpoints, Greedy, outcome_of, prompt_text, reward_function
from bench.paper.problems import load_problems
from bench.paper.results import LoraResult
from bench.paper.run import rewards_of
from bench.paper.scaling import Scaled, scaled
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.jobs.records.run_record import provenance
from blackbox_lb.rollouts.judging.verdict import GREEDY, PolicyScores, compare, together

__all__ = ["Run", "main", "train"]

TABLES = {"accuracy": "accuracy", "correct-and-short": "compression"}
"""--reward -> the paper's table."""
REWARDS = {"accuracy": "log-accuracy", "correct-and-short": "correct-and-short"}
"""--reward -> the package's reward, of which GRPO gets what a user reads: 1{correct}, or 1{correct}
T/length.
"""
SHOWN = (
    "step",
    "loss",
    "reward",
    "reward_std",
    "grad_norm",
    "learning_rate",
    "completions/mean_length",
    "entropy",
)
"""What is kept of the trainer's log."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained on what. ``cap``: most tokens of a completion, None for the paper's;
    ``max_steps`` None: whole epochs.
    """

    configuration: Configuration
    part: Scaled
    generations: int = 8
    max_steps: int | None = None
    cap: int | None = None
    seed: int = 0

    @property
    def per_step(self) -> int:
        """Completions that an optimizer step learns from."""
        return self.configuration.lora.batch * self.part.benchmark.lora.accumulation

    @property
    def steps(self) -> int:
        """Optimizer steps of the paper's epochs over the training problems, or ``max_steps`` where
        that is fewer.
        """
        whole = self.configuration.lora.epochs * max(
            1, len(self.part.task.train) * self.generations // self.per_step
        )
        return whole if self.max_steps is None else min(self.max_steps, whole)

    def within(self, tokens: int) -> int:
        """A token limit of the paper, or the cap where that is less."""
        return tokens if self.cap is None else min(self.cap, tokens)


def train(path: str, run: Run) -> LoraResult:
    """Train, choose a checkpoint on the validation problems, judge it and the untrained model on
    the test problems.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    started, task = time.monotonic(), run.part.task
    set_seed(run.seed)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16")
    ends = frozenset({tokenizer.eos_token_id, tokenizer.pad_token_id})
    named = run.configuration.model_copy(update={"reward": REWARDS[run.configuration.lora.reward]})
    training, test = rewards_of(named, run.part)
    greedy = Greedy(tokenizer, test, task.stop, ends, run.within(run.part.benchmark.lora.test_cap))
    base, before = (
        greedy.scores(model, task.test),
        outcome_of(greedy.scores(model, task.validation)),
    )
    checkpoints = Checkpoints(
        Goal(run.configuration.objective),
        before,
        lambda tuned: greedy.scores(tuned, task.validation),
    )
    rewarded = reward_function(task.train, training, tokenizer, task.stop, ends)
    tuned, log = _trained(model, tokenizer, rewarded, run, checkpoints)
    return _result(path, run, tuned, log, checkpoints, base, greedy, time.monotonic() - started)


def _trained(
    model: Any, tokenizer: Any, rewarded: Any, run: Run, checkpoints: Checkpoints
) -> tuple[Any, list[dict[str, Any]]]:
    """The model with the adapter that validation chose, and the trainer's log."""
    from datasets import Dataset
    from peft import set_peft_model_state_dict
    from trl import GRPOTrainer

    rows = [
        {"prompt": prompt_text(example), "number": number}
        for number, example in enumerate(run.part.task.train)
    ]
    with TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=rewarded,
            args=_arguments(run, scratch),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=_adapter(run.configuration),
            callbacks=[_looking(checkpoints, run)],
        )
        trainer.train()
        tuned = trainer.accelerator.unwrap_model(trainer.model)
        set_peft_model_state_dict(tuned, checkpoints.kept)
        return tuned, trainer.state.log_history


def _adapter(configuration: Configuration) -> Any:
    from peft import LoraConfig

    settings = configuration.lora
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.modules),
        task_type="CAUSAL_LM",
    )


def _arguments(run: Run, scratch: str) -> Any:
    import torch
    from trl import GRPOConfig

    rates = run.part.benchmark.lora
    return GRPOConfig(
        output_dir=scratch,
        learning_rate=rates.learning_rate,
        per_device_train_batch_size=run.configuration.lora.batch,
        gradient_accumulation_steps=rates.accumulation,
        num_train_epochs=run.configuration.lora.epochs,
        max_steps=run.steps,
        num_generations=run.generations,
        max_completion_length=run.within(rates.max_completion),
        temperature=1.0,
        bf16=True,
        gradient_checkpointing=True,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=run.seed,
    )


def _looking(checkpoints: Checkpoints, run: Run) -> Any:
    """A callback of the trainer that evaluates as often as the paper, evenly, after the last step
    too.
    """
    from transformers import TrainerCallback

    evaluations = run.configuration.lora.evaluations
    when = {round(run.steps * (number + 1) / evaluations) for number in range(evaluations)} - {0}

    class Looking(TrainerCallback):  # type: ignore[misc]
        def on_step_end(
            self, args: Any, state: Any, control: Any, model: Any = None, **_more: Any
        ) -> None:
            if state.global_step in when:
                checkpoints.look(model, state.global_step)
                model.train()

    return Looking()


def _result(
    path: str,
    run: Run,
    tuned: Any,
    log: list[dict[str, Any]],
    checkpoints: Checkpoints,
    base: PolicyScores,
    greedy: Greedy,
    seconds: float,
) -> LoraResult:
    scores, rates = greedy.scores(tuned, run.part.task.test), run.part.benchmark.lora
    own = {
        "test_cap": greedy.cap,
        "max_completion": run.within(rates.max_completion),
        "generations": run.generations,
    }
    return LoraResult(
        table=run.configuration.table,
        benchmark=run.part.name,
        model=Path(path).name,
        params=sum(each.numel() for name, each in tuned.named_parameters() if "lora_" in name),
        steps=run.steps,
        selected=checkpoints.selected,
        rollouts=run.steps * run.per_step,
        train=len(run.part.task.train),
        test=len(run.part.task.test),
        accuracy=mean_of(scores.correct or ()),
        tokens=mean_of(scores.tokens),
        base={"accuracy": mean_of(base.correct or ()), "tokens": mean_of(base.tokens)},
        verdict=tuple(together(compare(GREEDY, base, scores, greedy.reward.label))),
        validation=tuple(checkpoints.told),
        log=tuple(
            {name: row[name] for name in SHOWN if name in row} for row in log if "loss" in row
        ),
        settings=run.configuration.lora.model_dump()
        | rates.model_dump()
        | own
        | {
            "seed": run.seed,
            "seconds": round(seconds),
        },
        provenance=_provenance(),
    )


def _provenance() -> dict[str, Any]:
    told = provenance()
    packages = ("accelerate", "peft", "torch", "transformers", "trl")
    command = shlex.join(["python", "-m", "bench.paper.lora_grpo", *sys.argv[1:]])
    return {
        **told,
        "command": command,
        "versions": told["versions"] | {name: version(name) for name in packages},
    }


@click.command()
@click.argument("model")
@click.option("--reward", type=click.Choice(list(TABLES)), default="accuracy", show_default=True)
@click.option(
    "--benchmark", type=click.Choice(["math", "gsm8k", "gpqa"]), help="[default: the table's first]"
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder with the benchmark's data."
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="JSONL or CSV of your own problems instead."
)
@click.option("--scale", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option(
    "--max-steps", type=click.IntRange(1), help="Optimizer steps at most. [default: one epoch]"
)
@click.option(
    "--generations",
    type=click.IntRange(2),
    default=8,
    show_default=True,
    help="Completions a problem.",
)
@click.option(
    "--cap", type=click.IntRange(1), help="Tokens of a completion at most, below the paper's."
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("lora.json"), show_default=True
)
def main(
    model: str,
    reward: str,
    benchmark: str | None,
    data_dir: Path | None,
    data: Path | None,
    scale: float,
    max_steps: int | None,
    generations: int,
    cap: int | None,
    seed: int,
    out: Path,
) -> None:
    """Train the paper's LoRA-GRPO reference of MODEL, a folder or a hub name, and judge it.

    The same --scale picks the same problems as python -m bench.paper.
    """
    configuration = load_configuration(TABLES[reward])
    benchmark = benchmark or next(iter(configuration.benchmarks))
    if benchmark not in configuration.benchmarks:
        raise click.UsageError(
            f"the table of {TABLES[reward]} has {', '.join(configuration.benchmarks)}, not"
            f" {benchmark}"
        )
    settings = configuration.benchmarks[benchmark]
    part = scaled(
        benchmark,
        settings,
        load_problems(settings, data, data_dir),
        scale,
        configuration.projection.share,
    )
    found = train(model, Run(configuration, part, generations, max_steps, cap, seed))
    out.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    click.echo(f"accuracy {found.accuracy}, tokens {found.tokens}; base {found.base}")
    for row in found.verdict:
        click.echo(
            f"{row.metric}: {row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f}) {row.verdict}"
        )
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
