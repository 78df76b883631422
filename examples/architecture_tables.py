"""What compare_architectures.py measured: exponents, fitted and of theory, where two layers cross, and the plots."""

import costs
import data
from matplotlib.figure import Figure

LIMIT = 0.15  # how far a fitted exponent may lie from theory's
COUNTED = ("parameters", "multiply_adds", "weight_products", "pair_products", "steps", "path")  # exact
MEASURED = ("memory", "forward", "training")  # of this machine and compiler
TITLES = {"multiply_adds": "multiply-adds", "memory": "memory, training", "steps": "sequential steps"}
UNITS = {"memory": "bytes", "forward": "seconds", "training": "seconds"}
ORDERS = {  # parameters, operations, sequential steps, path length
    "SimpleRNN": ("d²", "T d²", "T", "T"),
    "LSTM": ("d²", "T d²", "T", "T"),
    "GRU": ("d²", "T d²", "T", "T"),
    "convolution": ("k d²", "k T d²", "1", "T/(k-1)"),
    "causal attention": ("d²", "T² d + T d²", "1", "1"),
    "attention": ("d²", "T² d + T d²", "1", "1"),
    "learned positions": ("T d", "-", "-", "-"),
}
WHY = {
    "multiply_adds": "attention sums two orders, 4 T d² in its projections and 2 T² d in its products of pairs; "
    "apart (the next two columns) both fit, together the power lies between theirs",
    "memory": "the compiled gradient of a loop stacks the weights that each turn read, T copies: T d², not T d; "
    "all programs hold weights (d²), and attention T d beside T²",
    "forward": "small sizes pay a fixed time a call or a turn, large ones leave a cache or use the second core",
    "training": "as forward; and loops write and read those T copies of their weights, beyond the caches as T grows",
}


def theory(name, cost):
    """The powers of T and d, or None for what the layer has not."""
    if name == "learned positions":
        return (1, 1) if cost == "parameters" else None
    attention, loop = "attention" in name, name in ("SimpleRNN", "LSTM", "GRU")
    if cost in ("weight_products", "pair_products"):
        return {"weight_products": (1, 2), "pair_products": (2, 1)}[cost] if attention else None
    if cost in ("parameters", "steps", "path"):
        return {"parameters": (0, 2), "steps": (int(loop), 0), "path": (int(not attention), 0)}[cost]
    if cost == "memory":
        return (2, 0) if attention else (1, 1)
    return (2, 1) if attention else (1, 2)


def fit(results, name, cost, axis):
    """(exponent, theory's), or None. Counts are fitted over all sizes, measurements over the larger half."""
    powers = theory(name, cost)
    if cost == "path":
        sizes = list(results["distance"]) if axis == "T" else []
        values = [results["distance"][size][name][0] for size in sizes if powers]
    else:
        sizes = list(results[axis])
        values = [results[axis][size][name].get(cost, 0) for size in sizes if powers]
    if not values:
        return None
    first = min(len(sizes) // 2, len(sizes) - 2) if cost in MEASURED else 0
    return round(costs.exponent(sizes[first:], values[first:]), 2) + 0.0, powers["Td".index(axis)]


def show(results, out):
    print("\nOrders (Vaswani et al. 2017, table 1)")
    row = "{:18}" + "{:>16}" * 4
    print(row.format("layer", "parameters", "operations", "sequential", "path length"))
    for name, orders in ORDERS.items():
        print(row.format(name, *(order if order == "-" else f"O({order})" for order in orders)))
    differing, worst = {}, 0
    for columns in (COUNTED, MEASURED):
        for axis, other in (("T", f"d = {results['dim']}"), ("d", f"T = {results['short']}")):
            print(f"\nExponents in {axis} ({', '.join(map(str, results[axis]))}; {other}): fitted / theory")
            print(f"{'layer':18}" + "".join(f"{cost.replace('_', ' '):>16}" for cost in columns))
            for name in ORDERS:
                cells = {cost: fit(results, name, cost, axis) for cost in columns}
                if any(cells.values()):
                    texts = (f"{cell[0]:.2f} / {cell[1]}" if cell else "-" for cell in cells.values())
                    print(f"{name:18}" + "".join(f"{text:>16}" for text in texts))
                for cost, (fitted, expected) in ((cost, cell) for cost, cell in cells.items() if cell):
                    if abs(fitted - expected) > LIMIT:
                        differing.setdefault(cost, []).append(f"{name} {fitted:.2f} in {axis}")
                    if cost in COUNTED and not (cost == "multiply_adds" and "attention" in name):
                        worst = max(worst, abs(fitted - expected))
    print("\nMultiply-adds are those of matrix products and convolutions in the compiled program, loops turn by turn.")
    for cost, names in differing.items():
        print(f"- {cost.replace('_', ' ')} differs from theory: {WHY.get(cost, 'unexplained')} ({', '.join(names)}).")
    longest = results["T"][max(results["T"])]
    same = longest["causal attention"]["multiply_adds"] == longest["attention"]["multiply_adds"]
    pairs = "computes all T² pairs, then masks half: as many" if same else "has fewer"
    print(f"- Causal attention {pairs} multiply-adds.")
    show_costs(results)
    data.report(
        out, f"Fitted exponents of the counts, but for the multiply-adds of attention, lie within {worst:.2f} of theory"
    )
    for cost in ("multiply_adds", *MEASURED[1:]):
        sizes = list(results["T"])
        first, second = ([results["T"][T][name][cost] for T in sizes] for name in ("causal attention", "LSTM"))
        T = costs.crossing(sizes, first, second)
        span = f"{sizes[0]} ... {sizes[-1]}"
        more = "more" if first[-1] > second[-1] else "less"
        where = f"more than the LSTM from T = {T:.0f}" if T else f"{more} than the LSTM, uncrossed in T = {span}"
        data.report(out, f"{cost.replace('_', '-')}, d = {results['dim']}: causal attention costs {where}")


def show_costs(results):
    T = max(results["T"])
    print(f"\nAt T = {T}, d = {results['dim']}")
    columns = ("parameters", "multiply_adds", "steps", "memory", "forward", "training")
    print(f"{'layer':18}" + "".join(f"{column.replace('_', ' '):>15}" for column in columns))
    for name, found in results["T"][T].items():
        cells = [f"{found[column]:,}" if column in found else "-" for column in columns[:3]]
        if "memory" in found:
            cells += [f"{found['memory'] / 2**20:,.1f} MiB", *(f"{found[key] * 1000:,.2f} ms" for key in columns[4:])]
        print(f"{name:18}" + "".join(f"{cell:>15}" for cell in cells))
    print("\nApplications from the last output to the first input, and |dy_T / dx_1| after them (d = 16, fresh layers)")
    print(f"{'layer':18}" + "".join(f"{f'T = {T}':>15}" for T in results["distance"]))
    for name in results["distance"][min(results["distance"])]:
        cells = [found[name] for found in results["distance"].values()]
        print(f"{name:18}" + "".join(f"{f'{applications}: {norm:.1e}':>15}" for applications, norm in cells))
    print(f"(The convolutions have k = {results['kernel']}; dilated ones would reach T in log_k(T) layers.)\n")


def draw(results, path):
    panels = ("parameters", "multiply_adds", "steps", "memory", "forward", "training")
    figure = Figure(figsize=(15, 12), layout="constrained")
    axes = iter(figure.subplots(3, 3).flat)
    styles = dict(zip(ORDERS, ("o-", "s-", "^-", "D-", "v-", "x--", "+:")))
    for cost, axis in zip(panels, axes):
        for name, style in styles.items():
            points = [(T, found[name][cost]) for T, found in results["T"].items() if cost in found[name]]
            if points:
                axis.plot(*zip(*points), style, label=name)
        axis.set(title=f"{TITLES.get(cost, cost)}, d = {results['dim']}", xlabel="T", ylabel=UNITS.get(cost, "number"))
    for cost, axis in zip(("multiply_adds", "training"), axes):
        for name in results["distance"][min(results["distance"])]:
            axis.plot(*zip(*((d, found[name][cost]) for d, found in results["d"].items())), styles[name])
        title = f"{TITLES.get(cost, cost)}, T = {results['short']}"
        axis.set(title=title, xlabel="d", ylabel=UNITS.get(cost, "number"))
    for name in results["distance"][min(results["distance"])]:
        points = [(T, found[name][1]) for T, found in results["distance"].items()]
        figure.axes[8].plot(*zip(*points), styles[name])
    figure.axes[8].set(title="gradient kept, |dy_T / dx_1|, d = 16", xlabel="T", ylabel="norm")
    for axis in figure.axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=7)
    figure.savefig(path, dpi=100)
