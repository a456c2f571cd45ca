"""Seeing what the machine does: progress bars, a report for the browser, a trace for Perfetto, drawings.

Nothing here is needed to run a program. The machine knows this package only through `core/events.py`, a short list of
observers.
"""
