"""The plots of `report.html`: curves over steps, and the loads of experts, as inline SVG.

The ink follows the page, light or dark. matplotlib is imported when the first plot is drawn.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.train.metrics import Record

_MAX_POINTS = 1500
"""More points than pixels only make the file big."""
_MAX_STRIPS = 12
_MAX_OCTAVES = 3
_SMOOTHED_SHARE = 0.02
"""Share of the run that the smoothed curve averages over."""
_INK = "#010203"
"""Stands for the page's text colour in the plots."""
_RAW, _SMOOTH, _HELD_OUT = "#9db4d6", "#2f6fde", "#e2702d"
_DEPTHS = ("#e2702d", "#3a9d5d", "#a05fc4", "#c4a12f")


@dataclass(frozen=True)
class _Series:
    """One line of a plot."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    color: str
    marker: str = ""
    width: float = 1.6


def plots(by_kind: dict[str, list[Record]]) -> list[tuple[str, str]]:
    """(title, SVG) of every plot."""
    records, evals = by_kind["train"], by_kind["eval"]
    steps = [record["step"] for record in records]
    window = max(1, round(_SMOOTHED_SHARE * len(steps)))

    def both(key: str) -> list[_Series]:
        values = [record[key] for record in records]
        return [
            _Series("each step", steps, values, _RAW, width=0.8),
            _Series("smoothed", steps, smoothed(values, window), _SMOOTH),
        ]

    held_out = _Series(
        "held out",
        [record["step"] for record in evals],
        [record["loss"] for record in evals],
        _HELD_OUT,
        marker="o",
    )
    rate = _Series("", steps, [record["lr"] for record in records], _SMOOTH)
    nearest = replace(both("loss")[1], label="next token")
    further = [
        _Series(
            f"{depth} further on",
            steps,
            smoothed([record[key] for record in records], window),
            _DEPTHS[(depth - 1) % len(_DEPTHS)],
        )
        for depth, key in enumerate(_mtp_keys(records), start=1)
    ]
    return [
        ("Loss (nats per token)", _svg([*both("loss"), *([held_out] if evals else [])], tall=True)),
        ("Learning rate", _svg([rate])),
        ("Tokens per second", _svg(both("tokens_per_s"))),
        ("Gradient norm", _svg(both("grad_norm"))),
        *([("Loss of further tokens", _svg([nearest, *further], tall=True))] if further else []),
    ]


def _mtp_keys(records: Sequence[Record]) -> list[str]:
    """Names of the losses of multi-token prediction, nearest first."""
    keys = [key for key in records[0] if key.startswith("mtp_loss_")]
    return sorted(keys, key=lambda key: int(key.removeprefix("mtp_loss_")))


def load_map(records: Sequence[Record], model: ModelConfig) -> str:
    """An <svg> of every expert's load over the steps, a strip per layer; empty without experts.

    White is the even share, red more, blue less; the scale is logarithmic, from an eighth to eight
    times. Of many layers evenly spaced ones are shown.
    """
    if not records:
        return ""
    names = _expert_layers(model)
    shown = sorted(
        {round(i * (len(names) - 1) / max(1, _MAX_STRIPS - 1)) for i in range(_MAX_STRIPS)}
    )
    picked = _picked(len(records))
    steps = [records[i]["step"] for i in picked]

    def draw(figure: Any) -> None:
        strips = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, layer in zip(strips, shown, strict=True):
            columns = [records[i]["load_percent"][layer] for i in picked]
            image = axes.imshow(
                [[_octaves(percent) for percent in row] for row in zip(*columns, strict=True)],
                aspect="auto",
                cmap="RdBu_r",
                vmin=-_MAX_OCTAVES,
                vmax=_MAX_OCTAVES,
                interpolation="nearest",
                extent=(0, steps[-1], len(columns[0]), 0),
            )
            _style_axes(axes)
            axes.set_ylabel(
                names[layer], fontsize=9, color=_INK, rotation=0, ha="right", va="center"
            )
            axes.set_yticks([])
            axes.set_xlabel("step" if axes is strips[-1] else "", fontsize=9, color=_INK)
        octaves = range(-_MAX_OCTAVES, _MAX_OCTAVES + 1)
        bar = figure.colorbar(image, ax=strips.tolist(), pad=0.01, aspect=30, ticks=list(octaves))
        bar.ax.set_yticklabels([f"{2.0**octave:g}" for octave in octaves])
        bar.ax.tick_params(colors=_INK, labelsize=9, length=0)
        bar.outline.set_visible(False)

    return _drawn((9.0, 0.9 + 0.55 * len(shown)), draw)


def _expert_layers(model: ModelConfig) -> list[str]:
    """Names of the layers with experts, in the order of the logged tables."""
    names = [f"layer {i}" for i, layer in enumerate(model.layers()) if layer.mlp.kind == "moe"]
    if model.last_layer.mlp.kind == "moe":
        names += [f"depth {depth + 1}" for depth in range(model.mtp.depth)]
    return names


def _octaves(load_percent: float) -> float:
    """Doublings of the even share, within the colour scale."""
    return max(-_MAX_OCTAVES, math.log2(load_percent / 100)) if load_percent else -_MAX_OCTAVES


def _svg(series: Sequence[_Series], *, tall: bool = False) -> str:
    """A line plot over steps as an <svg> element."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for line in series:
            picked = _picked(len(line.steps))
            axes.plot(
                [line.steps[i] for i in picked],
                [line.values[i] for i in picked],
                color=line.color,
                marker=line.marker,
                linewidth=line.width,
                markersize=4,
                label=line.label,
            )
        _limit_outliers(axes, series)
        _style_axes(axes)
        if len(series) > 1:
            legend = axes.legend(frameon=False, fontsize=9)
            for entry in legend.get_texts():
                entry.set_color(_INK)

    return _drawn((9.0, 3.8) if tall else (4.4, 2.5), draw)


def _drawn(size_inches: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """The figure that `draw` fills, as an <svg> element."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the report's plots need matplotlib: pip install 'lmworks[report]'"
        ) from None
    # A fixed salt gives the same file for the same run.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "lmworks", "font.family": "sans-serif"}
    with mpl.rc_context(style):
        figure = Figure(figsize=size_inches, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")


def _style_axes(axes: Any) -> None:
    axes.set_xlabel("step", fontsize=9, color=_INK)
    axes.grid(axis="y", color=_INK, alpha=0.12, linewidth=0.8)
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.margins(x=0.01)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_INK)
        spine.set_alpha(0.4)


def _limit_outliers(axes: Any, series: Sequence[_Series]) -> None:
    """Let single spikes leave the plot rather than flatten the rest of it."""
    values = sorted(value for line in series for value in line.values)
    if len(values) < 50:
        return
    low, high = values[len(values) // 200], values[-1 - len(values) // 200]
    room = 0.06 * (high - low) or abs(high) or 1.0
    axes.set_ylim(low - room, high + room)


def _picked(count: int) -> list[int]:
    """Indices of at most _MAX_POINTS points, the last one among them."""
    stride = -(-count // _MAX_POINTS) if count else 1
    picked = list(range(0, count, stride))
    return picked if not count or picked[-1] == count - 1 else [*picked, count - 1]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Exponential mean over about `window` values, without the usual pull towards the first one."""
    keep = 1 - 1 / max(1, window)
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        out.append(mean / weight)
    return out
