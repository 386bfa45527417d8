"""Every rule that the gateway keeps, with its source: the table behind ``RulesGateway.rules``.

Schema = OpenAI's official OpenAPI description, version 2.3.0 (github.com/openai/openai-openapi), by
component name. SDK = Fireworks' official Python client, generated from Fireworks' OpenAPI
description (github.com/fw-ai-external/python-sdk). Recorded = an answer of the real service,
published with the place named. "Wording not recorded": the rule is documented, the sentence is
built like the recorded ones beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ROUTED", "SOURCES", "TOGETHER"]

CHAT, LEGACY = "CreateChatCompletionRequest", "CreateCompletionRequest"

OPENAI: Mapping[str, str] = {
    "url": "recorded: openai/openai-node issue 132, `Invalid URL (POST ...)`",
    "key": (
        "recorded 2025-12 (Mirascope e2e cassette): 401 invalid_api_key; a missing key: API page"
        " Authentication"
    ),
    "model": "recorded 2025-12 (Mirascope e2e cassette): 404 model_not_found",
    "model of the endpoint": (
        "recorded: 404 `This is a chat model and not supported in the v1/completions endpoint`"
    ),
    "JSON": "recorded: 400 `We could not parse the JSON body of your request`",
    "required": (
        f"schema {CHAT}.required, {LEGACY}.required; recorded 2026-08: 400"
        " missing_required_parameter"
    ),
    "unknown field": (
        f"schema {CHAT}.properties, {LEGACY}.properties; recorded (openai/openai-python issue"
        " 433): 400"
    ),
    "type": (
        f"schema {CHAT}, {LEGACY}: type of each property; recorded 2025-07 (Jeffser/Alpaca issue"
        " 904): 400 invalid_type"
    ),
    "range": (
        f"schema {CHAT}, {LEGACY}, ModelResponseProperties: minimum, maximum; recorded 2025-03"
        " (thisisartium/continuous-alignment-testing issue 25): 400 integer_above_max_value"
    ),
    "stop": (
        "schema StopConfiguration: maxItems 4; recorded for other arrays: 400"
        " array_above_max_length"
    ),
    "top_logprobs": (
        f"schema {CHAT}.top_logprobs: 0 to 20; recorded 2024-06 (confident-ai/deepeval issue"
        " 843): 400"
    ),
    "top_logprobs without logprobs": (
        f"schema {CHAT}.top_logprobs: `logprobs` must be true; recorded 2026-08: 400"
    ),
    "legacy logprobs": f"schema {LEGACY}.logprobs: 0 to 5; wording not recorded",
    "prompt token": (
        "recorded 2025-08 for gpt-3.5-turbo-instruct (DataDog/dd-trace-py): 400, ids within the"
        " vocabulary"
    ),
    "two token limits": "recorded: 400 invalid_parameter_combination",
    "bias object": f"schema {CHAT}.logit_bias: an object; wording as for every type",
    "bias properties": (
        "recorded 2025 for gpt-4o: 400 `too many properties. Expected an object with at most 1024`"
    ),
    "bias entries": (
        "recorded 2023 for gpt-3.5-turbo (dpaleka/stealing-part-lm-supplementary): 400 above 300"
        " entries"
    ),
    "bias keys": (
        "recorded 2023 (OkGoDoIt/OpenAI-API-dotnet issue 163): 400, keys are non-negative integers"
    ),
    "bias largest id": (
        "recorded 2023 (openai/openai-python issue 572): 400, ids end with the base vocabulary"
    ),
    "bias values": f"schema {CHAT}.logit_bias, description: -100 to 100; wording not recorded",
    "reasoning: parameters": (
        "recorded 2026-01 for gpt-5-mini (Mirascope e2e cassette): 400 unsupported_parameter"
    ),
    "reasoning: values": (
        "recorded 2025-10 for o4-mini (NVlabs/cvdp_benchmark issue 29): 400 unsupported_value"
    ),
    "requests per minute": "API page Rate limits; recorded 2023 (RPM): 429 rate_limit_exceeded",
    "tokens per minute": (
        "API page Rate limits; recorded 2025-06 (coleam00/mcp-crawl4ai-rag pull 41): 429, type"
        " tokens"
    ),
    "too large": "recorded: 429 `Request too large`, more tokens than a minute holds",
    "quota": "recorded 2023-12 (ChatGPTNextWeb/NextChat issue 3664): 429 insufficient_quota",
    "batch file": (
        "recorded 2026-08 (BerriAI/litellm pull 37527): 400 `Invalid file format for Batch API."
        " Must be .jsonl`"
    ),
    "batch size": (
        "recorded 2024-11 (bespokelabsai/curator pull 113): 400 `File is too large.`; 200 MB: API"
        " page Batch"
    ),
    "no such file": "recorded: 404 `No such File object`",
    "no such batch": "API page Retrieve batch: 404; wording not recorded",
    "batch cancel": (
        "recorded (BerriAI/litellm, test of batches): 409 `Cannot cancel a batch with status"
        " 'completed'.`"
    ),
    "batch values": (
        "SDK BatchCreateParams: endpoint and completion_window are literals; wording as for every"
        " literal"
    ),
    "answer: batch states": (
        "SDK Batch.status; API page Batch: validating, in_progress, finalizing, completed, expired,"
        " cancelling, cancelled; failed with `errors.data` of code, message, line and param"
    ),
    "answer: batch complaints": (
        "recorded: invalid_json_line, `Enqueued token limit reached for` (token_limit_exceeded); "
        "duplicate_custom_id, url_mismatch, model_mismatch, empty_file, too_many_tasks: codes only"
    ),
    "answer: batch files": (
        "API page Batch: answers in any order, failed requests in the error file, batch_expired in"
        " the recorded words"
    ),
    "server error": (
        "API page Error codes: 500 server_error; the engine behind the gateway failed, or a test"
        " planted it"
    ),
    "not served": "the gateway's own: what it cannot do truly it refuses",
    "answer: tokens": (
        "schema ChatCompletionTokenLogprob: token, logprob, bytes, top_logprobs; no ids"
    ),
    "answer: bytes": (
        "schema ChatCompletionTokenLogprob.bytes; recorded 2026-04: partial UTF-8 printed as"
        " escapes; recorded for gpt-4o (llamastack/llama-stack): special tokens have `bytes: null`"
    ),
    "answer: end token": (
        "recorded 2026 (0xPlaygrounds/rig): the list is as long as usage.completion_tokens, no end"
        " token"
    ),
    "answer: outside the top 20": (
        "schema ChatCompletionTokenLogprob.logprob: -9999.0; recorded 2026-04 (Robby955/logprobe)"
    ),
    "answer: quantised": (
        "recorded 2026-04 (Robby955/logprobe): gaps to the likeliest are multiples of 1/16 nat"
    ),
    "answer: legacy lists": (
        "recorded 2021, 2023 (Azure/azure-sdk-for-net, EleutherAI/lm-evaluation-harness): string"
        " keys, `bytes:\\x..` strings, unsorted, offsets from the end of the prompt, tokens after a"
        " stop string, and at k = 1 a sampled token outside the list stays outside (the schema"
        " allows logprobs + 1 entries)"
    ),
    "answer: headers": (
        "recorded 2025-08 (DataDog/dd-trace-py): x-ratelimit-*, resets as 17ms; recorded 2026-01: a"
        " refused request is charged too, and a prompt costs its characters / 4 and 2 more"
    ),
}

AZURE: Mapping[str, str] = {
    **{rule: source for rule, source in OPENAI.items() if rule != "quota"},
    "url": (
        "recorded 2023-04 (openai/openai-python issue 362): 404 Resource not found;"
        " MicrosoftDocs/azure-docs issue 114602: the same without api-version"
    ),
    "key": (
        "recorded 2024-12 (Azure/azure-sdk-assets): 401, code is the string 401; Entra tokens:"
        " recorded flat body"
    ),
    "model": "recorded 2023-07 (Azure/azure-sdk-for-net): 404 DeploymentNotFound",
    "bias entries": "not recorded for Azure; as OpenAI",
    "requests per minute": (
        "recorded (openai/openai-python users): 429 `have exceeded call rate limit`"
    ),
    "tokens per minute": (
        "recorded 2025-02 (jasonacox/TinyLLM issue 17): 429, code is the string 429"
    ),
    "too large": "as tokens per minute",
    "batch file": (
        "how-to page Batch: a file is pending until it is processed; wording not recorded"
    ),
    "answer: batch states": (
        "how-to page Batch: as OpenAI's, and a job that takes longer than a day is not ended"
    ),
    "answer: batch files": (
        "how-to page Batch: url /chat/completions, the deployment's name as model"
    ),
    "prompt filter": "recorded 2024-04 (traceloop/openllmetry): 400 content_filter with innererror",
    "answer: headers": (
        "recorded 2026-03 (traceloop/openllmetry): resets are whole numbers that fit milliseconds"
        " only (120 requests a minute, one used: 500)"
    ),
}

FIREWORKS: Mapping[str, str] = {
    "url": "not recorded; status 404",
    "key": "recorded 2026: 401 UNAUTHORIZED, `The API key you provided is invalid.`",
    "model": "recorded 2026-08 (warpdotdev/warp issue 15107): 404 NOT_FOUND",
    "JSON": "wording not recorded",
    "required": "SDK CompletionCreateParamsBase: Required; wording not recorded",
    "unknown field": (
        "SDK CompletionCreateParamsBase; recorded 2025-10 (web-infra-dev/midscene issue 1322): 400;"
        " several at once recorded 2026-09: `2 request validation errors: ...`"
    ),
    "type": "SDK CompletionCreateParamsBase: types; wording not recorded",
    "range": "SDK CompletionCreateParamsBase: Required range; wording not recorded",
    "stop": "SDK CompletionCreateParamsBase.stop: up to 4; wording not recorded",
    "top_logprobs": "SDK CompletionCreateParamsBase.top_logprobs: 0 to 5; wording not recorded",
    "top_logprobs without logprobs": (
        "SDK CompletionCreateParamsBase.top_logprobs: used when `logprobs` is set; not recorded"
    ),
    "legacy logprobs": (
        "SDK CompletionCreateParamsBase.logprobs: an integer form, 0 to 5; wording not recorded"
    ),
    "prompt token": "SDK CompletionCreateParamsBase.prompt: token ids; wording not recorded",
    "two token limits": (
        "SDK CompletionCreateParamsBase.max_completion_tokens: not together with max_tokens"
    ),
    "bias object": "SDK CompletionCreateParamsBase.logit_bias: an object of numbers",
    "bias keys": "SDK CompletionCreateParamsBase.logit_bias: token ids; wording not recorded",
    "bias largest id": (
        "not recorded: whether Fireworks refuses or ignores an id past the vocabulary is unknown"
    ),
    "bias entries": "not recorded: no limit unless the test sets one",
    "bias values": "SDK CompletionCreateParamsBase.logit_bias: -100 to 100; wording not recorded",
    "requests per minute": "documentation page Rate limits: 429; wording not recorded",
    "tokens per minute": "documentation page Rate limits: 429; wording not recorded",
    "too large": "as tokens per minute",
    "server error": (
        "recorded 2026 (503 `service overloaded, please try again later`): the shape of its errors"
    ),
    "not served": "the gateway's own: what it cannot do truly it refuses",
    "answer: tokens": (
        "SDK NewLogProbsContent: token_id in every entry, logprob of the raw model,"
        " sampling_logprob of what was sampled from"
    ),
    "answer: legacy lists": (
        "SDK LogProbs: tokens, token_ids, token_logprobs, top_logprobs by string, text_offset"
    ),
    "answer: end token": "not recorded",
}

ROUTED: Mapping[str, str] = {
    "no host": (
        "page Provider routing, require_parameters; 404 `No endpoints found that can handle the"
        " requested parameters`, as quoted by users in 2026"
    ),
    "answer: host": (
        "recorded answer of openai/gpt-4o-mini (0xPlaygrounds/rig): the field provider names the"
        " host"
    ),
    "answer: field lacked": (
        "page Provider routing: without require_parameters a host ignores a field that it does not"
        " know"
    ),
}
"""OpenRouter's rules beside those of OpenAI's form of requests."""

TOGETHER: Mapping[str, str] = {
    "logprobs": "togethercomputer/openapi 2026-04-28, ChatCompletionRequest.logprobs: 0 to 20",
    "answer: lists": (
        "togethercomputer/openapi 2026-04-28, LogprobsPart; recorded 2025-04 for"
        " Llama-3.1-8B-Instruct (tsaichris/NLP-final): tokens, token_logprobs, token_ids and"
        " top_logprobs by text, on chat"
    ),
    "answer: content": (
        "inspect_ai, model/_providers/together.py: gpt-oss lists its tokens in logprobs.content;"
        " not recorded"
    ),
    "answer: end token": "not recorded",
}
"""Together's rules beside those of OpenAI's form of requests."""

SOURCES: Mapping[str, Mapping[str, str]] = {
    "openai": OPENAI,
    "azure": AZURE,
    "fireworks": FIREWORKS,
}
"""Provider -> rule -> source. Rules that begin with ``answer:`` shape answers; the others refuse
requests.
"""
