"""Seeing what the machine does: progress bars, a report for the browser, a trace for Perfetto, drawings.

Nothing here is needed to run a program. The machine knows this package only through `lanewise.watchers`, a short list
of who wants to be told.
"""
