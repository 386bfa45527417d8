"""The formats of tools that send requests of their own: settings, files and scripts with the bias
in it.

What each tool takes was read in its source; tests/live/test_third_party.py runs those that install.
"""

from __future__ import annotations

import json
import logging
import shlex
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blackbox_lb.bias.addresses import literal
from blackbox_lb.bias.export_job import PROMPT, ExportJob, arguments, call_lines, posted
from blackbox_lb.bias.features import Scope
from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.safety.printable import printable

log = logging.getLogger(__name__)

MODEL_PLACE = "MODEL"
"""Stands in commands where only the user knows a name."""
BANNED = 5.0
"""Nats below zero from which a token counts as banned: its probability is less than a hundredth of
what it was."""
MOST_STRINGS = 48
"""Phrases that koboldcpp takes: https://github.com/LostRuins/koboldcpp/issues/1153."""


@dataclass(frozen=True, slots=True)
class Format:
    """One row of the table of formats.

    write: makes the text. summary: what it is, for the help. scopes: what the bias may depend on
    beside its entries. limit: the tool takes whole numbers up to this one; None where it takes all
    that the provider does. comments: whether the text has comments; remarks are logged where it
    has none. is_chat: it sends chat messages alone. takes_phrases: phrases of the file are written,
    too. remarks: sentences that hold for every bias.
    """

    write: Callable[[ExportJob], str]
    summary: str
    scopes: tuple[Scope, ...] = ()
    limit: int | None = None
    comments: bool = True
    is_chat: bool = False
    takes_phrases: bool = False
    remarks: tuple[str, ...] = ()


def rounded(values: Mapping[str, float], limit: int, tool: str) -> tuple[dict[str, float], str]:
    """The values as whole numbers within the limit, without zeros; and what that changed, in a
    sentence, "" for nothing.
    """
    clipped = {token: max(-limit, min(limit, round(value))) for token, value in values.items()}
    nonzero: dict[str, float] = {token: value for token, value in clipped.items() if value}
    errors = [abs(clipped[token] - value) for token, value in values.items()]
    changed = sum(error > 0 for error in errors)
    if not changed:
        return nonzero, ""
    lost = len(clipped) - len(nonzero)
    zeros = f", and {lost:,} become 0 and are left out" if lost else ""
    return nonzero, (
        f"{tool} takes whole numbers from -{limit} to {limit}: {changed:,} of"
        f" {len(values):,} values are rounded, by at most {max(errors):.2f} nats{zeros};"
        " blb proxy and blb serve send them as they are"
    )


def word_of(model: str) -> str:
    """A model's name, quoted for a shell. Raises InputError: it holds characters that would move a
    terminal's cursor.
    """
    if not model.isprintable():
        raise InputError(
            f"the model is called '{printable(model)[:80]}', which no command can show; give its"
            " name with ``model``"
        )
    return shlex.quote(model)


def _shell(job: ExportJob, *lines: str) -> str:
    """A shell command between what it is about and its tokens."""
    return "\n".join([job.about, *lines, "", job.legend])


def _llm(job: ExportJob) -> str:
    """https://llm.datasette.io/en/stable/usage.html#model-options. Values go through ``int()``."""
    options = {"logit_bias": json.dumps(job.values), **job.settings}
    return _shell(
        job,
        f"# {MODEL_PLACE}: the name in llm models, for a server of your own that of"
        " extra-openai-models.yaml.",
        *(
            f"llm models options set {MODEL_PLACE} {name} {shlex.quote(str(value))}"
            for name, value in options.items()
        ),
        f"llm -m {MODEL_PLACE} {PROMPT}",
    )


def _inspect(job: ExportJob) -> str:
    """https://inspect.aisi.org.uk/options.html. ``--logit-bias`` takes ``ID=VALUE,...``. The
    provider ``openai`` leaves the temperature out of requests for names that it does not know.
    """
    pairs = ",".join(f"{token}={json.dumps(value)}" for token, value in job.values.items())
    flags = "".join(f" --{name.replace('_', '-')} {value}" for name, value in job.settings.items())
    key = job.server.shell_key.rpartition(" ")[2] or "none"
    return _shell(
        job,
        job.server.set_url,
        f'HOST_BASE_URL="$URL" HOST_API_KEY="{key}" inspect eval TASK.py --model'
        f" {word_of(f'openai-api/host/{job.model}')} --logit-bias={pairs}{flags}",
    )


def _pydantic_ai(job: ExportJob) -> str:
    """``ModelSettings.logit_bias`` is typed with whole numbers, so that the numbers go through
    ``extra_body``.
    """
    where = job.server.arguments("base_url", "default_headers", "default_query")
    settings = [*arguments(job.settings), 'extra_body={"logit_bias": LOGIT_BIAS}']
    return job.python(
        "from openai import AsyncOpenAI\n"
        "from pydantic_ai import Agent\n"
        "from pydantic_ai.models.openai import OpenAIChatModel\n"
        "from pydantic_ai.providers.openai import OpenAIProvider\n"
        "from pydantic_ai.settings import ModelSettings",
        *call_lines("client = AsyncOpenAI", {}, *where),
        *call_lines(
            "model = OpenAIChatModel",
            {},
            literal(job.model),
            "provider=OpenAIProvider(openai_client=client)",
        ),
        *call_lines("settings = ModelSettings", {}, *settings),
        f"print(Agent(model, model_settings=settings).run_sync({literal(PROMPT)}).output)",
    )


def _dspy(job: ExportJob) -> str:
    """``dspy.LM`` hands what it does not know to LiteLLM."""
    job.check_no_query()
    where = job.server.arguments("api_base", "extra_headers", "extra_query")
    model = literal(f"openai/{job.model}")
    return job.python(
        "import dspy",
        *call_lines(
            "lm = dspy.LM", {}, model, "logit_bias=LOGIT_BIAS", *arguments(job.settings), *where
        ),
        "dspy.configure(lm=lm)",
        f"print(lm({literal(PROMPT)})[0])",
    )


def _litellm_yaml(job: ExportJob) -> str:
    """A model of the proxy's config.yaml: https://docs.litellm.ai/docs/proxy/configs. A variable
    stands there as it is, without a default and without a path behind it.

    Raises InputError: the address is that of a variable with a path behind it.
    """
    job.check_no_query()
    rules = job.connection
    address = job.base_url or rules.base_url
    if address is not None:
        address = json.dumps(address.strip().rstrip("/"))
    elif rules.base_path:
        raise InputError(
            f"LiteLLM's configuration adds no {rules.base_path} to the address in"
            f" {rules.base_url_env}; give the whole address as ``base_url``"
        )
    else:
        address = f"os.environ/{rules.base_url_env}"
    key = f"os.environ/{rules.api_key_env}" if rules.api_key_env else "none"
    headers = []
    if rules.api_key_header != "Authorization":
        headers = ["      extra_headers:", f"        {json.dumps(rules.api_key_header)}: {key}"]
    kind = "openai" if job.chat else "text-completion-openai"
    lines = [
        job.about,
        "model_list:",
        f"  - model_name: {json.dumps(job.model)}",
        "    litellm_params:",
        f"      model: {json.dumps(f'{kind}/{job.model}')}",
        f"      api_base: {address}",
        f"      api_key: {key}",
        *headers,
        *(f"      {name}: {value}" for name, value in job.settings.items()),
        "      logit_bias:",
    ]
    return "\n".join(lines) + "\n" + job.listed("{}: {}", "        ")


def _llamacpp(job: ExportJob) -> str:
    """https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md, ``-l``."""
    texts = job.texts
    flags = "".join(
        f"  -l {token}{value:+}  {texts[token]}\n" for token, value in job.values.items()
    )
    pairs = [[int(token), value] for token, value in job.values.items()]
    return (
        f'{job.about}\nBIAS=(\n{flags})\nllama-server -m {MODEL_PLACE}.gguf "${{BIAS[@]}}"\n\n'
        "# Some builds ignore -l for chat (llama.cpp#19699): compare an answer. In a request:"
        f'\n# "logit_bias": {json.dumps(pairs)}\n'
    )


def _sillytavern(job: ExportJob) -> str:
    """A logit bias preset for its import button; a text in brackets is a list of token ids, see
    public/scripts/logit-bias.js of SillyTavern.
    """
    rows = [
        {
            "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{job.bias.tokenizer}:{token}")),
            "text": f"[{token}]",
            "value": value,
        }
        for token, value in job.values.items()
    ]
    return json.dumps(rows, indent=2) + "\n"


def _open_webui(job: ExportJob) -> str:
    """The advanced parameter ``logit_bias`` of a model."""
    return ",".join(f"{token}:{value}" for token, value in job.values.items()) + "\n"


def _openrouter_preset(job: ExportJob) -> str:
    """https://openrouter.ai/docs/features/presets. The preset's name stands in the path."""
    body = {"model": job.model, **job.prompt, **job.settings, "logit_bias": job.values}
    request = posted(
        "https://openrouter.ai/api/v1/presets/blackbox-lb/chat/completions",
        "Authorization: Bearer $OPENROUTER_API_KEY",
        body,
    )
    use = '# Then any client asks for "model": "@preset/blackbox-lb".'
    return f"{job.about}\n{request}{use}\n\n{job.legend}"


def _koboldcpp_strings(job: ExportJob) -> str:
    """The field ``banned_tokens`` of a request: phrases that are never written. Those that the file
    keeps out come first, then the tokens that are suppressed most. Raises BiasError: it holds no
    words or phrases, and nothing is suppressed that much.
    """
    lines = PhraseList.of_entries(job.bias.phrases).lines
    heaviest = sorted(lines, key=lambda line: -line.weight)
    kept_out = [line.entry for line in heaviest if not line.is_pattern]
    suppressed = sorted(
        (
            entry
            for entry in job.bias.entries
            if entry.bias <= -BANNED and (entry.text or "").strip()
        ),
        key=lambda entry: entry.bias,
    )
    texts = [(entry.text or "").strip() for entry in suppressed]
    phrases = list(dict.fromkeys([*kept_out, *texts]))
    if not phrases:
        least = min((entry.bias for entry in job.bias.entries), default=0.0)
        raise BiasError(
            f"koboldcpp bans phrases whole, and no token of this bias is lowered by {BANNED:g} nats"
            f" or more (most: {-min(least, 0.0):.2f}); send the bias as logit_bias instead, which"
            " koboldcpp takes in a request: blb proxy"
        )
    if len(phrases) > MOST_STRINGS:
        log.warning(
            "koboldcpp takes %d phrases: the last %s of %s are left out",
            MOST_STRINGS,
            f"{len(phrases) - MOST_STRINGS:,}",
            f"{len(phrases):,}",
        )
    return (
        json.dumps({"banned_tokens": phrases[:MOST_STRINGS]}, indent=2, ensure_ascii=False) + "\n"
    )


HANDOVER: dict[str, Format] = {
    "llm": Format(_llm, "commands that set a model's options", limit=100, is_chat=True),
    "inspect": Format(_inspect, "a command of inspect_ai", is_chat=True),
    "pydantic-ai": Format(_pydantic_ai, "a Python script", is_chat=True),
    "dspy": Format(_dspy, "a Python script", is_chat=True),
    "litellm-yaml": Format(_litellm_yaml, "a model of the LiteLLM proxy's config.yaml"),
    "llamacpp": Format(_llamacpp, "flags of llama-server"),
    "sillytavern": Format(
        _sillytavern, "a logit bias preset to import", comments=False, is_chat=True
    ),
    "open-webui": Format(
        _open_webui, "the advanced parameter of a model", limit=100, comments=False, is_chat=True
    ),
    "openrouter-preset": Format(
        _openrouter_preset,
        "a command that stores it as a preset",
        is_chat=True,
        remarks=(
            "UNVERIFIED: whether OpenRouter keeps logit_bias in a preset was not tried; compare an"
            " answer of the preset with one of the model.",
        ),
    ),
    "koboldcpp-strings": Format(
        _koboldcpp_strings,
        "its phrases, and the texts that it suppresses most, banned",
        comments=False,
        takes_phrases=True,
        remarks=(
            f"A ban is harder than the bias: only tokens lowered by {BANNED:g} nats or more are"
            " listed, every word that has such a text in it is banned, and nothing is promoted.",
        ),
    ),
}
"""Name -> the format."""
