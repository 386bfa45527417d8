"""Export of a bias, as numbers or as code that is ready to run, for tools that send their own
requests.
"""

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blackbox_lb.bias.addresses import literal
from blackbox_lb.bias.document import RUN_FILE, Bias, bias_path
from blackbox_lb.bias.export_job import PROMPT, ExportJob, arguments, call_lines
from blackbox_lb.bias.features import GROUP, PromptText, Scope
from blackbox_lb.bias.handover import HANDOVER, Format, rounded, word_of
from blackbox_lb.bias.limits import check_bias, check_limits, highest_id, vocabulary_of
from blackbox_lb.bias.operating import Promise
from blackbox_lb.bias.phases import Prefix
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile

VLLM = "vllm"

log = logging.getLogger(__name__)


def logit_bias(
    bias: Bias | str | Path,
    provider: str | None = None,
    *,
    tokenizer: str | None = None,
    messages: Sequence[Mapping[str, Any]] | str | None = None,
    group: str | None = None,
    prefix: Prefix | None = None,
) -> dict[str, float]:
    """The request field ``logit_bias``: token id, as JSON keys it, -> nats, whole ones as integers;
    sorted by id.

    bias: a Bias or the path of a bias file. provider: a name, or the path of a TOML, whose limits
    are checked; None checks none. tokenizer: the model's vocabulary, needed where a limit on ids
    applies and the model's name does not identify the vocabulary. messages: those of the request,
    or the text of a completions request, for a bias that depends on the prompt. group: of the
    prompt, for one that depends on groups. prefix: what came of the answer so far, for one that
    changes within an answer.

    Raises BiasError: the file cannot be read, the provider takes no such bias, or ``messages`` or
    ``prefix`` are needed and not given. InputError: no such provider or vocabulary.
    """
    loaded = Bias.of(bias)
    if provider is not None:
        _check(loaded, load_profile(provider), tokenizer)
    values_by_scope: dict[Scope, object] = {"prompt": messages, "prefix": prefix}
    scopes = [scope for scope, value in values_by_scope.items() if value is not None]
    missing = " and ".join(
        f"{name}=" for name, value in (("messages", messages), ("prefix", prefix)) if value is None
    )
    loaded.check_scopes(scopes, f"logit_bias(bias) without {missing}")
    sent = to_request_bias(loaded)
    text = PromptText.of_request(_body(messages, group))
    return _field(sent.of_text(text, sent.phases.of(prefix or Prefix())))


def _field(values: Mapping[int, float]) -> dict[str, float]:
    """Token id -> nats as the request field has them."""
    return {
        str(token): int(value) if value == int(value) else value for token, value in values.items()
    }


def vllm_xargs(
    bias: Bias | str | Path,
    name: str,
    *,
    messages: Sequence[Mapping[str, Any]] | str,
    group: str | None = None,
) -> dict[str, Any]:
    """The request field ``vllm_xargs`` for a bias that depends on the prompt and that vLLM serves
    as ``name``: the numbers of the prompt by their names, of which the server computes the bias.

    messages, group: as in ``logit_bias``.

    Raises BiasError: the file cannot be read, or an embedding model is another than the one that
    it was learned with.
    """
    loaded = Bias.of(bias)
    arguments: dict[str, Any] = {"blb_bias": name}
    sent = to_request_bias(loaded)
    if "prompt" in sent.scopes:
        names = sent.names_of_numbers()
        numbers = sent.numbers(PromptText.of_request(_body(messages, group)))
        pairs = [(names[place], number) for place, number in numbers.items()]
        arguments["blb_features"] = [part for pair in pairs for part in pair]
    return arguments


def _body(messages: Sequence[Mapping[str, Any]] | str | None, group: str | None) -> dict[str, Any]:
    """A request with these messages, or with a text as its prompt."""
    if isinstance(messages, str):
        return {"prompt": messages, GROUP: group}
    return {"messages": list(messages or ()), GROUP: group}


def export(
    bias: Bias | str | Path,
    format: str,
    *,
    at: str | None = None,
    provider: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    tokenizer: str | None = None,
) -> str:
    """``bias`` in one of ``FORMATS``, as text that ends in a newline. Where the bias is not one map
    for all requests, a script reads its file and computes the map of each, and json is the table of
    its features.

    at: another operating point, as in "precision=.9" (see ``Bias.at``).
    provider: sets the address, the key's variable and the limits; by default the bias's own, and
    vllm for that format. One that neither comes with the package nor is given is treated as any
    OpenAI-compatible API: address in OPENAI_BASE_URL, no checks. model: its name there, by default
    the bias's. base_url: the API's address. Headers that a profile takes from variables
    (``headers_env``) are not written.

    Raises InputError: no such format or provider, or the tool cannot send what the provider needs.
    BiasError: see ``logit_bias``; or the format holds one map, and the bias has several.
    """
    if format not in FORMATS:
        raise InputError(f"no format {format!r}; the formats are {', '.join(FORMATS)}")
    loaded = Bias.of(bias)
    if at is not None:
        loaded = loaded.at_promise(Promise.parse(at))
    profile_name = None
    if loaded.provider in profile_names():
        profile_name = loaded.provider
    name = provider or (VLLM if format == VLLM else profile_name)
    profile = None
    if name is not None:
        profile = load_profile(name)
    rules = FORMATS[format]
    user = f"blb export ``format={format}``"
    loaded.check_scopes(rules.scopes, user, takes_phrases=rules.takes_phrases)
    if profile is not None and format != VLLM:
        _check(loaded, profile, tokenizer)
    file = Path(RUN_FILE) if isinstance(bias, Bias) else bias_path(bias)
    values = {} if loaded.features else _field(loaded.logit_bias)
    remarks = []
    if rules.limit is not None:
        values, remark = rounded(values, rules.limit, format)
        remarks.append(remark)
    job = ExportJob(loaded, file, values, model or loaded.model, profile, base_url)
    if rules.is_chat and not job.chat:
        remarks.append("It was learned on continuations of a text; this tool sends chat messages.")
    if loaded.prompts is not None:
        remarks.append(loaded.prompts.sentence)
    remarks = [*filter(None, remarks), *rules.remarks]
    text = rules.write(replace(job, remarks=tuple(remarks)))
    if not rules.comments:
        for remark in remarks:
            log.warning("%s", remark)
    return text


def _check(bias: Bias, profile: Profile, tokenizer: str | None) -> None:
    """Check the limits; a bias compiled for this provider keeps to the limit on ids, so no
    vocabulary is needed for it.
    """
    is_compiled = bias.compiled is not None and bias.provider == profile.name
    asks = profile.bias.highest_id is not None and not is_compiled
    vocabulary = None
    if asks:
        vocabulary = vocabulary_of(bias, [profile], tokenizer)
    check_bias(bias, profile, highest_id(profile, vocabulary))


def _openai(job: ExportJob) -> str:
    call, text = ("chat.completions", "message.content") if job.chat else ("completions", "text")
    imports = "from openai import OpenAI"
    client = call_lines(
        "client = OpenAI",
        {},
        *job.server.arguments("base_url", "default_headers", "default_query"),
    )
    sent = ["logit_bias=LOGIT_BIAS"]
    if job.applies:
        imports = f"from blackbox_lb import apply\n{imports}"
        where = {"models": [job.model]} | ({"provider": job.profile.name} if job.profile else {})
        client += call_lines(
            "client = apply", {}, "client", literal(str(job.file)), *arguments(where)
        )
        sent = []
    sent += arguments(job.sent_settings)
    return job.python(
        imports,
        *client,
        *call_lines(f"answer = client.{call}.create", {"model": job.model}, job.asked, *sent),
        f"print(answer.choices[0].{text})",
    )


def _litellm(job: ExportJob) -> str:
    call = "completion"
    kind = "openai"
    text = "message.content"
    if not job.chat:
        call = "text_completion"
        kind = "text-completion-openai"
        text = "text"
    job.check_no_query()
    where = job.server.arguments("api_base", "extra_headers", "extra_query")
    return job.python(
        "import litellm",
        *call_lines(
            f"answer = litellm.{call}",
            {"model": f"{kind}/{job.model}"},
            job.asked,
            "logit_bias=LOGIT_BIAS",
            *arguments(job.settings),
            *where,
        ),
        f"print(answer.choices[0].{text})",
    )


def _langchain(job: ExportJob) -> str:
    """ChatOpenAI's own field ``logit_bias`` takes whole numbers only, so that the numbers go
    through ``extra_body``.
    """
    name = "ChatOpenAI"
    bias = 'extra_body={"logit_bias": LOGIT_BIAS}'
    text = ".content"
    if not job.chat:
        name = "OpenAI"
        bias = "logit_bias=LOGIT_BIAS"
        text = ""
    where = job.server.arguments("base_url", "default_headers", "default_query")
    return job.python(
        f"from langchain_openai import {name}",
        *call_lines(f"model = {name}", {"model": job.model} | job.settings, bias, *where),
        f"print(model.invoke({literal(PROMPT)}){text})",
    )


def _table(bias: Bias) -> dict[str, Any]:
    """The features with their vectors, where one map cannot hold the bias; {} where it can."""
    if not bias.features:
        return {}
    return {
        "token_ids": list(bias.logit_bias),
        "common": list(bias.logit_bias.values()),
        "features": [
            {
                "feature": feature.spec,
                "scope": feature.scope,
                "name": vector.name,
                "values": list(vector.values),
            }
            for feature in bias.features
            for vector in feature.vectors
        ],
    }


def _vllm(job: ExportJob) -> str:
    """How to put the file into the folder of a server with the logits processor; where the bias
    fits into a request, that too.
    """
    name = job.file.stem
    serve = word_of(job.model)
    ((_, prompt),) = job.prompt.items()
    arguments = vllm_xargs(job.bias, name, messages=prompt)
    processor = (
        f"{job.about}\n# In the server, whatever its size: it reads biases/*.json and adds the one"
        f" that a request names.\nmkdir -p biases && cp {shlex.quote(str(job.file))}"
        f" {shlex.quote(f'biases/{name}.json')}\nBLB_BIAS_DIR=biases vllm serve {serve}"
        " --logits-processors blackbox_lb.serve.vllm:LearnedBias\n\n# In another"
        f" terminal:\n{job.server.set_url}\n{job.curl(vllm_xargs=arguments)}"
    )
    if "prompt" in job.bias.scopes:
        return (
            f"{processor}\n# The numbers are those of this prompt; each request has its own:"
            " blackbox_lb.vllm_xargs(file, name, messages=...)\n"
        )
    if job.profile is None or job.bias.features:
        return processor
    try:
        check_limits(job.bias.logit_bias, job.profile)
    except BiasError as error:
        return f"{processor}\n# Not in the request itself: {error}\n"
    return (
        f"{processor}\n# Or in the request itself, with any vLLM"
        f" server:\n{job.curl(logit_bias=job.values)}"
    )


def _curl(job: ExportJob) -> str:
    sent = job.curl(logit_bias=job.values)
    return f"{job.about}\n{job.server.set_url}\n{sent}\n{job.legend}"


FORMATS: dict[str, Format] = {
    "openai": Format(_openai, "a Python script", scopes=("prompt", "prefix")),
    "litellm": Format(_litellm, "a Python script", scopes=("prompt",)),
    "langchain": Format(_langchain, "a Python script"),
    "curl": Format(_curl, "a shell command"),
    "vllm": Format(
        _vllm, "how to serve a bias of any size and ask for it", scopes=("prompt", "prefix")
    ),
    "json": Format(
        lambda job: json.dumps(_table(job.bias) or job.values, indent=2) + "\n",
        "the value of the request field logit_bias",
        scopes=("prompt", "prefix"),
        comments=False,
    ),
    **HANDOVER,
}
"""Name -> the format."""
