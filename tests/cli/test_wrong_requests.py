"""Wrong requests over all commands: an exit code, one line on stderr, nothing on stdout."""

from __future__ import annotations

import pytest

import attnprof as package
from attnprof.errors import RequestError

#: What is typed and, after two colons, what the message says of it.
WRONG = r"""
calibrate --dtype int8
calibrate --seconds 0
check :: --against or --baseline
check --update --against . :: --baseline FILE
check --against no-such-ref :: no-such-ref
check --baseline nowhere.json :: nowhere.json
check --against . --rule sensitiv :: sensitive
check --against . --inconclusive maybe :: retry
check --against . --budget 0 :: --budget
check --against . --suite nowhere.toml :: nowhere.toml
check --against . --attention standard :: --seq
check --against . --junit no/such/folder.xml :: no/such
compare --seq 0
compare --attention standard,nothing --seq 8
compare --seq 8 --heads 7
compare --seq 8 --set nobody=1
compare --seq 8 --dtype int8
compare --attention linformer --seq 8 --causal
compare --seq 8 --scope stage
compare --seq 8 --batch 1e3
compare --seq 8 --format pdf
compare --seq 8 --output /no/such/x
compare --seq 8 --device gpu0
compare --seq 1:500:+1
compare --output / :: folder
compare --quantity time :: possible
cost --device tpu
cost --attention standard --seq 8 --kv-heads 3
cost --attention standard --seq 8 --kv-heads 0
cost --attention linformer --seq 8 --kv-heads 2
cost --attention linformer --seq 8 --kv-seq 5
cost --attention standard --seq 8 --causal --kv-seq 4
cost --attention linformer --seq 8 --causal
cost --attention linformer --seq 8 --phase prefill
cost --attention linformer --seq 8 --phase decode
cost --attention she --seq 8 --scope core
cost --attention linformer --set proj_len=0 --seq 8
cost --attention performer --set num_features=-3 --seq 8
cost --attention longformer --set window=0 --seq 8
cost --attention longformer --set window=-1 --seq 8
cost --attention longformer --set window=2.5 --seq 8
cost --attention sparse --set pattern=round --seq 8
cost --attention sparse --set stride=0 --seq 8
cost --attention taylor-direct --set temperature=x --seq 8
cost --attention taylorshift --set switch=never --seq 8
cost --attention low-rank --set rank=0 --seq 8
cost --attention linformer --set proj_len=999999999999999999999999 --seq 8
cost --attention nystromformer --set num_landmarks=0 --seq 8
cost --attention she --set depth=0 --seq 8
cost --attention standard --set bias= --seq 8
cost --attention standard --set =true --seq 8
cost --attention efficient-taylorshift --seq 8
cost --attention taylor --seq 8
cost --attention /no/such/file.py:Mine --seq 8
cost --attention standard --seq 8 extra
cost --attention efficient --d-model 7 --heads 9 --seq 8
cost --attention taylor-direct --set temperature=nan --seq 8
cost --attention taylor-direct --set temperature=1e999 --seq 8
cost --seq 1:1000000000:+1
cost --seq 1:5000:+1
cost --seq 0 :: at least 1
cost --seq -5 :: at least 1
cost --seq 1.5 :: whole number
cost --seq abc :: whole number
cost --seq 9999999999999999999 :: 2**40
cost --seq 128:64:x2 :: ends before
cost --seq 1:64:x1 :: never reaches
cost --seq 1:64 :: not a range
cost --seq 1:1000000:+1 :: larger step
cost --batch 0 :: --batch
cost --batch 1,2 :: one value
cost --d-model 100 --heads 8 :: --heads 5 or 10
cost --d-model 0 :: --d-model
cost --heads x :: --heads
cost --d-model 512 --heads 8 --d 32 :: heads times d
cost --attention nothing :: attnprof list
cost --attention standard,,efficient :: empty name
cost --set window=256 :: 'window'
cost --set bias :: '='
cost --set bias=perhaps :: bias=True
cost --scope head :: core, layer
cost --phase sideways :: forward
cost --dtype float8 :: float
cost --convention macs :: flops, operations
cost --quantity flop :: flops
cost --kind measured :: published
cost --format xml :: json
cost --output /no/such/folder/x.csv :: no folder
cost --sequence 5 :: --se
crossover --d 0
crossover --d -1
crossover --d 1.5
crossover --d 99999999999999999999
crossover --d 64:8:x2
crossover --d 8:64
crossover --d x
crossover standard standard
crossover standard
crossover standard nothing
crossover standard efficient sdpa
crossover standard efficient --attention standard,sdpa
crossover --attention standard
crossover --heads 0
crossover --heads 1,2
crossover --batch 0
crossover --scope head
crossover --phase sideways
crossover --kind guessed
crossover --arg d_model=h*d
crossover nosuch.py:A nosuch.py:B
crossover standard linformer --kind published
crossover --metric time --kind formula
crossover --metric flops --quantity flops
crossover --quantity parameters
crossover --set nobody=3
crossover standard linformer --set proj_len=0
crossover standard linformer --set proj_len=x
crossover standard linformer --causal
crossover standard she --phase forward
crossover standard linformer --phase decode
crossover --plot x.xyz
crossover --plot /no/such/x.png
crossover --plot /
crossover --output /no/such/x
crossover --dtype float8
crossover --device tpu
crossover --d 1:5000:+1
crossover --metric weight
crossover --scope half
crossover --dtype int8
crossover --set window=3
crossover standard efficent
crossover standard sdpa --kind published
crossover --heads 4 --attention standard
crossover --plot figure.txt
crossover --output no/such/folder/x.json
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
crossover standard longformer --over d --kind derived :: leave --over d out
crossover standard longformer --over batch --kind published :: over batch; use --kind formula
crossover standard longformer --metric state :: add --phase decode
crossover standard longformer --model config.json --over d :: leave out --over
derive
derive nosuch.py:A
derive standard --at B=x
derive standard --phase sideways
derive nothing
derive nowhere.py:Mine
derive torch.nn:Nothing
derive standard extra
derive standard --at N=0
derive standard --at N
derive standard --at N=x
derive standard --at M=8
derive standard --arg d_model=h*d
derive standard --input x:B,N
derive standard --scope head
derive standard --dtype int8
derive standard --quantity time
derive standard --set nobody=1
derive she --scope core
derive torch.nn:ModuleDict
derive torch.nn:MultiheadAttention --set bias=false
derive torch.nn:MultiheadAttention --arg heads=8
derive torch.nn:MultiheadAttention --input x:B,N
derive standard --format pdf
derive standard --output /no/such/x
derive standard --at N=10**400
derive torch.nn:Linear --arg in_features=9**9**9**9 --arg out_features=8
derive torch.nn:Linear --arg in_features=h**99999999 --arg out_features=8 --input input:B,N,8
derive torch.nn:Linear --arg in_features='a'*10**10 --arg out_features=8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,None,8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,True,8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,'x',8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,N/7,8
derive torch.nn:Linear --arg in_features=8 --arg out_features=8 --input input:B,9**99,8
doctor --format x
doctor --output /no/such/x
doctor --seq 3
heads --device x
heads --d-model 0
heads --d-model 64 --heads 3
heads --d-model 64,128
heads --seq 0
heads --seq 1,2
heads --seq x
heads --kind measured
heads --quantity time
heads nothing
heads standard --kind published
heads --attention standard taylor-direct
heads --plot heads.docx
heads --set nobody=1
heads --phase decode linformer
heads --causal linformer
heads --scope x
heads --quantity seconds
heads standard efficent
heads standard --attention sdpa
heads --plot figure.bmp
heatmap --device x
heatmap --seq 0
heatmap --d-model 0
heatmap --heads 0 :: at least 1
heatmap --heads x
heatmap standard
heatmap standard efficient sdpa
heatmap standard nothing
heatmap standard sdpa
heatmap standard linformer :: --kind formula
heatmap --kind measured :: published, formula
heatmap --quantity time --kind formula
heatmap --quantity peak_bytes
heatmap --phase sideways --kind formula
heatmap --scope x
heatmap --d 64 :: --d-model
heatmap --convention operations :: --kind formula
heatmap --plot x.xyz
heatmap --plot x
heatmap --output /no/such/x.png
heatmap standard efficient --attention standard,efficient
heatmap --seq 1:1000000:+1
heatmap --seq 1:100000:+10 --d-model 1:100000:+10
heatmap --heads 3 --d-model 4,8 --kind formula
heatmap --set nobody=1
heatmap linformer standard --kind formula --causal
heatmap --dtype x
heatmap --no-plot --plot ratio.png :: leave it out, or ratio.png
heatmap --no-plot --output ratio.png :: leave it out, or ratio.png
heatmap --size wide :: page, column
heatmap taylor-direct taylor-efficient :: --phase forward
heatmap --quantity flop --kind formula :: did you mean flops
heatmap standard efficient super :: attnprof heatmap standard efficient
heatmap --phase training --kind formula :: train
heatmap --plot figure.gif :: .png, .svg, .pdf
heatmap --output no/such/folder/figure.png :: no folder
heatmap --heads 3 --d-model 10 --kind formula :: --d-model 3:48:x2
heatmap --seq 1:100000:+1 --d-model 1:100000:+1 :: larger steps
heatmap --batch 4 :: --kind formula
heatmap --set window=4 :: no parameter
list --format yaml
list --seq 5
list extra
list --output /no/such/folder/x.csv :: no folder
lst :: list
plot nosuch.jsonl
plot nosuch.json --kind growth
plot nosuch.jsonl --kind circle
plot nosuch.jsonl -o figure.txt
profile
profile --attention standard
profile --seq 8
profile --attention nothing --seq 8
profile --attention standard --seq 0
profile --attention standard --seq 8 --heads 7
profile --attention standard --seq 8 --device cuda
profile --attention standard --seq 8 --device cuda:7
profile --attention standard --seq 8 --device tpu
profile --attention standard --seq 8 --dtype float8
profile --attention standard --seq 8 --phase sideways
profile --attention standard --seq 8 --scope x
profile --attention standard --seq 8 --samples 0
profile --attention standard --seq 8 --samples -1
profile --attention standard --seq 8 --samples x
profile --attention standard --seq 8 --min-time -1
profile --attention standard --seq 8 --max-time 0
profile --attention standard --seq 8 --max-time nan
profile --attention standard --seq 8 --threads 0
profile --attention standard --seq 8 --threads -2
profile --attention standard --seq 8 --seed -1
profile --attention standard --seq 8 --seed 99999999999999999999999
profile --attention linformer --seq 8 --causal
profile --attention she --seq 8 --scope core
profile --attention standard --seq 8 --output /no/such/x
profile --attention standard --seq 8 --set nobody=1
reproduce 999
reproduce 004 extra
reproduce --claim nothing
reproduce --table 2 :: of which document
reproduce 004 --table 99
reproduce 004 --figure 1 --plot x.xyz
reproduce --verdict maybe
reproduce --format x
reproduce --output /no/such/x :: no folder
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
sweep --grid nosuch.toml
sweep --attention standard --seq 8 --heads 3
sweep --attention standard --seq 8 --memory-limit lots
sweep --attention standard --seq 8 --causal perhaps
sweep --attention standard --seq 8 --max-time 0
sweep --attention standard --seq 8 -o no/such/folder/r.jsonl
tradeoff --no-time --input sharp :: peaked
tradeoff --no-time --input nothing.pt :: cannot read nothing.pt
tradeoff --no-time --norms long :: unknown norms
tradeoff --no-time --set window= :: type a name
tradeoff --no-time -a linear --set window=3 :: no parameter 'window'
tradeoff --no-time --seq 8,16 :: one value
verify-formula 9**9**9**9 standard
verify-formula h**99999999 standard
verify-formula (((9**16)**16)**16)*N standard
verify-formula (N+d+h+1)**16 taylor-direct --scope core --where h=1
verify-formula 'a'*10**10 standard
verify-formula True standard
verify-formula N standard --where h=1.5
verify-formula N standard --where h=0
verify-formula N standard --where N=(N+d+h+B)**16
verify-formula 4N standard :: * may be missing
verify-formula n**2 standard :: --where n=…, in B, N, h, d
verify-formula N nothing :: nothing
verify-formula N :: needs a formula and what it is of
verify-formula N standard --attention linear :: two targets
verify-formula N standard --up-to roughly :: --up-to roughly
verify-formula N standard --where h :: --where h
verify-formula N standard --quantity speed :: speed
verify-formula N standard --in N, :: --in
verify-formula --table nowhere.csv standard :: nowhere.csv
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_request_is_told_in_one_line(attnprof, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
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


def test_super_without_a_length_says_what_is_missing():
    with pytest.raises(RequestError, match="seq_len"):
        package.build("super", 64, 4)


def test_no_arguments_show_the_help(attnprof):
    ended = attnprof()
    assert ended.code == 2
    assert "crossover" in ended.out + ended.err
    assert "bug" not in ended.err


def test_every_refusal_is_told_where_all_are(attnprof):
    ended = attnprof("cost --attention linformer,nystromformer --seq 64,128 --causal")
    assert ended.code == 2
    assert "linformer mixes all tokens" in ended.err
    assert ended.err.count("; nystromformer takes its landmarks") == 1


@pytest.mark.parametrize("flag", ["--calibration", "--file"])
@pytest.mark.parametrize(
    "command",
    ["predict -a standard --seq 8 --on TPU", "recommend --seq 8 --on TPU",
     "crossover --kind predicted --on TPU", "calibrate --contended"],
)  # fmt: skip
def test_a_calibration_has_one_name_and_an_older_one(attnprof, tmp_path, command, flag):
    path = tmp_path / "none"
    path.write_text("somebody's own")
    ended = attnprof(command, (flag, str(path)))
    assert ended.code == 2
    assert f"{path} is no whole JSON file" in ended.err


def test_help_shows_the_one_name(attnprof):
    for command in ("predict", "recommend", "crossover", "calibrate"):
        shown = attnprof(command, ("--help",)).out
        assert "--calibration" in shown
        assert "--file" not in shown


def test_a_memory_that_is_none_is_refused(attnprof):
    ended = attnprof("model 001-lm-dot --memory much")
    assert ended.code == 2
    assert "--memory much: type a size like 2GiB" in ended.err
