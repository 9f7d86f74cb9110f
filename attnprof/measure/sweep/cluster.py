"""Tasks on the workers of a Dask cluster, here or on other machines; one process writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.measure.sweep.runner import Entry, Task, Terms, measured


class DaskEngine:
    """``workers`` processes on this machine, or the workers of a running ``scheduler``.

    A worker measures one task at a time: two at once would disturb each other. Raises
    :class:`CannotRunError` where Dask is not installed or the scheduler does not answer.
    """

    def __init__(self, workers: int = 0, scheduler: str | None = None) -> None:
        self._workers = workers
        self._scheduler = scheduler

    def run(self, tasks: Sequence[Task], terms: Terms) -> Iterator[tuple[Task, Entry]]:
        """Each task's entry as it is done; nothing is lost when a worker dies."""
        distributed = _distributed()
        with self._client(distributed) as client:
            futures = {
                client.submit(
                    measured, task, terms, key=task.key, pure=False, resources={"device": 1}
                ): task
                for task in tasks
            }
            for future in distributed.as_completed(futures):
                yield futures[future], _entry(future, futures[future])

    def _client(self, distributed: Any) -> Any:
        if self._scheduler is None:
            cluster = distributed.LocalCluster(
                n_workers=self._workers, threads_per_worker=1, resources={"device": 1},
                dashboard_address=None, silence_logs=50,
            )  # fmt: skip
            return distributed.Client(cluster)
        try:
            return distributed.Client(self._scheduler, timeout=10)
        except OSError as error:
            raise CannotRunError(
                f"no Dask scheduler answers at {self._scheduler}: start one with 'dask scheduler' "
                "and workers with 'dask worker ADDRESS --nthreads 1 --resources device=1'"
            ) from error


def _entry(future: Any, task: Task) -> Entry:
    """The worker's entry; a worker that died over a task is a row with that reason."""
    from dataclasses import asdict

    from attnprof.measure.point import blank

    try:
        entry: Entry = future.result()
    except Exception as error:  # noqa: BLE001 - whatever a remote machine says is a reason
        reason = f"its worker failed: {type(error).__name__}: {str(error)[:160]}"
        return {
            "process": task.process,
            "record": asdict(blank(task.point, reason)),
            "environment": {},
        }
    return entry


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise CannotRunError(
            "workers need Dask: pip install 'attnprof[cluster]' (or leave --workers out)"
        ) from error
    return distributed
