"""Networks whose shape depends on the example: straight pieces of code batched over instances and inside each.

`table`: which piece runs on which rows. `order`: levels of rows that can run together. `envelope`: capacities that
one compilation serves. `layout`: where rows are. `pack`, `passes`: the index tables, in NumPy and compiled. `cut`: a
piece's code, forwards and in reverse. `compute`, `reverse`: the levels run. `run`: the differentiable function of a
table. `lazy`, `traced`, `instances`: tables recorded from plain Python.

Programs are the second way to a table. `code`: a program's code with its control flow apart. `control`: what decides
control, and what does not. `pieces`: the value equations between two points of control. `waits`: which of them may
have to wait longer. `sums`: what is added up. `slice`, `rows`: control as a separate program, which records.
`recorded`, `balanced`, `merged`: the table of what it recorded, sums in pairs, without repeats. `levels`, `answers`:
both run, and the reverse.
"""
