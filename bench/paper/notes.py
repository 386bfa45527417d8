"""What is asked for before a run, and in what a run differed from the paper, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from bench.paper.configuration import Configuration
from bench.paper.results import BenchmarkResult
from bench.paper.scaling import Scaled, ScalingStage


def plan_sentences(
    configuration: Configuration, parts: Sequence[Scaled], scale: float
) -> list[str]:
    """What is scaled, what each stage asks for at most, and the sum."""
    told: list[str] = []
    stages: list[ScalingStage] = []
    for part in parts:
        own = part.stages(configuration)
        told += part.sentences(scale)
        told += [f"{part.benchmark.title}, {_asked(stage)}" for stage in own]
        stages += own
    prompt = sum(stage.completions * stage.prompt_tokens for stage in stages)
    return [
        *told,
        (
            f"in all at most {sum(stage.completions for stage in stages):,} completions, at most"
            f" {sum(stage.tokens for stage in stages):,} completion tokens and about {prompt:,}"
            " prompt tokens (4 characters each); what the store holds is not asked for again"
        ),
    ]


def _asked(stage: ScalingStage) -> str:
    return (
        f"{stage.title}: at most {stage.completions:,} completions of at most {stage.cap:,} tokens,"
        f" prompts of about {stage.prompt_tokens:,} tokens"
    )


def differences(
    configuration: Configuration,
    parts: Sequence[Scaled],
    results: Sequence[BenchmarkResult],
    *,
    scale: float,
    model: str,
    provider: str,
    endpoint: str,
) -> list[str]:
    """Everything that makes a number of ours another thing than the paper's beside it."""
    told = [
        f"model: {model} through {provider} ({endpoint}); the paper's: {configuration.model}",
        *(sentence for part in parts for sentence in part.sentences(scale)),
    ]
    for part, result in zip(parts, results, strict=True):
        told += _of_benchmark(part, result)
    left = [
        each.title
        for name, each in configuration.benchmarks.items()
        if name not in {part.name for part in parts}
    ]
    told += [f"not run: {', '.join(left)}"] * bool(left)
    told += [f"the paper does not tell {what}" for what in configuration.not_told]
    if configuration.objective == "pareto":
        told.append(
            "a candidate keeps the base's validation accuracy if it loses no more than one standard"
            " error of the paired difference; the paper does not tell how closely it has to be kept"
        )
    told.append(
        "projection is not in the paper; a bias of ours is sent with each request as logit_bias"
        " within the provider's limits, the paper's through a logits processor, whole"
    )
    told.append("LoRA-GRPO needs the weights and was not run")
    return told


def _of_benchmark(part: Scaled, result: BenchmarkResult) -> list[str]:
    title = part.benchmark.title
    told = [f"{title}: {result.note}"] * bool(result.note)
    told += [f"{title}: the paper's selection chose {part.benchmark.chosen}"]
    for own in result.methods:
        if own.missing is not None:
            told.append(f"{title}, {own.method} not run: {own.missing}")
        if own.compiled is not None:
            told.append(f"{title}, {own.method}: {own.compiled}")
    return told
