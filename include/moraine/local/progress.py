"""What a person sees while the stack starts."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from moraine.local.part import Event


class ProgressDisplay:
    """A line for each part, alive on a terminal; plain lines elsewhere.

    with ProgressDisplay(console) as report:
        stack.up(on_event=report)
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.fields[part]:<14}"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._lines: dict[str, TaskID] = {}
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if self._progress.disable:
            self._say(event)
            return
        if event.part not in self._lines:
            line = self._progress.add_task(event.message, total=None, part=event.part)
            self._lines[event.part] = line
        done, total = (1, 1) if event.ready else (event.done, event.total)
        self._progress.update(
            self._lines[event.part], description=event.message, completed=done or 0, total=total
        )

    def _say(self, event: Event) -> None:
        words = (event.part, event.message)
        if words not in self._said:
            self._said.add(words)
            self._console.print(f"{event.part}: {event.message}", highlight=False)
