"""The commands of `lanewise`, and the help that teaches them.

Exit status: 0 if it went well, 1 if it did not, 2 if what was typed makes no sense.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lanewise.cli.complaints import FAILURE, Complaint, Misuse, complaining
from lanewise.core.options import CARRIERS, SCHEDULES

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(importlib.metadata.version("lanewise"))
        except importlib.metadata.PackageNotFoundError:
            print("not installed as a package")
        raise typer.Exit


@app.callback()
def lanewise(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Write a JAX program for one example, with real control flow and recursion; run it for a batch.

    Where to begin:

    - `lanewise doctor` shows what works on this machine, and how to fix what does not

    - `lanewise demo` samples a model with a thousand chains and writes a report

    - `lanewise show FILE:FUNCTION --args "..."` shows a program of yours as the machine sees it

    - `lanewise bench` lists the benchmarks of a checkout

    - `lanewise launch -n 2 FILE` runs a script in two processes, the ranks of a placed program
    """


@app.command()
def demo(
    chains: Annotated[int, typer.Option(min=1, help="How many chains run side by side.")] = 1000,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each chain that are kept.")] = 200,
    warmup: Annotated[int, typer.Option(min=1, help="Draws before those, to adapt by.")] = 200,
    report: Annotated[
        Path, typer.Option(help="Where the report goes, a page for a browser.", dir_okay=False)
    ] = Path("lanewise-demo.html"),
) -> None:
    """Sample a hierarchical model with the recursive No-U-Turn sampler, a thousand chains at once.

    Shows how far it is, prints a summary, and writes a report that opens in a browser.

    Examples:

    - `lanewise demo`

    - `lanewise demo --chains 64 --draws 100 --report small.html`
    """
    with complaining():
        try:
            from lanewise.mcmc.demo import run
        except ImportError as error:
            raise Complaint(
                f"the demo needs {error.name or 'a package'}, which is not installed.",
                'pip install "lanewise[cli,mcmc,watch]"',
            ) from None
        run(chains=chains, draws=draws, warmup=warmup, report=str(report))


@app.command()
def show(
    place: Annotated[
        str, typer.Argument(metavar="FILE:FUNCTION", help="A Python file, and a function in it.")
    ],
    args: Annotated[
        str,
        typer.Option(
            help="The arguments, as they would stand in a call. The file's own names, `jax`, `jnp`, `np` and"
            " `lw` are known."
        ),
    ] = "",
    in_axes: Annotated[
        str,
        typer.Option(
            help="The batch's axis, as in `jax.vmap`; `None` for one call, `0, None` to share the second."
        ),
    ] = "0",
    carrier: Annotated[
        str, typer.Option(help=f"What it is compiled to: {', '.join(CARRIERS)}.")
    ] = "auto",
    schedule: Annotated[
        str, typer.Option(help=f"Which block runs next: {', '.join(SCHEDULES)}.")
    ] = "auto",
    lanes: Annotated[
        int | None, typer.Option(help="As many lanes, refilled, however many examples there are.")
    ] = None,
    code: Annotated[bool, typer.Option("--code", help="The equations of each block, too.")] = False,
    jaxpr: Annotated[
        bool, typer.Option("--jaxpr", help="The program before it was flattened, too.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write a drawing of the blocks to this file.", dir_okay=False),
    ] = None,
) -> None:
    """Show a program as the machine sees it: its blocks, what they cost, where variables live, what carries it.

    Nothing of the program runs, but for a sample of its lanes where that decides how. Arrows on the left say where a
    lane may go from each block; operations and bytes are those of one lane, each time it comes there.

    Examples:

    - `lanewise show program.py:collatz --args "jnp.arange(1, 100)"`

    - `lanewise show program.py:solve --args "jnp.ones((64, 3)), 1e-3" --in-axes "0, None"`

    - `lanewise show program.py:fib --args 10 --in-axes None` (one call, no batch)

    - `lanewise show program.py:fib --args "jnp.arange(9)" --carrier ticks --code --svg fib.svg`
    """
    with complaining():
        from lanewise.cli.show import inspected, rendered, write_svg

        options = {"carrier": carrier, "schedule": schedule, "lanes": lanes}
        given = {name: value for name, value in options.items() if value not in ("auto", None)}
        found = inspected(place, args, in_axes, given)
        Console(soft_wrap=False).print(rendered(found, code=code, jaxpr=jaxpr))
        if svg is not None:
            write_svg(found, svg)
            print(f"drawn in {svg}")


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Which one; all of them are listed without a name.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="What the benchmark itself takes, after `--`.", show_default=False),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all of them, one after the other.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the claims to this file, too, a JSON line each.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="A checkout of Lanewise, or its folder `benchmarks`.")
    ] = None,
) -> None:
    """Run a benchmark and print each of its claims: ours, the peer, their ratio, the target.

    Benchmarks are part of a checkout, not of the installed package. A claim that misses its target is shown as such
    and is no failure; a benchmark that breaks is.

    Examples:

    - `lanewise bench` lists them

    - `lanewise bench ticks`

    - `lanewise bench control -- --programs gcd collatz --repeats 3`

    - `lanewise bench --all --out results.jsonl`
    """
    with complaining():
        from lanewise.cli import bench as benchmarks

        folder = benchmarks.directory(directory)
        if every and name:
            raise Misuse("--all and a name exclude each other.", "leave one of them out.")
        console = Console()
        if not every and not name:
            found = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            for key, path in benchmarks.listed(folder).items():
                found.add_row(f"[bold]{key}", benchmarks.about(path))
            console.print(found)
            console.print("\nRun one by its name: lanewise bench NAME", highlight=False)
            return
        paths = list(benchmarks.listed(folder).values()) if every else []
        paths = paths or [benchmarks.chosen(folder, name or "")]
        results = []
        for path in paths:
            console.print(f"== {path.stem}", style="bold", highlight=False)
            results.append(benchmarks.ran(path, arguments or ()))
        console.print()
        console.print(benchmarks.table(results))
        if out is not None:
            claims = [claim for result in results for claim in result.claims]
            out.write_text("".join(json.dumps(claim) + "\n" for claim in claims))
        broken = [result.name for result in results if result.status]
        if broken:
            raise Complaint(f"did not run to the end: {', '.join(broken)}; see above.")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def launch(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="The Python file that each process runs.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script takes.", show_default=False)
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", "-n", min=1, help="How many processes.")
    ] = 2,
    restarts: Annotated[
        int, typer.Option(min=0, help="How many times all start again after one has failed.")
    ] = 0,
) -> None:
    """Run a script in several processes of this machine, which find each other: the ranks of a placed program.

    What they print has the rank in front. When one fails, all are stopped, and the exit status is that of the first
    that failed.

    Examples:

    - `lanewise launch -n 2 train.py --steps 1000`

    - `lanewise launch -n 4 --restarts 3 train.py` (goes on from its checkpoint after a fault)
    """
    with complaining():
        from lanewise.cli.launch import launch as launched

        status = launched(processes, script, arguments or (), restarts)
    raise typer.Exit(status)


@app.command()
def doctor() -> None:
    """Look at this machine: versions, devices, extras, and each carrier tried on a small program.

    What does not work is shown with the fix. The exit status is 1 if something essential does not work, which a
    missing extra or GPU is not.
    """
    from lanewise.cli.doctor import State, checks, looked, table

    console = Console(highlight=False)
    broken = []
    for title, check in checks().items():
        found = looked(title, check)
        console.print(table(title, found), "")
        broken += [one.what for one in found if one.state is State.BROKEN]
    if broken:
        console.print(f"Does not work: {', '.join(broken)}.", style="bold red")
        raise typer.Exit(FAILURE)
    console.print("All that is essential works.", style="bold green")
