"""The engine's own process: llama.cpp behind its HTTP server, alive exactly as long as the parent
holds the pipe to its stdin.

It runs as a script: a JSON object of settings in ``sys.argv[1]``, one JSON line ``{"port": N}`` on
stdout once every server has loaded the model, llama.cpp's own complaints on stderr. The end of
stdin ends the process.

It is a process of its own because llama.cpp cannot be stopped safely inside the caller's: the
destructor of ``xllamacpp.Server`` waits, holding the GIL, until every request in flight has ended,
so a client in the same process that still waits for an answer could never stop.
"""

import json
import os
import sys
from typing import Any, TypedDict

HOST = "127.0.0.1"
ERRORS_ONLY = 1
"""llama.cpp's verbosity for errors and nothing else."""


class EngineSettings(TypedDict):
    """``servers`` on one port, each with ``threads`` threads and ``slots`` slots of ``context``
    tokens.
    """

    model: str
    name: str
    servers: int
    threads: int
    slots: int
    context: int


def main(settings: EngineSettings) -> None:
    """Load the model, report the port, and serve until stdin ends."""
    # A waiting OpenMP thread should spin only briefly: long spinning stalls the others where cores
    # are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "500")
    import xllamacpp

    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    device = any(info["type"] != cpu for info in xllamacpp.get_device_info())
    if device:  # several servers would only copy the weights to it several times
        settings = _merged(settings)
    servers = [_serve(xllamacpp, settings, 0, device)]
    port = int(servers[0].listening_address.rpartition(":")[2])
    servers += [_serve(xllamacpp, settings, port, device) for _ in range(settings["servers"] - 1)]
    print(json.dumps({"port": port}), flush=True)  # noqa: T201
    sys.stdin.buffer.read()
    os._exit(0)  # without destructors, which would wait for requests in flight


def _merged(settings: EngineSettings) -> EngineSettings:
    count = settings["servers"]
    return {
        **settings,
        "servers": 1,
        "threads": settings["threads"] * count,
        "slots": settings["slots"] * count,
    }


def _serve(xllamacpp: Any, settings: EngineSettings, port: int, device: bool) -> Any:
    slots = settings["slots"]
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["name"]}
    params.hostnames = [HOST]
    params.port = port
    params.reuse_port = settings["servers"] > 1  # the kernel spreads connections over the servers
    params.n_parallel = slots
    params.n_ctx = slots * settings["context"]
    params.n_threads_http = 2 * slots + 16  # a connection that is kept open keeps a thread
    params.cpuparams.n_threads = settings["threads"]
    params.cache_ram_mib = 0  # else prompts are copied to main memory, up to 8 GiB
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.fit_params = device  # a processor needs no trial, which takes as long as the load
    params.verbosity = ERRORS_ONLY
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
