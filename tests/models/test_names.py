"""Names of models: files, released models, types, and the Hub, played by a server here."""

import json
import os
import re
import subprocess
import sys
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from attnprof.errors import CannotRunError, NotFoundError, RequestError
from attnprof.models import names
from attnprof.models.hub_config import model_types
from attnprof.models.names import check_sources, config_of, named, released
from attnprof.models.sources import subject_of

TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 96,
    "auto_map": {"AutoModelForCausalLM": "modeling_tiny.Tiny"},
}  # fmt: skip
#: What the server says of each model: a status and an error code, as the Hub's header has it.
REFUSALS = {
    "maker/gated": (403, "GatedRepo"), "maker/asks": (401, "GatedRepo"),
    "maker/absent": (401, "RepoNotFound"), "qwen/qwen3-8bb": (404, "RepoNotFound"),
    "maker/weights": (404, "EntryNotFound"), "maker/slow": (503, ""),
}  # fmt: skip
PROGRAM = """
import json, sys
from attnprof.errors import AttnprofError
from attnprof.models.names import config_of

def answer(name):
    try:
        return 0, config_of(name)
    except AttnprofError as error:
        return error.exit_code, str(error)

print(json.dumps([answer(name) for name in sys.argv[1:]]))
assert "torch" not in sys.modules
"""


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's protocol that gives one file of a model."""

    content = json.dumps(TINY).encode()

    def do_HEAD(self):
        self.server.asked.append(self.path)
        self.server.tokens.add(self.headers["Authorization"])
        name, _, file = self.path.lstrip("/").partition("/resolve/main/")
        status, code = REFUSALS.get(name, (200, "") if file else (404, ""))
        self.send_response(status)
        self.send_header("X-Repo-Commit", "a" * 40)
        if code:
            self.send_header("X-Error-Code", code)
        if status == 200:
            assert file == "config.json", self.path
            self.send_header("ETag", f'"{sha1(self.content).hexdigest()}"')
        self.send_header("Content-Length", str(len(self.content) if status == 200 else 0))
        self.end_headers()
        return status

    def do_GET(self):
        if self.do_HEAD() == 200:
            self.wfile.write(self.content)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.tokens = [], set()
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def asked(hub, home, *names, **more):
    """Return the exit code and the configuration, or refusal, of each name in a new program."""
    kept = {key: x for key, x in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    place = {"HF_HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
    env = {**kept, **place, "NO_PROXY": "127.0.0.1", **more}
    command = [sys.executable, "-c", PROGRAM, *names]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)


def test_a_name_on_the_hub_fetches_its_config_alone_and_offline_it_is_kept(hub, tmp_path):
    hub.asked.clear()
    hub.tokens.clear()
    given = [[0, TINY]]
    assert asked(hub, tmp_path, "maker/tiny-1.0", HF_TOKEN="hf_of_a_test") == given
    assert "Bearer hf_of_a_test" in hub.tokens
    files = {path for path in hub.asked if not path.startswith("/api/")}
    assert files == {"/maker/tiny-1.0/resolve/main/config.json"}
    hub.asked.clear()
    for more in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        assert asked(hub, tmp_path, "maker/tiny-1.0", **more) == given
    assert not hub.asked


#: A name that the Hub refuses, the exit code, and what is said.
REFUSED = [
    ("maker/gated", 3, "accept the terms at https://huggingface.co/maker/gated"),
    ("maker/asks", 3, "hf auth login"),
    ("maker/absent", 2, "the Hub has no model maker/absent, or it is private"),
    ("qwen/qwen3-8bb", 2, "did you mean Qwen/Qwen3-8B?"),
    ("maker/weights", 2, "has no config.json on the Hub"),
    ("maker/slow", 3, "cannot be reached"),
    ("maker/two--dashes", 2, "two--dashes"),
]


def test_refusals_of_the_hub_are_one_line_with_what_to_do(hub, tmp_path):
    answers = asked(hub, tmp_path, *(name for name, *_ in REFUSED))
    for (name, code, message), (returned, output) in zip(REFUSED, answers, strict=True):
        assert (name, returned, output.count("\n")) == (name, code, 0), output
        assert message in output


def test_without_a_network_a_shipped_model_is_offered(hub, tmp_path):
    ((code, output),) = asked(hub, tmp_path, "Qwen/Qwen3-8B", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 3
    assert "http://127.0.0.1:9" in output
    assert output.endswith("type attnprof model qwen3-8b")
    ((code, output),) = asked(hub, tmp_path, "maker/other", HF_HUB_OFFLINE="1")
    assert (code, "HF_HUB_OFFLINE is set" in output) == (3, True)


def test_without_huggingface_hub_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CannotRunError, match=r"pip install 'attnprof\[hf\]'"):
        names.hub_configuration("maker/not-asked-before")


def test_config_of_takes_fields_files_folders_and_released_models(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY), "utf-8")
    assert config_of(TINY) == config_of(file) == config_of(str(tmp_path)) == TINY
    assert config_of("Llama-3.1-8B")["intermediate_size"] == 14336
    assert config_of("gpt_oss") == {"model_type": "gpt_oss"}
    untyped = {key: x for key, x in TINY.items() if key != "model_type"}
    described = {key: x for key, x in untyped.items() if key != "auto_map"}
    assert config_of(described)["model_type"] == "llama"
    for fields in ({"hidden_size": 32}, untyped, {**described, "architectures": ["Tiny"]}):
        with pytest.raises(RequestError, match="no model_type"):
            config_of(fields)


def test_notes_say_what_was_taken():
    assert "defaults of transformers' type qwen3" in subject_of("qwen3").notes[0]
    note = subject_of("gemma-3-4b").notes[0]
    assert "google/gemma-3-4b-pt" in note
    assert "4,300,079,472 parameters are published, with its vision tower" in note


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lama-3.1-8b", "did you mean llama-3.1-8b"),
        ("001-lm-dott", "did you mean 001-lm-dot"),
        ("gpt_osss", "did you mean gpt_oss"),
        ("zzzzzzzz", "attnprof list --models"),
        ("missing.json", "missing.json"),
        ("maker/tiny/deeper", "no model is called"),
    ],
)
def test_a_wrong_name_is_refused_with_near_ones(name, message):
    with pytest.raises(NotFoundError if ".json" not in name else RequestError, match=message):
        named(name)


def test_types_are_those_of_transformers_which_is_not_loaded(hub, tmp_path, monkeypatch):
    from transformers import CONFIG_MAPPING

    known, (code, words) = asked(hub, tmp_path, "gpt_oss", "gpt_osss")
    assert known == [0, {"model_type": "gpt_oss"}]
    assert code == 2
    assert "did you mean gpt_oss" in words
    monkeypatch.delitem(sys.modules, "transformers")
    assert {*model_types()} == {*CONFIG_MAPPING}


def test_each_name_is_spelt_in_lower_case_and_each_hub_name_is_one_models():
    models = released().values()
    assert all(model.name == model.name.lower() for model in models)
    assert len({model.hub.lower() for model in models}) == len(models)


def test_a_type_that_transformers_lacks_is_that_of_the_class_that_it_names(tmp_path):
    fields = {**TINY, "model_type": "tiny_2", "architectures": ["LlamaForCausalLM"]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields), "utf-8")
    notes = subject_of(str(file)).notes
    assert any("transformers has no type tiny_2: llama is built" in note for note in notes)
    file.write_text(json.dumps({**fields, "architectures": ["TinyForCausalLM"]}), "utf-8")
    with pytest.raises(NotFoundError, match="no model_type 'tiny_2'"):
        subject_of(str(file))


def test_released_models_are_listed_with_their_parameters(attnprof):
    rows = {row["model"]: row for row in attnprof("list --models --format json").json["records"]}
    assert set(rows) == set(released())
    assert rows["llama-3.1-8b"]["parameters"] == rows["llama-3.1-8b"]["published"] == 8_030_261_248
    assert rows["gemma-3-4b"]["beyond"] == "its vision tower"


def test_a_format_that_is_asked_for_is_the_configuration_s_own(tmp_path, attnprof):
    fields = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50}
    rows = []
    for more, flags in (({}, "--dtype bfloat16"), ({"dtype": "bfloat16"}, ""), ({}, "")):
        (tmp_path / "a.json").write_text(json.dumps(fields | more), encoding="utf-8")
        command = f"model a.json {flags} --phase decode --seq 16 --limit 0 --format json"
        records = attnprof(command).json["records"]
        rows.append({row["quantity"]: row["value"] for row in records if row["part"] == "total"})
    assert rows[0] == rows[1]
    assert rows[2]["cache_bytes"] == 2 * rows[0]["cache_bytes"]


BROKEN = {
    "begun.json": ("{", "begun.json is no whole JSON file"),
    "nothing.json": ("", "nothing.json is no whole JSON file"),
    "list.json": ("[]", "it has no model_type"),
    "untyped.json": ('{"hidden_size": 8}', "it has no model_type"),
    "flat.json": ('{"model_type": "llama", "num_hidden_layers": 0}', "num_hidden_layers is 0"),
    "eighth.json": ('{"model_type": "llama", "dtype": "fp7"}', "dtype is fp7"),
    "empty.toml": ("# a model", 'write fields of a model, like num_layers = 12, or preset = "001'),
    "other.toml": ("[grid]", "a model has no 'grid'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_without_a_model_is_refused_before_transformers_is_read(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    text, said = BROKEN[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=re.escape(said)):
        check_sources(str(tmp_path / name))
