"""Wrong requests over all commands: an exit code, one line on stderr, nothing on stdout."""

import re
from pathlib import Path

import pytest

from attnprof.cli.parameters import NAMES as POSSIBLE
from tests.render.test_hostile_names import NAMES, OBEYED
from tests.structure.command_flags import parser_of

#: What is typed and, after two colons, what the message says of it. A flag that commands share is
#: typed for one of them.
WRONG = r"""
calibrate --dtype int8
calibrate --seconds 0
calibrate --seconds x :: Give a number, like --seconds 0.5
check :: --against or --baseline
check --update --against . :: --baseline FILE
check --against no-such-ref :: no-such-ref
check --against . --rule sensitiv :: sensitive
check --against . --inconclusive maybe :: retry
check --against . --budget 0 :: --budget
check --against . --attention standard :: --seq
check --against . --junit no/such/folder.xml :: no/such
compare --seq 1:500:+1
compare --kind published :: possible: formula
compare --output / :: folder
compare --seq 4096 --plot costs.png :: like --seq 1024:131072:x2
compare --quantity time :: possible
cost --device tpu
cost --attention standard --seq 8 --kv-heads 3
cost --attention linformer --seq 8 --kv-heads 2
cost --attention linformer --seq 8 --kv-seq 5
cost --attention standard --seq 8 --causal --kv-seq 4
cost --attention linformer --seq 8 --phase decode
cost --attention she --seq 8 --scope core
cost --attention linformer --set proj_len=0 --seq 8
cost --attention longformer --set window=2.5 --seq 8
cost --attention sparse --set pattern=round --seq 8
cost --attention taylor-direct --set temperature=x --seq 8
cost --attention linformer --set proj_len=999999999999999999999999 --seq 8
cost --attention standard --set bias= --seq 8
cost --attention taylor-direct --set temperature=nan --seq 8
cost --seq 0 :: at least 1
cost --json :: No such option: --json; type --format json
cost --dtype float32,float64 :: one value is possible here; type --dtype float32
cost --seq 4,096 :: type 4096 for 4,096
cost --seq 64:0128:x2 :: begins with 0
cost --batch 0 :: --batch
cost --batch 1,2 :: one value
cost --d-model 100 --heads 8 :: --heads 5 or 10
cost --attention nothing :: attnprof list
cost --attention efficient --width 100 :: takes columns of its input as heads
cost --kind published --seq 64 :: 000-EQ24
cost --phase train --convention operations :: --convention flops
cost --seq 64 --bandwidth 450GB/s :: type how many, --ranks 8
cost --seq 64 --plot x.png :: type how many, --ranks 8
cost -a gqa --seq 64 --ranks 2 --bandwidth fast :: 450GB/s
cost -a gqa --ranks 2 --bandwidth 1GB/s --dtype bfloat16 --on T4 :: states no rate for bfloat16
cost -a gqa --seq 64 --ranks 2 --quantity flops :: not of --ranks
cost -a gqa --seq 64 --ranks 2 --phase decode :: not of decode
cost --set window=256 :: 'window'
cost --set bias :: '='
cost --set bias=perhaps :: true or false, for example bias=true
cost --scope head :: core, layer
cost --phase sideways :: forward
cost --dtype float8 :: float
cost --convention macs :: flops, operations
cost --quantity flop :: flops
cost --kind measured :: published
cost --format xml :: json
cost --output /no/such/folder/x.csv :: no folder
cost --sequence 5 :: --se
crossover standard standard
crossover standard
crossover standard efficient sdpa
crossover standard efficient --attention standard,sdpa
crossover --kind guessed
crossover standard linformer --kind published
crossover --metric time --kind formula
crossover --metric flops --quantity flops
crossover --quantity parameters
crossover standard linformer --causal
crossover standard she --phase forward
crossover --plot x.xyz
crossover --metric weight
crossover standard longformer --over windw :: did you mean window?
crossover standard longformer --over bias :: possible: seq, d, heads
crossover standard longformer --over d --d 32 :: leave --d out
crossover standard longformer --over heads --heads 4 :: leave --heads out
crossover standard longformer --over batch --batch 3 :: leave --batch out
crossover standard longformer --over window --set window=8 :: leave --set window out
crossover standard longformer --seq 128 :: leave --seq out
crossover standard longformer --range 1:64 :: --range is for another --over
crossover standard longformer --d-model 64 :: --d-model is for another --over
crossover standard longformer --over d --d-model 64 :: for --over heads alone
crossover standard longformer --over heads --d 8 --d-model 64 :: the model's width varies
crossover standard longformer --over heads --range 600:700 :: no more than 512 heads
crossover standard longformer --over d --range 64 :: like 1:512
crossover standard longformer --over d --range 64:8 :: ends before it starts
crossover standard longformer --over kv_heads :: like --heads 32
crossover standard longformer --over kv-heads :: like --heads 32
crossover standard longformer --over d_model --d-model 64 :: leave --d-model out
crossover standard linformer --over proj-len --set proj_len=8 :: leave --set proj_len out
crossover standard longformer --over d --kind derived :: leave --over d out
crossover standard longformer --over batch --kind published :: over batch; use --kind formula
crossover standard longformer --model config.json --over d :: leave out --over
crossover --model config.json linear --d 32 :: leave out --d
crossover gated-deltanet gqa --metric bytes :: add --phase decode
crossover linear gqa --over d --every 64 --metric flops :: leave it or --over out
crossover linear gqa --kind measured --every 64 :: not of what is measured
crossover linear gqa --metric time --every 64 :: not of what is predicted
crossover linear gqa --kind predicted --metric memory :: type --metric time, or --kind
crossover linear gqa --kind measured --metric flops :: type --metric memory, or --kind formula
crossover linear gqa --kind formula,measured --metric flops :: type --metric memory
crossover linear gqa --kind formula,measured --metric time :: --kind predicted,measured
crossover linear gqa --kind predicted --metric flops,time :: type --kind predicted,formula
crossover linear gqa --kind derived --metric state --phase decode :: or --kind formula
crossover linear gqa --kind measured --on H100 --metric time :: type --kind predicted
crossover --arg d_model=h*d :: my.py:MyAttention
derive :: type attnprof derive my.py:MyAttention
derive standard --phase sideways
derive nothing
derive nowhere.py:Mine
derive torch.nn:Nothing
derive standard --at N :: type names and sizes, like B=1
derive standard --at N=4 --at B=1,N=5 :: --at: N is 4 and 5
derive standard --at M=8 :: --at M=8
derive standard --by layer :: possible: operation, line, module
derive standard --quantity time :: --quantity time
derive standard --set nobody=1 :: has no parameter 'nobody'
derive standard --arg d_model=h*d
derive standard --input x:B,N
derive she --scope core
derive torch.nn:ModuleDict
derive torch.nn:MultiheadAttention --set bias=false
derive torch.nn:MultiheadAttention --arg heads=8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,N/7,8
heads --d-model 64 --heads 3
heads --quantity time
heads standard --kind published
heatmap standard
heatmap standard linformer :: --kind formula
heatmap --kind measured :: published, formula
heatmap --quantity peak_bytes
heatmap --d 64 :: --d-model
heatmap --convention operations :: --kind formula
heatmap --no-plot --plot ratio.png :: leave it out, or ratio.png
heatmap --no-plot --output ratio.png :: leave it out, or ratio.png
heatmap --size wide :: page, column
check --baseline no$such.json :: attnprof baseline -o 'no$such.json'
fit llama-3.1-8b --calibration no$such.json :: calibrate --calibration 'no$such.json'
heatmap --plot . :: for example figure.png
heatmap --output / :: it is a folder
plot . :: it is a folder, not a file
plot / :: it is a folder, not a file
heatmap taylor-direct taylor-efficient :: --phase forward
heatmap standard efficient super :: attnprof heatmap standard efficient
heatmap --heads 3 --d-model 10 --kind formula :: --d-model 3:48:x2
heatmap --seq 1:100000:+1 --d-model 1:100000:+1 :: larger steps
heatmap --batch 4 :: --kind formula
heatmap --set window=4 :: no parameter
cost --on A100 --ranks 8 :: --bandwidth 450GB/s
cost --on A100 :: attnprof predict
fit llama --memory 0 :: a size like 80GB
fit llama-3.2-1b --on h100 --measure :: --on cpu
fit llama --memory 0GB :: a size like 80GB
list --verify --models :: leave one of them out
lst :: list
plot nosuch.jsonl --kind circle
compare --attention standard sdpa --seq 8 :: --attention standard,sdpa
plot :: attnprof plot sweep.jsonl -o growth.png
cost --attention nowhere.py --seq 8 :: nowhere.py:MyAttention
compare standard --seq 8 :: --attention standard
compare --attention standard "a b" :: unexpected extra
model --compare llama-3.1-8b qwen3-8b gemma-3-12b :: llama-3.1-8b --compare qwen3-8b,gemma
model llama-3.1-8b --compare qwen3-8b gemma-3-12b :: --compare qwen3-8b,gemma-3-12b
model llama-3.1-8b --compare qwen3-8b,llama-3.1-8b :: the model itself
model 001-lm-dot --memory much :: --memory much: type a size like 2GiB
fit llama-3.1-8b --memory 24 :: --memory 24: that is 24 bytes; type 24GB
sweep --attention standard --seq 8 --memory-limit 0.5 :: type 0.5GB
model config.json --convention palm :: type --mfu, too
model config.json --lengths 5,6 :: type --mfu, too
model config.json --mfu --convention megatorn :: did you mean megatron
model config.json --mfu --seq 5 --lengths 5 :: type one
model config.json --mfu --lengths 5,,6 :: --lengths
model config.json --mfu --memory 80GB :: two questions
model config.json --mfu --as-python no/folder/flops.py :: there is no folder
profile
profile --attention standard :: --seq
profile --seq 8 :: --attention
profile -a linear --seq 8 --predict-only --compile :: code is predicted as it is written
profile --attention standard --seq 8 --samples 0 :: samples must be at least
profile --attention standard --seq 8 --samples 1.5 :: Give a whole number, like --samples 20
profile --attention standard --seq 8 --threads 65537 :: --threads must be at most
profile --attention standard --seq 8 --arg a=1
profile --attention standard --seq 8 --device cuda:99 :: --device
profile --attention standard --seq 8 --device cuda
profile --attention standard --seq 8 --min-time -1
profile --attention standard --seq 8 --max-time 0
profile --attention standard --seq 8 --seed 99999999999999999999999
reproduce --table 2 :: of which document
reproduce 004 --figure 1 --plot x.xyz
reproduce 005 :: did you mean
reproduce taylor :: taylorshift
reproduce --claim 004-EQ66 :: 004-EQ6
reproduce 000 --claim 004-EQ6 :: claim of 004
reproduce 002 --table 9 :: its tables: 1, 2
reproduce 002 --figure 99 :: its figures
reproduce 002 004 --figure 1 :: of which document
reproduce 002 --table 1 --claim 002-PPL :: one of
reproduce 002 --verdict wrong :: erratum
reproduce 002 --plot x.png :: --figure
reproduce 002 --table 1 --reports r :: whole documents
reproduce --format yaml :: html
reproduce --reports /proc/none/x :: --reports
reproduce --claim , :: empty
sweep
sweep --attention standard
sweep --attention standard --seq 8 --memory-limit lots
sweep --attention standard --seq 8 --causal perhaps
tradeoff --no-time --input sharp :: peaked
tradeoff --no-time --input nothing.pt :: cannot read nothing.pt
tradeoff --no-time --norms long :: unknown norms
explore nothing :: unknown mechanism
explore linear --output - :: it means stdout
plot --json :: No such option: --json
sweep -a linear --seq 8 --output - :: it means stdout
tradeoff --no-time --set window= :: type a name
tradeoff --no-time -a linear --set window=3 :: no parameter 'window'
tradeoff --no-time --seq 8,16 :: one value
verify-formula 9**9**9**9 standard
verify-formula N standard --where h=1.5
verify-formula N standard --where h=0
verify-formula 4N standard :: * may be missing
verify-formula n**2 standard :: --where n=…, in B, N, h, d
verify-formula standard 4*N**2 :: type attnprof verify-formula '4*N**2' standard
verify-formula N :: needs a formula and what it is of
verify-formula N standard --attention linear :: two targets
verify-formula N standard --up-to roughly :: --up-to roughly
verify-formula N standard --where h :: --where h
verify-formula N standard --in N, :: --in
verify-formula --model config.json :: needs a formula
verify-formula --model config.json 6*P linear :: not both
verify-formula --model config.json 6*P --phase decode :: --phase decode
verify-formula --model nothing-like-it 6*P :: no model is called
verify-formula --seq 5 6*P linear :: type --model, too
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_request_is_told_in_one_line(attnprof, tmp_path, monkeypatch, line):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    typed, _, said = line.partition(" :: ")
    ended = attnprof(typed)
    assert ended.code == (3 if "cuda" in line else 2)
    assert said in ended.err
    assert ended.out == ""
    assert ended.err.startswith("attnprof: ")
    assert ended.err.count("\n") == 1
    assert len(ended.err) > 30
    assert list(tmp_path.iterdir()) == []


#: Requests of each command that has options which take one of several names, or some of them.
ANSWERED = """
baseline -a standard --seq 8 --no-time
calibrate --contended
check --against . -a standard --seq 8
compare -a standard --seq 8
cost --seq 8
crossover standard linear
derive standard
explore linear
fit llama-3.1-8b --memory 24GB --train
heads
heatmap
history .
model llama-3.1-8b
model llama-3.1-8b --mfu
plot nosuch.json
predict -a standard --seq 8
profile -a standard --seq 8
recommend --seq 8
reproduce 002
sweep -a standard --seq 8
tradeoff --no-time
verify-formula N standard
"""
#: Such options, beside those whose names a shell completes.
MORE = ("on", "by", "view", "kernel", "logits", "optimizer", "counting", "wait_policy",
        "cache_dtype", "gradient_dtype", "recompute", "shard", "compare", "model")  # fmt: skip
#: What a refusal of an empty name says: possible names, or that the option is of other requests.
SAID = (
    r"possible|is not one of|type (names like|one of|--mfu)|add --metric time|two questions|"
    r"give a config.json"
)


@pytest.mark.parametrize("request_", ANSWERED.strip().splitlines())
def test_the_empty_text_is_no_name(attnprof, tmp_path, request_):
    parameters = parser_of(request_.split()[0]).params
    named = [one for one in parameters if one.name in {*POSSIBLE, *MORE}]
    for flag in [one.opts[0] for one in named if not getattr(one, "is_flag", True)]:
        ended = attnprof(request_, (flag, ""))
        assert ended.code == 2, flag
        assert re.search(SAID, ended.err), ended.err
        assert ended.out == ""
        assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_refusal_is_told_where_all_are(attnprof):
    ended = attnprof("cost --attention linformer,nystromformer --seq 64,128 --causal")
    assert ended.code == 2
    assert "linformer mixes all tokens" in ended.err
    assert ended.err.count("; nystromformer takes its landmarks") == 1


@pytest.mark.parametrize(
    "command",
    ["predict -a standard --seq 8 --on TPU", "recommend --seq 8 --on TPU",
     "crossover --kind predicted --on TPU", "calibrate --contended"],
)  # fmt: skip
def test_a_calibration_has_one_name_and_an_older_one_that_is_not_shown(attnprof, command):
    Path("none").write_text("somebody's own")
    ended = attnprof(command, "--file none")
    assert ended.code == 2
    assert "none is no whole JSON file" in ended.err
    shown = attnprof(command.split()[0], "--help").out
    assert "--calibration" in shown
    assert "--file" not in shown


#: Commands that tell back a name, of which each name meets a sixth in turn.
TELLING = [
    ("cost", "--attention", "{}"), ("derive", "{}"), ("cost", "--phase", "{}"), ("{}",),
    ("cost", "--{}"), ("plot", "{}.json"), ("derive", "{}.py:X"), ("cost", "--set", "{}"),
    ("history", "{}"), ("verify-formula", "{}", "standard"), ("derive", "standard", "--at", "{}"),
    ("cost", "-o", "{}/x"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_a_message_of_the_command_line_is_one_line_of_plain_signs(attnprof, place):
    name = [*NAMES.values()][place].replace("\0", "")  # which no argument can hold
    for words in TELLING[place % 6 :: 6]:
        typed = tuple(word.replace("{}", name) for word in words)
        ended = attnprof(typed)
        assert ended.code == 2, (typed, ended.err)
        assert ended.err.count("\n") == 1
        assert not OBEYED.search(ended.err)
