"""What this process's instruments say, for tests. They are never set back: compare with what they said before."""

from prometheus_client.metrics import MetricWrapperBase


def value(instrument: MetricWrapperBase, suffix: str = "_total", **labels: str) -> float:
    """The sum of the samples with these labels: `_total` of a counter, `_count` or `_sum` of a histogram, "" of a gauge."""
    samples = [sample for metric in instrument.collect() for sample in metric.samples]
    mine = [sample for sample in samples if labels.items() <= sample.labels.items()]
    return sum(sample.value for sample in mine if sample.name == f"{instrument._name}{suffix}")
