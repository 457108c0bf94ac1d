"""`python -m tools.timeline_pictures`: docs/pictures/timeline.svg and, for phones, timeline_phone.svg.

Both show the orders and payments of README.md: each order waits 30 minutes. Times are minutes of the day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.pictures import both_themes

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
TITLE = "Each order waits 30 minutes for its payment"
SEEN = "Five orders on a line of time: two paid, two expired, one waiting"
WAIT = 30
WATERMARK = 10 * 60 + 15
NEWEST = WATERMARK + 10
FIRST, LAST = 8 * 60 + 55, 11 * 60 + 5
HOURS = {540: "09:00", 570: "09:30", 600: "10:00", 630: "10:30", 660: "11:00"}
BLUE, GREY, LINE, GROUND = "#1565c0", "#5f6368", "#e0e0e0", "#ffffff"
DASHED = f'stroke="{BLUE}" stroke-width="1.5" stroke-dasharray="5 3"'
COLOURS = {"COMPLETED": ("#2e7d32", "#2e7d32"), "EXPIRED": ("#ef6c00", "#b84a00"), "waiting": (BLUE, BLUE)}
"""Of bars and of text."""
HALO = f'paint-order="stroke" stroke="{GROUND}" stroke-width="4" stroke-linejoin="round"'
"""Of words that a line crosses."""
FONT = 'font-family="Helvetica,Arial,sans-serif" fill="#1b1b1b"'


@dataclass(frozen=True)
class Order:
    """An order, its payment if there is one, and what it comes to."""

    name: str
    created: int
    paid: int | None
    status: str
    note: str

    @property
    def deadline(self) -> int:
        """When it expires."""
        return self.created + WAIT

    @property
    def waited_till(self) -> int:
        """The payment, the deadline, or its own time while the watermark is not past that."""
        if self.status == "COMPLETED" and self.paid is not None:
            return self.paid
        return self.deadline if self.status == "EXPIRED" else self.created


ORDERS = [
    Order("o-1", 540, 547, "COMPLETED", "after 7 min"),
    Order("o-2", 545, None, "EXPIRED", "no payment"),
    Order("o-3", 550, 585, "EXPIRED", "payment 5 min too late"),
    Order("o-4", 620, 625, "COMPLETED", "after 5 min"),
    Order("o-5", 630, None, "waiting", "deadline 11:00"),
]


def text(x: float, y: float, words: str, extra: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " + extra if extra else ""}>{words}</text>'


def line(x: float, y: float, to_x: float, to_y: float, extra: str) -> str:
    """A line from one place to another."""
    return f'<line x1="{x:.1f}" x2="{to_x:.1f}" y1="{y:.1f}" y2="{to_y:.1f}" {extra}/>'


def bar(order: Order, at: Callable[[int], float], y: float, width: int) -> list[str]:
    """What an order may wait, what it waited, its deadline and its payment, on the line ``y``."""
    colour = COLOURS[order.status][0]
    parts = [
        line(at(order.created), y, at(order.deadline), y, f'stroke="{colour}" stroke-width="{width}" opacity=".25"'),
        line(at(order.created), y, at(order.waited_till), y, f'stroke="{colour}" stroke-width="{width}"'),
        line(at(order.deadline), y - 9, at(order.deadline), y + 9, f'stroke="{colour}" stroke-width="2"'),
    ]
    if order.paid is not None:
        is_in_time = order.status == "COMPLETED"
        fill, stroke = (colour, GROUND) if is_in_time else (GROUND, GREY)
        parts.append(
            f'<circle cx="{at(order.paid):.1f}" cy="{y}" r="6" fill="{fill}" stroke="{stroke}" stroke-width="2"/>'
        )
    return parts


def drawing(width: int, height: int, size: int, parts: list[str]) -> str:
    """The whole picture."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{SEEN}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" {FONT} font-size="{size}">'
    )
    return both_themes("\n".join([opening, *parts, "</svg>", ""]))


def wide() -> str:
    """A row an order, with its outcome at the right."""

    def at(minute: int) -> float:
        return 64 + (minute - FIRST) * (582 - 64) / (LAST - FIRST)

    parts = [text(12, 22, TITLE, 'font-size="15" font-weight="bold"')]
    for minute, hour in HOURS.items():
        parts.append(line(at(minute), 50, at(minute), 258, f'stroke="{LINE}"'))
        parts.append(text(at(minute), 44, hour, f'text-anchor="middle" fill="{GREY}" font-size="11"'))
    parts.append(f'<rect x="54" y="50" width="{at(WATERMARK) - 54:.1f}" height="208" fill="{BLUE}" opacity=".07"/>')
    parts.append(line(at(WATERMARK), 50, at(WATERMARK), 264, DASHED))
    for y, size, words in ((278, 12, "watermark 10:15"), (293, 11, "newest payment 10:25, less 10 min")):
        parts.append(text(at(WATERMARK), y, words, f'text-anchor="middle" fill="{BLUE}" font-size="{size}"'))
    for y, order in zip(range(74, 275, 40), ORDERS, strict=False):
        parts.append(text(12, y + 5, order.name, 'font-weight="bold"'))
        parts += bar(order, at, y, 10)
        parts.append(text(628, y, order.status, f'fill="{COLOURS[order.status][1]}" font-weight="bold"'))
        parts.append(text(628, y + 14, order.note, f'fill="{GREY}" font-size="11"'))
    mark = f'stroke="{GREY}" stroke-width='
    parts += [
        line(64, 318, 90, 318, f'{mark}"10"'),
        line(194, 309, 194, 327, f'{mark}"2"'),
        f'<circle cx="278" cy="318" r="6" fill="{GREY}"/>',
        f'<circle cx="418" cy="318" r="5" fill="{GROUND}" {mark}"2"/>',
    ]
    legend = {96: "time it waited", 202: "deadline", 290: "payment that counts", 430: "payment after the deadline"}
    parts += [text(x, 322, words, f'font-size="11" fill="{GREY}"') for x, words in legend.items()]
    return drawing(780, 336, 13, parts)


def phone() -> str:
    """358 pixels, nothing beside the bars: each order's words stand above its bar."""

    def at(minute: int) -> float:
        return 6 + (minute - FIRST) * 346 / (LAST - FIRST)

    parts = [text(4, 18, TITLE, 'font-size="14" font-weight="bold"')]
    for minute in (540, 600, 660):
        parts.append(line(at(minute), 48, at(minute), 290, f'stroke="{LINE}"'))
        parts.append(text(at(minute), 42, HOURS[minute], f'text-anchor="middle" fill="{GREY}"'))
    parts.append(f'<rect x="0" y="48" width="{at(WATERMARK):.1f}" height="242" fill="{BLUE}" opacity=".07"/>')
    parts.append(line(at(WATERMARK), 48, at(WATERMARK), 296, DASHED))
    for y, order in zip(range(66, 275, 48), ORDERS, strict=False):
        status = f'<tspan fill="{COLOURS[order.status][1]}" font-weight="bold">{order.status}</tspan>'
        words = f'{order.name} {status} <tspan fill="{GREY}">{order.note}</tspan>'
        x, end = (4, "start") if order.created < 600 else (354, "end")
        parts.append(text(x, y, words, f'text-anchor="{end}" {HALO}'))
        parts += bar(order, at, y + 16, 8)
    parts.append(text(at(WATERMARK), 312, "watermark 10:15", f'text-anchor="middle" fill="{BLUE}"'))
    parts.append(text(at(WATERMARK), 328, "newest payment 10:25, less 10 min", f'text-anchor="middle" fill="{BLUE}"'))
    return drawing(358, 336, 13, parts)


def pictures() -> dict[str, str]:
    """Both, by the names of their files."""
    return {"timeline.svg": wide(), "timeline_phone.svg": phone()}


if __name__ == "__main__":
    for name, content in pictures().items():
        (PICTURES / name).write_text(content, encoding="utf-8")
        print(PICTURES / name)
