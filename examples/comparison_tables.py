"""The table and the picture of compare_models.py."""

import numpy as np
from matplotlib.figure import Figure

COLUMNS = {  # of the table, after those of the task's own scores: title -> key of a run, digits
    "training tokens/s": ("training_tokens_per_second", 0),
    "steps": ("steps", 0),
    "steps to {}": ("steps_to_goal", 0),
    "seconds to {}": ("seconds_to_goal", 1),
    "one sentence, ms": ("latency_ms", 1),
    "64 sentences, tokens/s": ("tokens_per_second", 0),
    "peak memory, MB": ("peak_memory_mb", 0),
    "of it in training": ("training_memory_mb", 0),
}


def cell(values, digits):
    """Mean and range of the seeds; how many have a value where not all do."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (np.mean(known), min(known), max(known)))
    some = "" if len(known) == len(values) else f", {len(known)} of {len(values)} seeds"
    return (mean if low == high else f"{mean} ({low} to {high})") + some


def table(runs, goal):
    """Markdown rows, one a model: means over its seeds."""
    scores = list(runs[0]["scores"])
    rows = [["model", "parameters", *scores, *(title.format(goal) for title in COLUMNS)]]
    for kind, own in by_model(runs).items():
        found = [cell([run["scores"][score] for run in own], 3 if score == "exact match" else 2) for score in scores]
        found += [cell([run[key] for run in own], digits) for key, digits in COLUMNS.values()]
        rows.append([kind, f"{own[0]['parameters']:,}", *found])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return ["| " + " | ".join(row) + " |" for row in rows]


def summary(runs, score):
    """The score of each model, in a line."""
    return ", ".join(f"{kind} {cell([run['scores'][score] for run in own], 3)}" for kind, own in by_model(runs).items())


def by_model(runs):
    return {kind: [run for run in runs if run["model"] == kind] for kind in dict.fromkeys(run["model"] for run in runs)}


def draw(runs, goal, path):
    axes = Figure(figsize=(8, 5), layout="constrained").subplots()
    for number, (kind, own) in enumerate(by_model(runs).items()):
        curves = [np.array(run["curve"])[:, [0, 2]].T for run in own]
        grid = np.linspace(max(seconds[0] for seconds, _ in curves), min(seconds[-1] for seconds, _ in curves), 200)
        for seconds, quality in curves:
            axes.plot(seconds, quality, color=f"C{number}", linewidth=0.6, alpha=0.5)
        axes.plot(grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0), color=f"C{number}", label=kind)
    axes.axhline(goal, color="grey", linestyle=":", linewidth=1, label="goal")
    axes.set(xlabel="seconds of training", ylabel="validation token accuracy", xlim=0)
    axes.set_title("Mean of the seeds (thick) and each seed (thin); as many parameters each")
    axes.legend(loc="lower right")
    axes.figure.savefig(path, dpi=150)
