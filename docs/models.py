"""Writes docs/models.md from the presets: python docs/models.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from attnprof.models import ModelConfig, Preset, build, layer_kinds, parts, presets

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Models

Three jobs, and what to type for each. `NAME` is a released model, a `config.json`, a name on the
Hub or a description by sizes ([names](#names)); none of it needs weights or a GPU.

**Serve one**: does it fit, at which context and batch, how fast, and what a token costs as engines
run it. [fitting.md](fitting.md)

```
attnprof fit NAME --on h100 --seq 32768 --batch 8
attnprof model NAME --seq 32768 --batch 8 --phase prefill,decode
attnprof model NAME --compare OTHER --seq 32768 --plot side.pdf
```

**Train one**: FLOPs a token for MFU by the convention of your framework, what a formula of yours
gets wrong, and whether weights, optimizer and activations fit. [mfu.md](mfu.md)

```
attnprof model NAME --mfu --as-python flops.py
attnprof verify-formula --model NAME "6*P + 12*L*h*d*N"
attnprof fit NAME --on h200 --train --shard zero3 --data-parallel 8
```

**Design one**: closed forms in length, batch and layers, another attention in some layers, and the
length from which on it pays. [below](#another-mechanism-in-some-layers)

```
attnprof model NAME --swap sliding@even --set window=512
attnprof crossover --model NAME linear
attnprof model my.toml --phase train
```

## What a model costs

`attnprof model` shows parameters, FLOPs, bytes moved and memory by part and kind of layer, in
numbers at `--seq` and `--batch` and as closed forms in `B`, `N` and the number of layers `L`: of a
forward pass (a prompt), a training step, a token decoded after `N - 1` others, and the cache.

```
attnprof model llama-3.1-8b --seq 4096             # a released model, shipped
attnprof model 001-lm-dot --seq 512                # a preset of a document
attnprof model my.toml --phase forward,decode      # a file as in the last sections
attnprof model config.json --seq 4096 --batch 8    # a model of transformers
attnprof model my.py:build_model                   # what a function of yours makes
attnprof model my.py:Net --input "x: B, 3, 64, 64" # where its inputs cannot be guessed
```

- A model of transformers is built from its `config.json` (or the folder that holds it) by the
  installed transformers, of its own code: without weights, and without a network (`pip install
  'attnprof[hf]'`). Numbers are in the format that the configuration names, and attention is
  computed as transformers chooses, or as `--kernel eager` or `--kernel sdpa` says.
- Formulas are derived from the model with its first few layers, as many as it takes to see each
  kind of them, and verified like those of `attnprof derive`. What the others add follows from
  these, and is held against a run of more layers and one of all. `L` is the number of layers where
  they repeat, perhaps by a period, as windows 5:1 do: the domain then says `L mod 6 = 2`; stacks as
  long as each other, as of an encoder and a decoder, have it both, of others each has its own, like
  `L_encoder` and `L_decoder`. Where they do not repeat, all layers are derived in one run, in `B`
  and `N`.
- Without `--seq` a text has 1,024 tokens, or as many as the configuration says that the model
  takes. At that length, too, formulas are in `N`: derived at one token less, and extended where a
  run of all layers at the longest text does what they say.
- `prefill` is the forward pass of a prompt as generation makes it, with the logits of the last
  token; `forward` gives those of all tokens. `--logits last` or `--logits all` chooses for both.
  Models that take no `logits_to_keep` compute all that they have, and a note says so.
- Of a mixture's experts only the weights that tokens meet are read: a decoded token reads those of
  the experts that it chooses, and `B` of them, each choosing k of E evenly at random, those of
  `E*(1 - (1 - k/E)**B)` experts on average, which the formula says; experts in a loop of Python's,
  too. With `--as torch`, bytes moved are those of the model's own code: copies of the cache that it
  makes, as by `torch.cat`, are among them.
- Under a decoded token stands what its weights and its cache are, each read once (`least_traffic`
  of the phase in JSON): 26.0 GB of 27.1 for Mixtral 8x7B at 4,096 tokens. What is moved beyond are
  results in between and copies: transformers' Python copies a cache that grows (`torch.cat`) and
  expands a latent one at every token, which engines do not.
- `--as` says as what a model of transformers is counted, and stands in each table and record.
  `engine`, the default, is what engines and trainers execute: attention by a fused kernel over the
  pairs that the mask leaves, with scores computed again in the backward pass; caches written in
  place; latent attention absorbed at decode; recurrent layers by the kernel whose fallback their
  code calls (gated delta rule, Kimi's, Mamba-1, Mamba-2, lightning): a prompt in chunks, a decoded
  token in one step. `torch` is what the installed transformers' Python executes, loops of
  fallbacks, masks and copies of caches among it. `definition` has the same layers by their
  formulas: recurrences step by step, latents expanded, softmax without a maximum, nothing computed
  twice; sums of k terms count k additions there, too. Where another view differs by more than a
  tenth, a sentence says by how much and why (`other_views` of the phase in JSON), from what the
  kernels know and without a run of that view. Classes of layers that no kernel is known for are
  counted as torch runs them, and named.
- Numbers come from a run of all layers at the asked sizes, so they hold outside the formulas'
  domain, too. Where loops of our mechanisms have very many turns, one stands for those like it.
- `--limit` bounds the processor time, which is three minutes unless said otherwise: numbers come
  first, and formulas get what is left, an equal share for each phase and the cache. Recurrent
  layers that transformers' Python takes token by token or by chunks (`--as torch`) may use that up:
  then there are numbers alone, and the reason says what to type. `--limit 1200` gives twenty
  minutes, `--limit 0` asks for no formulas.
- Numbers are not cut short before two minutes of processor time a phase, or what `--limit` says if
  that is more. A run that takes longer than 1.5 seconds is made of a run of the first layers, where
  the others are built like them and cost the same.
- A configuration is refused, by field, where nobody can build it: more than 10,000 layers, formats
  like float8 in which torch builds no model, code of its own (`auto_map`), which is not run.
- The memory of a training step is given in parts: weights, gradients, the state of `--optimizer`,
  and what the forward pass leaves for the backward pass; data, as pixels or sound, get no
  gradients, and neither do weights that the step leaves out, as a vision tower's in a step of
  text, which have no state either. Parts are not all held at once; the peak is what is, in a loop
  that keeps the model's result (logits, cache) until the backward pass is over. It is the
  allocator's to a few bytes (`tests/models/test_memory.py`).
- Where a kernel takes memory that is not predicted, or an operation has no rule, numbers and
  formulas are "at least": in tables, in each record's `bound` (`exact`, `at least`, `even
  routing`), and in the summary's `memory_bound` for a training step, with and without formulas.
- `--memory 80GB` says of each phase whether it fits: the parameters, for a decoded token the cache,
  and the peak of what a call adds; the peak of a training step includes its optimizer. Nothing is
  reserved for what else lies in a device's memory.
- An encoder and a decoder both take `N` tokens; with `--target-seq` the decoder takes `M`, and
  formulas have both. A token is decoded after all others of the decoder, with the whole source.
- The cache is what the model's own cache object holds after a prompt of `N` tokens, layer by
  layer.
- Of a mixture of experts, parameters that a token meets are told apart; its costs are those of
  even routing.
- `N` are a text's tokens, or the samples or rows of a spectrogram of a sound. Images, videos, and
  spectrograms of a model that takes one size, are as large as the configuration says.

## Names

`CONFIG` may be, in this order:

| what | example | where it comes from |
|---|---|---|
| a folder, or a `.json` file | `folder/`, `config.json` | its fields |
| a function or class | `my.py:build_model` | your code |
| a model of ours | `my.toml`, `001-lm-dot` | the file, or the presets below |
| a released model | `llama-3.1-8b` | shipped: `attnprof list --models` |
| a name on the Hub | `meta-llama/Llama-3.1-8B` | its `config.json`, and no other file |
| a type of transformers | `gpt_oss` | the type's defaults, and a note says so |

- Shipped fields were written down without the Hub's files at hand: the number of parameters is held
  against the published one; windows, limits, formats and `quantization_config` are not. Where these
  matter, give the name on the Hub or the file itself.
- Shipped are the fields that change a cost and are not the type's defaults. Where a published
  number of parameters is known, the built model has it to the integer, but for what is named:
  biases of routers that transformers does not count, layers for multi-token prediction that it does
  not build, and vision towers, as models of images and text are shipped as their text decoder
  (`tests/models/test_presets_public.py`). That holds sizes alone: lengths, windows, number formats
  and `quantization_config` change no parameter. The release's own `config.json` decides.
- The Hub is asked by huggingface_hub, with its cache, its token, `HF_ENDPOINT` and
  `HF_HUB_OFFLINE`. Without a network a `config.json` that it has kept is read. Code that lies
  beside the weights is never run: a type that transformers lacks is built by the class that
  `architectures` names, if transformers has that, and a note says so.
- A file without `model_type` is taken as a description by sizes: `num_hidden_layers`,
  `hidden_size` and such, with `attention_bias` (`"qkv"`, `"qkvo"`), `qk_norm` (`"head"`),
  `norms_per_layer` (1, 2, 4), `glu`, `mlp_bias`, `norm_bias`, `full_attention_layers` (how many,
  evenly spread), `shared_expert_intermediate_size`, and the fields of latent, linear and recurrent
  layers as configurations have them. It gets the type of transformers that has exactly such layers;
  a note says which, and which sizes are the type's defaults since they are left out. A field that
  no such type has is refused by name.

`attnprof.models.names.config_of` gives the fields for any of them but code and models of ours.

## Models side by side

```
attnprof model llama-3.1-8b --compare qwen3-8b,gemma-3-12b --seq 32768 --plot side.pdf --size column
```

`--compare` takes names with commas between, or is repeated. A row a model has its parameters, those
that a token meets, the cache after `N` tokens and what one more adds to it, a prompt's FLOPs by its
tokens, and bytes that a decoded token moves; all at the same `--seq` (1,024 unless it is said) and
`--batch`. In JSON each record has its `model`. The figure has the cache and a prompt's FLOPs a
token over the context, where formulas hold.

## Another mechanism in some layers

```
attnprof model config.json --swap linear
attnprof model config.json --swap sliding@even --set window=512 --swap standard@0
attnprof model 001-lm-dot --swap neural@0
```

`--swap NAME` puts one of our mechanisms into all layers, `NAME@LAYERS` into some: `@0`, `@0,3`,
`@2-5`, `@even`, `@odd`, `@pattern=3:1` (three layers get it, one is left, and so on; windows of
which every sixth layer is full are `sliding-window@pattern=5:1`), or `@` a kind of layer as the
command names it, like `sliding 128`, or as its configuration does (`sliding_attention`); of our
own models `encoder` or `decoder`. Layers are counted from 0, an encoder's before a decoder's.
Cross-attention stays. `sliding` is `sliding-window`, whose `window` counts what `sliding_window`
of a configuration does: all tokens that a causal row sees, its own included.

In a model of transformers a mechanism that takes queries, keys and values becomes the kernel that
the layer's attention calls, through transformers' registry of attention functions: maps, positions
and caches stay the model's, and grouped keys are repeated for mechanisms that do not take them. A
mechanism with other maps (`efficient`, `super`, `he` ...) or with gates (`gated-deltanet`,
`kimi-delta`, `mamba2` ...) takes the place of the whole attention module, with as many heads of
the same width, and as many of keys if it shares them (`nsa`, `topk`); so does any where the model
asks no registry. What does not fit is refused with the layer and the reason: a mechanism without a
causal form in a decoder, a bias or sinks among the scores, grouped heads for a whole module.

A swapped layer decodes by its mechanism's own step, from its own state: the sums of `linear` do
not grow, a window keeps the tokens that it shows. The other layers keep transformers' cache, and
`cache_bytes` is the sum of both. Where a mechanism has no step the layer is named, no token is
decoded, and the cache is that of the other layers. A prompt's pass ends with the state, which is
counted as memory and not as operations.

From which length on a whole model gets cheaper is a crossover like any other, derived from its
code, with a figure by `--plot`; one name alone is compared with the model as it is:

```
attnprof crossover --model config.json linear
attnprof crossover --model 004-imdb-byte-standard taylor-direct taylor-efficient --plot model.png
```

`--plot` draws the share of each part in the FLOPs over length, of each phase, and the growth of
the cache.

## Models of our own

`attnprof.models` has transformers in plain torch: encoders (of tokens, of patches of an image, of
rows), decoders and encoder-decoders, with any mechanism of [mechanisms.md](mechanisms.md) as
attention, another one in each layer where you say so. They build without weights
(`device="meta"`), run, train, and, as decoders, go token by token.

```python
from attnprof.models import ModelConfig, build, parts

layers = [{"name": "neural", "down_dim": 2}, "sdpa"]  # the last is that of all others, too
config = ModelConfig(num_layers=8, positions="rotary", activation="swiglu", attention=layers)
model = build(config, device="meta")
parts(model)  # {'embedding': 16384000, 'attention': ...}
```

A TOML file holds the same fields, or changes some of a preset: `build("my.toml")`.

```toml
preset = "001-lm-dot"
num_layers = 12
attention = ["standard", { name = "longformer", window = 128 }]
```

Formulas, of a whole pass and of one decoded token, with the number of layers as a size:

```
attnprof derive attnprof.models:build --arg config.num_layers=L --arg config.d_model=h*d \\
  --arg config.num_heads=h --arg config.seq_len=N --input "x: B, N int64" --phase forward,decode
```

This page is written by `python docs/models.py` from the presets themselves.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_fields(), *_presets()])


def _fields() -> Iterator[str]:
    yield "## Fields\n\n| field | unless said |\n|---|---|"
    for item in fields(ModelConfig):
        value = getattr(ModelConfig(), item.name)
        shown = value[0].name if isinstance(value, tuple) else getattr(value, "name", value)
        yield f"| `{item.name}` | {'–' if shown is None else shown} |"
    yield ""


def _presets() -> Iterator[str]:
    """A table a group of models that say the same of themselves."""
    yield "## Presets\n\nThe models of the five documents ([papers.md](papers.md))."
    said: tuple[str, str, str] | None = None
    for preset in presets().values():
        about = (preset.document, preset.table, preset.notes)
        if about != said:
            yield f"\nDocument {preset.document}, {preset.table}{_notes(preset)}.\n"
            yield "| preset | layers | parameters |\n|---|---|---:|"
            said = about
        yield _row(preset)
    yield ""


def _notes(preset: Preset) -> str:
    return f": {preset.notes}" if preset.notes else ""


def _row(preset: Preset) -> str:
    model = build(preset.config, device="meta")
    layers = ", ".join(f"{count} × {kind}" for kind, count in layer_kinds(model).items())
    return f"| `{preset.name}` | {layers} | {sum(parts(model).values()):,} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
