"""Reporters of samples: each function returns a `Reporter` for `spark_purgatory.monitor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spark_purgatory.errors import ConfigError
from spark_purgatory.metrics.catalog import METRICS, PREFIX, Metric, Reporter, Sample
from spark_purgatory.metrics.progress import sample_lines

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


def progress() -> Reporter:
    """Print a line for each micro-batch, like ``spark-purgatory run``, and one when a drain begins or ends.

    Make one for each query.

    Example::

        query_monitor = monitor(query, metrics.progress())
    """
    before: Sample | None = None

    def report(sample: Sample) -> None:
        nonlocal before
        if lines := sample_lines(before, sample):
            print(*lines, sep="\n", flush=True)
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
