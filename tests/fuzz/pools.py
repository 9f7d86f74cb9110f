"""Values that a user, a script or an adversary may type for a flag: usual, odd and hostile ones."""

# ruff: noqa: E501 - the lists are texts
MECHANISMS = [
    "standard", "sdpa", "efficient", "super", "taylor-direct", "taylor-efficient", "taylorshift",
    "linformer", "performer", "linear", "longformer", "reformer", "sparse", "low-rank", "neural",
    "nystromformer", "she", "gqa", "mla", "mla@impl=absorbed", "gated-deltanet@3+gqa@1", "dsa", "topk",
    "nsa", "dsa@index=lent+dsa@index=shared@3", "topk@index_block=64", "topk@index=shared",
    "mamba2", "gla@", "@", "sliding-window@0", "gqa@num_kv_heads=0", "gqa@1+", "mla@nothing=1", "gqa@1000000000",
    "gqa@" + "9" * 5000,
]  # fmt: skip
#: Texts that mean nothing anywhere, or mean too much.
HOSTILE = [
    "", " ", ",", "=", ":", "-", "--", "0", "-1", "1.5", "1e3", "nan", "inf", "NaN", "None", "True",
    "٣", "９", "ℓ", "𝑁", "10**100", "9" * 400, "9" * 5000, "x" * 3000, "../../etc/passwd",
    "/dev/zero", "%s%n", "{0}", "$(reboot)", "'", '"', "\\", "a\nb", "\t", "é", "ﷺ", "🙂", "=1+1",
    "@x", "<b>", "|", "`", "[red]x[/red]", "[/]", "__import__('os')", "\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\u202e", "\ufeff8", "caf\udce9", "caf\udce9.py:Mine", "[" * 3000, "small",
]  # fmt: skip
SIZES = [
    "1", "2", "3", "7", "8", "64", "1000003", "1099511627776", "1099511627777", "1,2,3", "8,8",
    "16:128:x2", "100:300:+100", "2:9:*2", "1:1000000000:+1", "1:1099511627776:x2", "64:8:x2", "8:64",
    "8:64:x1", "8:64:x0", "8:64:+0", "8:64:-1", "1:2:3:4", ":::", "1,,2", "+8", " 8 ", "1_000", "0x10",
    "10**3", "8;9",
]  # fmt: skip
WORDS = [
    "layer", "core", "forward", "prefill", "backward", "train", "decode", "float32", "float16",
    "bfloat16", "float64", "entry", "flops", "operations", "peak_bytes", "peak_entries", "memory",
    "parameters", "published", "formula", "derived", "exact", "leading", "order", "cpu", "auto",
    "cuda:99", "tpu", "table", "json", "csv", "markdown", "html", "both", "yes", "no", "strict", "N", "d,h",
]  # fmt: skip
SETTINGS = [
    "window=64", "window=0", "window=-1", "window=nan", "proj_len=1099511627777", "rank=1e9",
    "temperature=nan", "temperature=inf", "temperature=-1", "temperature=0", "stride=none",
    "bias=true", "bias=maybe", "impl=naive", "num_features=1", "chunk=0", "switch=memory", "depth=2",
    "num_landmarks=1", "bucket_size=3", "num_hashes=1000000", "=1", "window=", "a=b=c", "features=elu",
]  # fmt: skip
NAMED_SIZES = [
    "N=64", "B=1,N=8,h=2,d=4", "N=0", "N=10**400", "N=" + "9" * 400, "N", "=8", "N=8,N=9", "ℓ=4",
    "N=8:64:x2", "N=1099511627776,d=1099511627776,h=1099511627776,B=1099511627776", "M=8", "1=1",
]  # fmt: skip
ARGUMENTS = [
    "d_model=h*d", "d_model=9**9**9**9", "d_model=h**99999999", "d_model='a'*10**10", "d_model=h*d/3",
    "d_model=True", "d_model=None", "d_model=1.5", "num_heads=h", "num_heads=0", "num_heads=ℓ",
    "d_model=h*(", "d_model=max(h*d, 8)", "d_model=1/0", "d_model=-8", "nothing=1", "d_model=" + "(" * 999,
    "bias=[[[[[[]]]]]]",
]  # fmt: skip
INPUTS = [
    "x: B, N, h*d", "x: B, N, 'x'", "x: B, N, None", "x: B, N, True", "x: N, 9**9**9", "x:", ": N",
    "x: B, N, h*d float99", "x: None", "x: 1.5, 2", "x: 0, 0, 0", "x: N-N-1, 2, 8", "x: " + "N, " * 99,
    "ℓ: B, N, h*d", "x: (B, N, h*d) float64", "y: B", "x: B, N, d/0",
]  # fmt: skip
MEANINGS = [
    "h=1", "h=1.5", "h=0", "h=-1", "D=h*d", "n=N", "l=N", "ℓ=N", "N=(N+d)**16", "N=N**N", "d=nan",
    "n=", "=N", "n=m", "n=9**9**9", "h=1; B=1", "n=Max(N, d), D=h*d",
]  # fmt: skip
NUMBERS = [
    "0", "1", "2", "0.01", "-1", "nan", "inf", "1e400", "1e-9", "10000000000", "x", "", "0.5",
]  # fmt: skip

#: What a shell, a container or a test may have set before a command is started.
WIDTHS = ["", "0", "1", "2", "19", "80", "-5", "100000", "9" * 30, "9" * 5000, "²", "wide"]
MODELS = [
    "config.json", "suite.toml", "deep.json", "pipe.json", "001-lm-dot", "nothing", "infinite.json",
]  # fmt: skip
RELEASED = [
    "gpt2", "llama-3.2-1b", "gpt-oss-20b", "mamba-130m", "deepseek-v2-lite", "granite-4.0-h-tiny",
]  # fmt: skip
SPEEDS = [
    "450GB/s", "0GB/s", "-1GB/s", "1e999TB/s", "1B/s", "GB/s", "450", "80GB", "1TiB", "0B", "10 GB",
]  # fmt: skip
LAYERS = [
    "linear", "gqa@0", "gqa@pattern=3:1", "gqa@pattern=0:0", "gqa@pattern=:", "gla@9-2", "topk@odd",
]  # fmt: skip

#: Pools by flag; other flags take words and hostile texts.
BY_FLAG = {
    **dict.fromkeys(("--seq", "--d", "--d-model", "--heads", "--batch", "--kv-heads", "--kv-seq"), SIZES),
    "--attention": [*MECHANISMS, "standard,efficient", "standard,standard", "standard,", "nothing"],
    "--set": SETTINGS, "--at": NAMED_SIZES, "--arg": ARGUMENTS, "--input": INPUTS,
    "--where": MEANINGS, "--bandwidth": SPEEDS, "--memory": SPEEDS, "--swap": LAYERS,
    "--on": ["h100", "H200", "cpu", "tpu", "nothing", ""], "--as": ["engine", "torch", "definition", "x"],
    "--weights": ["int4", "q4_k_m", "fp8", "mxfp4", "x"], "--cache-dtype": ["fp8", "fp8,nvfp4", "int8", "x"],
    **dict.fromkeys(("--ranks", "--tensor-parallel", "--pipeline", "--expert-parallel",
                     "--context-parallel", "--width", "--value-dim"), SIZES),
    **dict.fromkeys(
        ("--samples", "--min-time", "--max-time", "--threads", "--seed", "--limit", "--spread",
         "--seconds", "--processes", "--memory-limit", "--budget"), NUMBERS,
    ),
}  # fmt: skip
