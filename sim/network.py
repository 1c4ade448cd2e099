"""Messages between numbered machines that take time, get lost, come twice and overtake each other.

What is modelled: per message a delay, a loss, a double; per pair and direction a cut, a longer way. Not modelled:
connections. What runs over these must not rely on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from sim.clock import Clock


@dataclass(slots=True)
class Weather:
    """`delay_s`: shortest and longest way of a message; the shares of those that are lost, doubled or very late."""

    delay_s: tuple[float, float] = (0.0002, 0.002)
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_s: float = 0.5


class Network:
    """`deliver(sender, to, message)` is called for each message that arrives; `seen` counts what happened to them."""

    def __init__(self, clock: Clock, random: Random, deliver: Callable[[int, int, Any], None]) -> None:
        self.weather = Weather()
        self.seen: Counter[str] = Counter()
        self._clock = clock
        self._random = random
        self._deliver = deliver
        self._cuts: set[tuple[int, int]] = set()
        self._longer_s: dict[tuple[int, int], float] = {}

    def cut(self, sender: int, to: int) -> None:
        """Nothing gets through in this direction."""
        self._cuts.add((sender, to))

    def cut_off(self, those: set[int], others: set[int]) -> None:
        """Nothing gets through between the two groups."""
        for one in those:
            for other in others:
                self._cuts |= {(one, other), (other, one)}

    def lengthen(self, sender: int, to: int, seconds: float) -> None:
        """The way in this direction; messages do not overtake each other by that."""
        self._longer_s[sender, to] = seconds

    def heal(self) -> None:
        """Everything gets through, at the usual pace."""
        self._cuts.clear()
        self._longer_s.clear()
        self.weather = Weather()

    def reaches(self, sender: int, to: int) -> bool:
        return (sender, to) not in self._cuts

    def send(self, sender: int, to: int, message: Any) -> None:
        """It arrives some time, once, twice or never; one that is under way when a cut comes is lost too."""
        weather, random = self.weather, self._random
        if random.random() < weather.lost:
            self.seen["lost"] += 1
            return
        copies = 2 if random.random() < weather.doubled else 1
        self.seen["doubled"] += copies - 1
        for _ in range(copies):
            delay = random.uniform(*weather.delay_s) + self._longer_s.get((sender, to), 0.0)
            if random.random() < weather.late:
                self.seen["late"] += 1
                delay += random.random() * weather.late_s
            self._clock.after(delay, lambda: self._arrive(sender, to, message))

    def _arrive(self, sender: int, to: int, message: Any) -> None:
        if self.reaches(sender, to):
            self._deliver(sender, to, message)
        else:
            self.seen["cut"] += 1
