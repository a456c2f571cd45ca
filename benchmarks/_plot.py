"""The plots of the claims: one PNG each under `docs/plots/`, made when a benchmark gets `--plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLOTS = Path(__file__).resolve().parent.parent / "docs" / "plots"
INK, TARGET = "#2f5d8a", "#b5482f"


def _figure(width: float, height: float) -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return pyplot, figure, axes


def _save(pyplot: Any, figure: Any, name: str) -> None:
    PLOTS.mkdir(parents=True, exist_ok=True)
    path = PLOTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"plotted {path.name}")


def bars(
    name: str, title: str, ratios: Mapping[str, float], target: float | None, axis: str
) -> None:
    """One bar for each program on a logarithmic axis, the target as a line."""
    pyplot, figure, axes = _figure(7.0, 1.2 + 0.28 * len(ratios))
    names = list(ratios)[::-1]
    # Bars start at one: to the left of it is a loss, to the right a gain.
    axes.barh(names, [ratios[n] - 1.0 for n in names], left=1.0, color=INK)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    if target is not None:
        axes.axvline(target, color=TARGET, linestyle="--", label=f"target {target:g}")
        axes.legend(loc="lower right", frameon=False)
    axes.set_xlabel(axis)
    axes.set_title(title)
    _save(pyplot, figure, name)


def figures(name: str, title: str, values: Mapping[str, float], target: float, axis: str) -> None:
    """One bar for each, from zero on a plain axis, the target as a line."""
    pyplot, figure, axes = _figure(7.0, 1.2 + 0.28 * len(values))
    names = list(values)[::-1]
    axes.barh(names, [values[n] for n in names], color=INK)
    axes.axvline(target, color=TARGET, linestyle="--", label=f"target {target:g}")
    axes.legend(loc="lower right", frameon=False)
    axes.set_xlabel(axis)
    axes.set_title(title)
    _save(pyplot, figure, name)


def lines(
    name: str, title: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], axis: str
) -> None:
    """Seconds against a size, both logarithmic; a dashed line shows proportional growth."""
    pyplot, figure, axes = _figure(6.0, 4.0)
    for label, (sizes, seconds) in curves.items():
        (line,) = axes.plot(sizes, seconds, marker="o", label=label)
        ideal = [seconds[0] * size / sizes[0] for size in sizes]
        axes.plot(sizes, ideal, linestyle="--", linewidth=0.8, color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(axis)
    axes.set_ylabel("seconds")
    axes.set_title(title)
    axes.legend(frameon=False)
    _save(pyplot, figure, name)
