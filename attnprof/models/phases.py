"""Run each phase of a model (forward, train, decode, …) and derive its formulas in limited time.

A run of all layers at the asked sizes gives the numbers (:func:`run_of`). Formulas come from the
model with its first few layers if the others repeat them, else from all layers
(:func:`with_forms`). Without formulas, the run is compared with one on real tensors. A *subject*
is the :class:`WholeModel` whose costs are asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.models.borders import derived_near, extended
from attnprof.models.few_layers import run_by_few
from attnprof.models.forms import Model, ModelForms, SampledPhase, UnlikeError, forms_of_all_layers
from attnprof.models.whole import WholeModel
from attnprof.processes.progress import tell
from attnprof.trace.events import Trace, totals, trains
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.run.limits import Shares, TooLongError, is_patient, patience
from attnprof.trace.solve.count import PartedError, count, counted, runnable, smallest_real_run

#: Sizes for a short run on real tensors.
_SHORT = {"B": 2, "N": 16, "M": 16}
#: Part of transformers' error for the length of a cache in which every layer is recurrent.
_WITHOUT_KEYS = "seem to only contain LinearAttention layers"
#: Processor seconds of a run of all layers, after which only the first few are run; and of any
#: run, unless the limit for formulas is higher.
_LONG_S, _LONGEST_S = 1.5, 120.0


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a model at the asked sizes, with its formulas, or why they are ``missing``.

    ``target``: the target as it was run, with experts chosen evenly or on real tensors.
    ``is_confirmed``: the run was compared with one on real tensors. ``name``: the phase as asked;
    ``prefill`` is the phase ``forward`` with logits of the last token alone.
    """

    phase: str
    trace: Trace
    target: Target
    forms: ModelForms | None = None
    missing: str = ""
    is_confirmed: bool = False
    name: str = ""


def _with_logits(subject: WholeModel, name: str) -> WholeModel:
    """Return the subject with a phase's logits; itself if it has these, to reuse its prompts."""
    logits = subject.logits_of(name)
    if not logits or logits == subject.logits_of("forward"):
        return subject
    return replace(subject, logits=logits)


def run_of(
    subject: WholeModel, phase: str, sizes: Mapping[str, int], limit_s: float = 0.0, *,
    other_phase: Trace | None = None,
) -> PhaseRun:  # fmt: skip
    """Return a run of all layers at the asked sizes.

    A long run is composed from one of the first layers, if the others are built alike. So is a
    short one if ``other_phase``, a run of all layers, confirms that layers built alike cost the
    same. Raises :class:`CannotRunError` if it takes more than ``limit_s`` seconds of processor
    time, and more than two minutes.
    """
    name, phase = phase, "forward" if phase == "prefill" else phase
    subject = _with_logits(subject, name)
    target = subject.target(phase)
    numbers = {size: sizes[size] for size in target.symbols}
    try:
        with patience(_LONG_S):
            run = run_by_few(subject, phase, numbers, other_phase) if other_phase else None
            run = run or counted(target, numbers, phase, compare_real=False)
            return PhaseRun(phase, *run, name=name)
    except TooLongError:
        pass
    except RequestError as error:
        if why := _wrong_configuration(subject, error, numbers):
            raise RequestError(why) from error
        raise
    limit_s = max(limit_s, _LONGEST_S)
    try:
        with patience(limit_s):
            run = run_by_few(subject, phase, numbers, other_phase)
            run = run or counted(target, numbers, phase, compare_real=False)
    except TooLongError as error:
        raise CannotRunError(
            f"a run of {subject.name} at {sizes_text(numbers)} takes more than {limit_s:g} s of "
            f"processor time: type a shorter --seq, or --limit {2 * limit_s:g}"
        ) from error
    return PhaseRun(phase, *run, name=name)


def _wrong_configuration(
    subject: WholeModel, error: RequestError, numbers: Mapping[str, int]
) -> str:
    """Return the message on the configuration's field that makes a run fail, else ""."""
    if _WITHOUT_KEYS in str(error):
        return (
            f"{subject.name} has no attention among its layers, and transformers runs it only with "
            'some: write a config.json that says which, as "layer_types" does, or for bamba '
            '"attn_layer_indices": [9, 18, 27]'
        )
    if not subject.longest or numbers.get("N", 0) <= subject.longest:
        return ""
    return (
        f"{subject.name} takes at most {subject.longest} tokens, as its configuration says: "
        f"type --seq {subject.longest} or less, not {numbers['N']}"
    )


def with_forms(
    run: PhaseRun, subject: WholeModel, model: Model, sizes: Mapping[str, int], shares: Shares
) -> PhaseRun:
    """Return a run with its formulas, or with why there are none."""
    subject = _with_logits(subject, run.name)
    with shares.next() as share:
        derives = f", at most {share:.0f} s of processor time"
        what = "deriving formulas of" if share else "comparing with real tensors"
        tell(f"{what} {subject.name}, {run.phase}{derives if share else ''}")
        result = _derived(run, subject, model, sizes) if share else run
        late = not is_patient()
    if not late or (result.forms is not None and result.forms.method != "counted"):
        return result
    if result.is_confirmed:
        return replace(result, forms=None, missing=shares.late(share))
    return _confirmed(replace(run, missing=shares.late(share)), subject, model, sizes)


def _derived(
    run: PhaseRun, subject: WholeModel, model: Model, sizes: Mapping[str, int]
) -> PhaseRun:
    """Return a run with formulas, derived from the first layers if the others repeat them."""
    target, phase = subject.target(run.phase), run.phase
    numbers = {name: sizes[name] for name in target.symbols}
    if model.sample is not None:
        try:
            forms_of_all = SampledPhase(model, subject, phase, run.target).forms(numbers, run.trace)
            return replace(run, forms=forms_of_all)
        except (UnlikeError, AttnprofError, TooLongError):
            pass  # a run of all layers may still have formulas
    if not is_patient():
        return run
    try:
        if not run.trace.has_loops:  # loops over tokens make such runs too long
            run = replace(run, trace=count(target, numbers, phase), is_confirmed=is_patient())
        forms, near, run_near = derived_near(run.target, run.target, phase, numbers)

        def agrees(sizes: Sizes) -> bool:
            counted = totals(count(target, sizes, phase, compare_real=False), phase)
            closed = {x: formula.expression for x, formula in forms.formulas.items()}
            return all(evaluate(x, sizes) == counted[q] for q, x in closed.items() if x is not None)

        forms = extended(forms, near, run_near, numbers, agrees)
    except (AttnprofError, TooLongError) as error:
        return replace(run, missing=str(error))
    return replace(run, forms=forms_of_all_layers(forms, model.places, model.kinds))


def _confirmed(
    run: PhaseRun, subject: WholeModel, model: Model, sizes: Mapping[str, int]
) -> PhaseRun:
    """Return a run without formulas, after a run of few layers is compared with real tensors.

    If the code does something else on real tensors, all layers are run on real tensors.
    """
    few, training = model.few(subject).target(run.phase), trains([run.phase])
    try:
        few = runnable(few, {name: _SHORT[name] for name in few.symbols}, training=training)
        parted = few.mode.real
        why = "" if parted else smallest_real_run(few, training, lambda _: True, ())
    except PartedError:
        parted, why = True, ""
    except AttnprofError as error:
        parted, why = False, str(error)
    if parted:
        return replace(run, trace=count(subject.target(run.phase), sizes, run.phase))
    return replace(run, missing=f"{run.missing}; {why}") if isinstance(why, str) and why else run
