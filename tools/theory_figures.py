"""Figures of docs/results/theory-*.json by task, attention, seed, layer, head and level, as docs/theory has them."""

import functools
import statistics

from page_tables import raw

TASKS = {"listops": "ListOps", "imdb": "IMDB bytes", "cifar10": "CIFAR-10"}
SIZES = (32, 64, 128, 256)  # model sizes of theory-kurtosis


def merged(common, own):
    """A whole record: its part that all runs share, and its own."""
    both = {**common, **own}
    for key in common.keys() & own.keys():
        both[key] = merged(common[key], own[key])
    return both


@functools.cache
def all_runs(name):
    file = raw(f"theory-{name}")
    return [{**run, "record": merged(file["record"], run["record"])} for run in file["runs"]]


def runs(task, attention="hkt"):
    """Of one attention, by seed."""
    return sorted((run for run in all_runs(task) if run["attention"] == attention), key=lambda run: run["seed"])


def sizes(size):
    """The runs of a model size, by seed."""
    return sorted((run for run in all_runs("kurtosis") if run["model_size"] == size), key=lambda run: run["seed"])


def heads(of, layers=(0, 1)):
    """The heads of all seeds that could be inspected, each a dictionary of its figures."""
    found = []
    for run in of:
        for layer in (run["layers"][at] for at in layers):
            found += [{key: values[h] for key, values in layer.items()} for h in range(len(layer["kl"]))]
    return [head for head in found if head["kl"] is not None]


def numbers(of, key, layers=(0, 1), level=None):
    """A figure of all heads, at one level or, where it has levels and none is named, at all of them."""
    values = [head[key] for head in heads(of, layers)]
    if level is not None:
        values = [value[level] for value in values]
    elif values and isinstance(values[0], list):
        values = [one for value in values for one in value]
    return [value for value in values if value is not None]


def spread(values, digits=2):
    """The smallest and the largest."""
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if low == high else f"{low} .. {high}"


def per_seed(of, key, layers=(0, 1), level=None, digits=2):
    """The median over heads, a number per seed."""
    found = [numbers([run], key, layers, level) for run in of]
    return ", ".join(f"{statistics.median(values):.{digits}f}" if values else "-" for values in found)


def accuracy(of, split="test"):
    """Mean and standard deviation over seeds."""
    values = [run[split] for run in of]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def ratios(of, layer, level):
    """Kurtosis over its expected value at each epoch: the median over heads, and of those over seeds."""
    course = []
    for at in range(len(of[0]["epochs"])):
        seeds = [
            statistics.median(found)
            for run in of
            if (found := [head[level] for head in run["kurtosis_ratio"][at][layer] if head[level] is not None])
        ]
        course.append(statistics.median(seeds) if seeds else None)
    return course
