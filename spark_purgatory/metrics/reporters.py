"""Reporters of samples, each made by a function for `spark_purgatory.monitor`; the lines of `progress` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spark_purgatory.errors import ConfigError
from spark_purgatory.metrics.catalog import METRICS, PREFIX, Metric, Reporter, Sample
from spark_purgatory.readable import readable_ms

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


SAID_DAY_MS = 86_400_000  # a watermark further behind the clock is of old data: its date shows that
Numbers = tuple[str, int, int | str, int | str]  # a micro-batch, rows in, decided, waiting; a text if not exact


def batch_line(
    at: datetime, numbers: Numbers, took_ms: float, watermark_ms: float | None, by_status: Mapping[str, float]
) -> str:
    """Return the line of a micro-batch that ended ``at`` a time; ``by_status`` has the sums so far."""
    seconds = took_ms / 1000
    time, lag = "none yet", ""
    if watermark_ms is not None:
        time, lag_ms = f"{_time(watermark_ms):%Y-%m-%d %H:%M:%S}", at.timestamp() * 1000 - watermark_ms
        lag = f" UTC ({readable_ms(lag_ms)} behind the clock)" if 0 < lag_ms < SAID_DAY_MS else " UTC"
    batch, rows_in, decided, waiting = (each if isinstance(each, str) else f"{each:,}" for each in numbers)
    outcomes = ", ".join(f"{status} {count:,.0f}" for status, count in by_status.items())
    speed, took = f"{numbers[1] / seconds if seconds else 0:,.0f}", f"{seconds:.1f} s"
    return (
        f"{at.astimezone():%H:%M:%S} batch {batch}: {rows_in} rows in, {decided} decided, {waiting} waiting, "
        f"{speed} rows/s, took {took}, watermark {time}{lag}, this run {outcomes or 'no outcomes yet'}"
    )


def sample_line(before: Sample | None, sample: Sample) -> str | None:
    """Return the line of a sample's micro-batch; None if the micro-batch did nothing, or has a line already."""
    if before is not None and before.batch == sample.batch:
        return None
    flat, by_status = sample.flat(), _by_status(sample)
    rows_in, done = int(flat["batch_input_rows"]), int(sum(by_status.values()))
    decided: int | str = done - int(sum(_by_status(before).values())) if before or flat["batches_total"] == 1 else "?"
    if before is not None and not rows_in and not decided:
        return None
    waiting: int | str = f"about {flat['pending']:,.0f}" if "pending" in flat else "?"
    if flat["batches_total"] == sample.batch + 1:  # Every micro-batch of the checkpoint was counted.
        waiting = int(flat.get("operations_received_total", 0)) - done
    watermark_ms = sample.time_ms - flat["watermark_lag_ms"] if "watermark_lag_ms" in flat else None
    numbers = (str(sample.batch), rows_in, decided, waiting)
    return batch_line(_time(sample.time_ms), numbers, flat["batch_duration_ms"], watermark_ms, by_status)


def _by_status(sample: Sample | None) -> dict[str, float]:
    found = {} if sample is None else sample.values.get("outcomes_total", {})
    return {labels[0].upper(): count for labels, count in found.items() if count}


def _time(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def progress() -> Reporter:
    """Print a line for each micro-batch, like ``spark-purgatory run``.

    Make one for each query.

    Example::

        query_monitor = monitor(query, metrics.progress())
    """
    before: Sample | None = None

    def report(sample: Sample) -> None:
        nonlocal before
        if line := sample_line(before, sample):
            print(line, flush=True)
        before = sample

    return report


def prometheus(
    port: int | None = None, *, addr: str = "0.0.0.0", registry: CollectorRegistry | None = None
) -> PrometheusReporter:
    """Keep the last sample of each query for Prometheus, and serve it at ``/metrics`` if a port is given.

    Args:
        port: The port to serve on. None: the process serves the registry already. 0 takes a free one.
        addr: The address to serve on.
        registry: The registry of the reporter; by default prometheus-client's own.

    Returns:
        A reporter. Its attribute ``port`` is the port that it serves, or None.

    Raises:
        ConfigError: prometheus-client is not installed, or the port is taken.

    Example::

        query_monitor = monitor(query, metrics.prometheus(port=9108))
    """
    try:
        from prometheus_client import REGISTRY, start_http_server
    except ImportError as error:
        raise ConfigError("prometheus() needs prometheus-client: pip install 'spark-purgatory[metrics]'") from error
    into = REGISTRY if registry is None else registry
    reporter = PrometheusReporter()
    into.register(reporter)
    if port is not None:
        try:
            server, _ = start_http_server(port, addr, into)
        except OSError as error:
            into.unregister(reporter)
            raise ConfigError(f"prometheus({port=}) cannot listen: {error.strerror}; choose another port") from error
        reporter.port = server.server_port
    return reporter


class PrometheusReporter:
    """The last sample of each query, as prometheus-client collects it."""

    def __init__(self) -> None:
        self.port: int | None = None  # the port that it serves
        self._last: dict[str, Sample] = {}

    def __call__(self, sample: Sample) -> None:
        """Keep a query's sample until its next one."""
        self._last[sample.query] = sample

    def describe(self) -> Iterable[Family]:
        """Return nothing in advance, because the metrics depend on the queries."""
        return []

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        samples = list(self._last.values())
        for metric in METRICS:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            labels = ["query", *(name for name, _ in metric.labels)]
            made: Any = family(PREFIX + metric.name.removesuffix("_total"), metric.text, labels=labels)
            for sample in samples:
                for values, number in sample.values.get(metric.name, {}).items():
                    made.add_metric([sample.query, *values], number)
            yield made


def opentelemetry(meter: Any = None) -> Reporter:
    """Give each sample to OpenTelemetry's metrics API; the process configures their export.

    Args:
        meter: A ``Meter``; by default that of the global provider.

    Raises:
        ConfigError: opentelemetry-api is not installed.

    Example::

        query_monitor = monitor(query, metrics.opentelemetry())
    """
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        raise ConfigError("opentelemetry() needs opentelemetry-api: pip install 'spark-purgatory[otel]'") from error
    meter = meter or api.get_meter("spark_purgatory")
    last: dict[str, Sample] = {}

    def observations(metric: Metric) -> Any:
        def observe(_: Any) -> Iterator[Any]:
            names = [name for name, _ in metric.labels]
            for sample in list(last.values()):
                for values, number in sample.values.get(metric.name, {}).items():
                    yield api.Observation(number, {"query": sample.query, **dict(zip(names, values, strict=True))})

        return observe

    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(PREFIX + metric.name, callbacks=[observations(metric)], unit=metric.unit, description=metric.text)

    def report(sample: Sample) -> None:
        last[sample.query] = sample

    return report
