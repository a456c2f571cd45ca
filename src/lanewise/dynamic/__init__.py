"""Networks whose shape depends on the example: straight pieces of code batched over instances and inside each.

`table`: which piece runs on which rows. `order`: levels of rows that can run together. `envelope`: capacities that
one compilation serves. `layout`: where rows are. `pack`, `passes`: the index tables, in NumPy and compiled. `cut`: a
piece's code, forwards and in reverse. `compute`, `reverse`: the levels run. `run`: the differentiable function of a
table. `lazy`, `instances`: tables recorded from plain Python.

Programs are the second way to a table. `code`: a program's code with its control flow apart. `control`: what decides
control, and what does not. `pieces`: the value equations between two points of control. `waits`: which of them may
have to wait longer. `slice`, `rows`: control as a separate program, which records. `recorded`, `sums`, `merged`: the
table of what it recorded, sums last, without repeats. `levels`, `answers`: both run, and the reverse.
"""
