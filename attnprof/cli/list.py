"""``attnprof list``: mechanisms, models and plug-ins that are available."""

from attnprof import registry
from attnprof.cli.options import Output, environment, switch, working
from attnprof.errors import RequestError
from attnprof.record import MechanismRecord, ReleasedRecord, Report


def list_(
    verify: bool = switch(
        "--verify", "Count and fit the orders of growth; exit 1 if one is exceeded."
    ),
    *,
    models: bool = switch("--models", "List the released models whose configurations are shipped."),
    to: Output,
) -> int:
    """List the mechanisms, how they grow, and their papers.

    The orders of growth are in the length N; --verify counts every mechanism and fits them.
    --models lists names for attnprof model.

    Examples:
      attnprof list
      attnprof list --models
      attnprof list --verify
    """
    if models and verify:
        raise RequestError("--verify is of mechanisms, --models of models: leave one of them out")
    if models:
        to.deliver(_released())
        return 0
    if verify:
        import torch

        from attnprof.measure.growth import subjects
        from attnprof.measure.growth import verify as verified

        mechanisms = subjects(registry.names())
        made_with = environment(torch=torch.__version__)
        with working("counting"):
            report = verified(mechanisms, environment=made_with)
        to.deliver(report)
        return 1 if report.summary["unexpected"] or report.summary["miscounted"] else 0
    fields = ("title", "family", "time_order", "memory_order", "params", "document")
    by_name = {name: registry.get(name) for name in registry.names()}
    records = [
        MechanismRecord(
            mechanism=name, causal=mechanism.abilities.causal, decode=mechanism.abilities.decode,
            **{field: getattr(mechanism, field) for field in fields},
        )
        for name, mechanism in by_name.items()
    ]  # fmt: skip
    notes = [f"{name}'s {parameter}: {meaning}" for name, mechanism in by_name.items()
             for parameter, meaning in mechanism.counted.items()]  # fmt: skip
    to.deliver(Report("list", records + _plugins(), {"notes": notes}, environment()))
    return 0


def _released() -> Report:
    """Return the released models that are shipped, by name."""
    from attnprof.models.names import released

    records = [
        ReleasedRecord(
            model=model.name, model_type=model.config["model_type"], parameters=model.parameters,
            published=model.published or None, beyond=model.beyond, hub=model.hub,
        )
        for model in released().values()
    ]  # fmt: skip
    return Report("list --models", records, {}, environment())


def _plugins() -> list[MechanismRecord]:
    """Return rows for plug-ins by metadata, without importing them: their costs are unknown."""
    rows = []
    for point, broken in registry.plugins():
        where = registry.origin(point)
        reason = f"broken {where}: {broken}" if broken else f"{where}, loaded when asked for"
        rows.append(MechanismRecord(mechanism=point.name, title="plug-in", skipped=reason))
    return rows
