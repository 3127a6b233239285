"""Many clients at once while a job teaches: statuses, tokens per second and waiting times of `trc2 serve`.

    OMP_NUM_THREADS=1 python benchmarks/serving.py --out benchmarks/serving.json

It takes about five minutes on two cores. Do nothing else on the machine meanwhile.
One run measures three things on the same small Llama: `trc2 generate` alone, `trc2 serve` with a job running, and
`transformers serve` without one. Clients ask for chats of a fixed length, each again as soon as it has its answer.
`transformers serve` needs fastapi. Without it that part is null.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import torch
import transformers

from trc2.generate.sampling import Sampling, generate_ids
from trc2.runs.target import find_target
from trc2.stream.tokenizer import train_bpe
from trc2.versions.registry import Versions

PROMPT = "the river runs past a mill and an old stone bridge where people sell apples pears and plums"
WORDS = PROMPT.split()
BATCH = 2  # sequences of a step of the job
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def make_model(folder: Path) -> Path:
    """A Llama of 12 million weights, with a tokenizer and a chat template."""
    tokenizer = train_bpe([" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))], 400)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=512, eos_token_id=tokenizer.end_of_text, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def generate_alone(folder: Path, tokens: int, seconds: float) -> dict[str, float]:
    """Tokens per second of one answer after the other, in this process."""
    net, tokenizer = find_target(str(folder)).trained_model(lambda _: None)
    ids, made, times = tokenizer.encode_batch([PROMPT + "\n"])[0], 0, []
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        made += len(list(generate_ids(net.eval(), ids, Sampling(max_tokens=tokens, seed=made))))
        times.append(time.perf_counter() - start)
    took, used = time.perf_counter() - begun, time.process_time() - used
    return {"tokens_per_second": made / took, "tokens_per_cpu_second": made / used, **quantiles(times)}


def quantiles(times: list[float]) -> dict[str, float]:
    if len(times) < 2:
        return {"p50": float("nan"), "p95": float("nan")}
    cuts = statistics.quantiles(times, n=20)
    return {"p50": cuts[9], "p95": cuts[18]}


def post(url: str, body: dict[str, Any], timeout: float = 300) -> tuple[int, Any]:
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        retry = float(error.headers.get("retry-after", 0))
        error.read()
        time.sleep(min(retry, 5))
        return error.code, None


def ask_for(server: psutil.Process, url: str, model: str, clients: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Clients that ask all the time: how many answers of each status, tokens per second, and how long they took.

    Tokens per second of the server's own processor time do not depend on other programs of the machine.
    """
    statuses: Counter[str] = Counter()
    times: list[float] = []
    made = 0
    lock, until = threading.Lock(), time.perf_counter() + seconds

    def client(number: int) -> None:
        nonlocal made
        body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "seed": number}
        while (start := time.perf_counter()) < until:
            try:
                status, answer = post(f"{url}/v1/chat/completions", body)
            except OSError as error:
                status, answer = type(error).__name__, None
            with lock:
                statuses[str(status)] += 1
                if answer is not None:
                    times.append(time.perf_counter() - start)
                    made += answer["usage"]["completion_tokens"]

    begun, used = time.perf_counter(), processor_time(server)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begun
    rates = {"tokens_per_second": made / took, "tokens_per_cpu_second": made / (processor_time(server) - used)}
    return {"statuses": dict(statuses), **rates, **quantiles(times)}


def processor_time(process: psutil.Process) -> float:
    """Of the process itself, without those that it started."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def process(command: list[str], url: str, log: Path) -> Iterator[psutil.Process]:
    """A server as a process, from when it answers."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        while True:
            try:
                urlopen(f"{url}/health", timeout=5).close()
                break
            except HTTPError:
                break
            except OSError:
                if running.poll() is not None:
                    raise RuntimeError(log.read_text(errors="replace")[-1000:]) from None
                time.sleep(0.2)
        yield psutil.Process(running.pid)
    finally:
        running.terminate()
        running.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def upload(url: str, name: str, content: bytes) -> str:
    parts = [
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n',
        f'--b\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n",
        b"--b--\r\n",
    ]
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with urlopen(Request(f"{url}/v1/files", b"".join(parts), headers)) as answer:
        return str(json.loads(answer.read())["id"])


def documents(name: str) -> bytes:
    """Rows of random words. Text that is trained on must not be among the text on which the model is judged."""
    choose = random.Random(name)
    return "\n".join(json.dumps({"text": " ".join(choose.choices(WORDS, k=200))}) for _ in range(400)).encode()


def ours(folder: Path, model: Path, clients: int, tokens: int, seconds: float) -> dict[str, Any]:
    """`trc2 serve` with a job that lasts longer than the measurement."""
    Versions(folder / "versions").promote(model, first=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "trc2", "serve", str(folder / "versions"), "--data", str(folder / "data")]
    command += ["--port", str(port), "--per-minute", "1000000"]
    with process(command, url, folder / "ours.log") as server:
        new, old = (upload(url, f"{name}.jsonl", documents(name)) for name in ("new", "old"))
        metadata = {"steps": "100000", "max_forgetting": "1000", "keep_file": old}
        asked = {"model": "latest", "training_file": new, "metadata": metadata}
        # Small steps: a step of the default 4,096 tokens takes so long that few of them fall into the measurement.
        asked["hyperparameters"] = {"batch_size": BATCH}
        status, job = post(f"{url}/v1/fine_tuning/jobs", asked)
        assert status == 200, status
        state: dict[str, Any] = {}
        while not (state.get("progress") or {}).get("step"):
            time.sleep(1)
            with urlopen(f"{url}/v1/fine_tuning/jobs/{job['id']}") as answer:
                state = json.loads(answer.read())
            assert state["status"] in ("queued", "running"), state
        measured = ask_for(server, url, "latest", clients, tokens, seconds)
        with urlopen(f"{url}/v1/fine_tuning/jobs/{job['id']}") as answer:
            after = json.loads(answer.read())
        assert after["status"] == "running", after
        measured["job_steps"] = after["progress"]["step"] - state["progress"]["step"]
        measured["job_tokens_per_step"] = BATCH * 512
        post(f"{url}/v1/fine_tuning/jobs/{job['id']}/cancel", {})
    assert set(measured["statuses"]) <= {"200", "429"}, measured
    return measured


def theirs(folder: Path, model: Path, clients: int, tokens: int, seconds: float) -> dict[str, Any]:
    """`transformers serve` on the same model, without a job."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    program = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", program, "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    with process([*command, "--device", "cpu"], url, folder / "theirs.log") as server:
        return ask_for(server, url, str(model), clients, tokens, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/serving.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        sizes = (asked.clients, asked.tokens, asked.seconds)
        results: dict[str, Any] = {
            "machine": {"cores": os.cpu_count(), "platform": platform.platform(), "load": os.getloadavg()[0],
                        "threads": os.environ.get("OMP_NUM_THREADS")},
            "clients": asked.clients, "seconds": asked.seconds, "tokens": asked.tokens,
            "trc2 generate": generate_alone(model, asked.tokens, min(20.0, asked.seconds)),
            "trc2 serve, with a job": ours(folder, model, *sizes),
        }  # fmt: skip
        try:
            results["transformers serve"] = theirs(folder, model, *sizes)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            results["transformers serve"] = None
    asked.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
