# SPDX-License-Identifier: Apache-2.0
"""What every entry point does first and last: flags, log lines, exit status.

Exit status: 0 done, and `--help`; 1 a mistake that the user can mend, told in one
line; 2 wrong usage; 70 a failure that another start may not meet again: a run that
hangs, or an internal error in one of several processes; 75 stopped by a signal after a
checkpoint was written. Anything else that leaves `main` is a bug and shows its
traceback.
"""

import logging as python_logging
import os
import pathlib
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from absl import flags, logging
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.errors import UserError, nearest

DONE, MENDABLE, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 70, 75

# Each command has flags of its own: two commands may then use one name for different
# things, and importing a command changes nothing in the others.
_SHARED = flags.FlagValues()
_CACHE = flags.DEFINE_string(
    "compilation_cache",
    None,
    "Folder that keeps compiled programs between runs; 'off' switches it off. "
    "Default: vit_jax/xla in the user's cache folder.",
    flag_values=_SHARED,
)
_TRACEBACK = flags.DEFINE_boolean(
    "traceback",
    False,
    "Show the traceback of a user's mistake as well.",
    flag_values=_SHARED,
)

# Of the commands that train.
_CLUSTER = flags.FlagValues()
flags.DEFINE_string(
    "coordinator_address",
    None,
    "HOST:PORT of process 0, if one of several processes; found out by itself on Cloud "
    "TPU, in GKE and in SLURM.",
    flag_values=_CLUSTER,
)
flags.DEFINE_integer(
    "num_processes",
    None,
    "How many processes train one model together.",
    lower_bound=1,
    flag_values=_CLUSTER,
)
flags.DEFINE_integer(
    "process_id",
    None,
    "Number of this process, from 0 on.",
    lower_bound=0,
    flag_values=_CLUSTER,
)
_HEARTBEAT = flags.DEFINE_integer(
    "heartbeat_seconds",
    60,
    "A process that is silent for so long is taken for dead, and all end.",
    lower_bound=1,
    flag_values=_CLUSTER,
)


def run(
    main: Callable[[Sequence[str]], int | None],
    doc: str | None,
    own_flags: flags.FlagValues,
    trains: bool = False,
) -> None:
    """Parses the flags, calls `main` and leaves the process.

    Args:
      main: Takes the arguments that are no flags, returns the exit status (None: 0).
      doc: The module's docstring: a description and an example, shown by `--help`.
      own_flags: The flags of this command, beside those that all commands share.
      trains: Whether it calls `train`, in several processes if need be.
    """
    if trains:
        own_flags.append_flag_values(_CLUSTER)
    own_flags.append_flag_values(_SHARED)
    sys.exit(_run(main, doc or "", own_flags, sys.argv))


def load_config(spec: str) -> ConfigDict:
    """Loads a config and applies the `--config.a.b=VALUE` flags of the command line.

    Args:
      spec: The value of `--config`.

    Raises:
      UserError: See `vit_jax.config.load` and `vit_jax.config.override`.
    """
    config = config_lib.load(spec)
    config_lib.override(config, _split_overrides(sys.argv)[1])
    return config


def arguments(without: Sequence[str]) -> list[str]:
    """Returns the command line without some flags and their values.

    Args:
      without: Names of these flags.
    """
    names = "|".join(without)
    rest: list[str] = []
    skip = False
    for arg in sys.argv[1:]:
        match = re.fullmatch(rf"--?(?:no)?(?:{names})(=.*)?", arg)
        if match is None and not (skip and not arg.startswith("-")):
            rest.append(arg)
        skip = match is not None and match[1] is None
    return rest


def absolute_workdir(path: str) -> str:
    """Returns an absolute path for a local folder, and any other URL as it is."""
    return path if "://" in path else str(pathlib.Path(path).expanduser().absolute())


def use_huge_pages() -> None:
    """Starts this process anew, with its memory in large pages, where Linux has them.

    XLA's CPU backend asks the system for the scratch memory of every step anew. Pages
    of 2 MB instead of 4 kB take 5 % off a step of ViT-S/16 and 18 % off one of Swin-T.
    The C library reads the setting when a process starts, and only then. It is left
    alone where it is set already, and under a debugger.
    """
    if not sys.platform.startswith("linux") or sys.gettrace() is not None:
        return
    if "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def start_jax() -> None:
    """Sets JAX's persistent compilation cache up (see `--compilation_cache`)."""
    import jax

    folder = _CACHE.value
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        folder = str(pathlib.Path(base) / "vit_jax" / "xla")
    if folder != "off":
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def check_alone(what: str) -> None:
    """Checks that this process is not one of several.

    Args:
      what: Flag or command that starts trainings of its own.

    Raises:
      UserError: It is one of several, whose trainings would wait for each other.
    """
    from vit_jax import distributed

    count = distributed.count_ahead({name: _CLUSTER[name].value for name in _CLUSTER})
    if count > 1:
        raise UserError(
            f"{what} starts many trainings from one process, and this is one of "
            f"{count} that start together; use a single machine, or run each command "
            "that --dry_run prints on all of them"
        )


def train(config: ConfigDict, workdir: str, check: bool) -> int:
    """Runs the job of a config, or only checks it; alone or with other processes.

    Args:
      config: The config, with the command line applied.
      workdir: Absolute path or URL of the run's directory.
      check: Read the data and build everything, but train nothing.

    Returns:
      The exit status.

    Raises:
      UserError: Whatever the user can mend.
    """
    from vit_jax.train.stop import StopRequest

    stop = StopRequest()
    start_jax()
    from vit_jax import distributed

    given = {name: _CLUSTER[name].value for name in _CLUSTER}
    distributed.start(given, _HEARTBEAT.value)
    with distributed.Together(_show):
        _name_process()
        return _train(config, workdir, check, stop)


def _train(
    config: ConfigDict, workdir: str, check: bool, stop: Callable[[], bool]
) -> int:
    from vit_jax import build, record
    from vit_jax.train import loop
    from vit_jax.train.watchdog import Watchdog, check_seconds

    start = time.monotonic()
    watchdog = Watchdog(check_seconds(config.get("watchdog_seconds")))
    blueprint = build.make_blueprint(config)
    if check:
        build.check_run(blueprint, workdir)
        return DONE
    with build.build_run(blueprint, workdir) as run, watchdog:
        _, stopped = loop.train(run, stop, watchdog.alive)
    if stopped:
        return INTERRUPTED
    record.summarize(workdir, time.monotonic() - start)
    return DONE


def _run(
    main: Callable[[Sequence[str]], int | None],
    doc: str,
    own_flags: flags.FlagValues,
    argv: Sequence[str],
) -> int:
    if any(re.fullmatch(r"--?(help|helpshort|helpfull|h)", arg) for arg in argv[1:]):
        _print_help(doc, own_flags)
        return DONE
    try:
        positional = own_flags(_split_overrides(argv)[0])
    except flags.Error as err:
        text = str(err).replace("\n", " ")
        bad = re.search(r"Unknown command line flag '(.+?)'", text)
        close = nearest(bad[1], list(own_flags)) if bad else []
        hint = f"; did you mean --{close[0]}?" if close else ""
        sys.stderr.write(f"usage error: {text.rstrip('.')}{hint} (see --help)\n")
        return USAGE
    _SHARED.mark_as_parsed()
    _CLUSTER.mark_as_parsed()
    # The flags of absl itself, which its logging reads, keep their defaults.
    flags.FLAGS.mark_as_parsed()
    _set_up_logging()
    try:
        return main(positional[1:]) or DONE
    except UserError as err:
        if _TRACEBACK.value:
            raise
        return _show(err)
    except BrokenPipeError:
        # The reader of our standard output went away, as `| head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt as err:
        return _show(err)


def _show(error: BaseException) -> int:
    """Tells about an error that ends the process; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 130
    if isinstance(error, UserError) and not _TRACEBACK.value:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return MENDABLE
    traceback.print_exception(error)
    return MENDABLE if isinstance(error, UserError) else FAILED


def _split_overrides(
    argv: Sequence[str],
) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes the `--config.a.b=VALUE` arguments out of the command line."""
    rest, overrides = [], []
    for arg in argv:
        match = re.fullmatch(r"--?config\.([^=]+)(?:=(.*))?", arg, flags=re.DOTALL)
        if match is None:
            rest.append(arg)
        elif match[2] is None:
            raise flags.IllegalFlagValueError(
                f"flag {arg} has no value: write {arg}=VALUE"
            )
        else:
            overrides.append((match[1], match[2]))
    return rest, overrides


def _print_help(doc: str, own_flags: flags.FlagValues) -> None:
    lines = [doc.strip(), "", "Flags:"]
    for name in own_flags:
        flag = own_flags[name]
        default = "" if flag.value in (None, [], "") else f" [{flag.value}]"
        lines.append(f"  --{name}{default}\n      {flag.help}")
    sys.stdout.write("\n".join(lines) + "\n")


_PACKAGE = str(pathlib.Path(__file__).parent)


def _name_process() -> None:
    """Of several processes, lets the first tell what happens and all warn by number."""
    import jax

    if jax.process_count() > 1:
        _OwnLines.silent = jax.process_index() > 0
        _Formatter.process = f"[{jax.process_index()}] "


class _OwnLines(python_logging.Filter):
    """Lets warnings through, and of the information only what this package says."""

    silent = False

    def filter(self, record: python_logging.LogRecord) -> bool:
        own = record.pathname.startswith(_PACKAGE) and not self.silent
        return own or record.levelno >= python_logging.WARNING


class _Formatter(python_logging.Formatter):
    process = ""

    def format(self, record: python_logging.LogRecord) -> str:
        level = record.levelname.lower()
        prefix = self.process + ("" if level == "info" else f"{level}: ")
        text = f"{self.formatTime(record, '%H:%M:%S')} {prefix}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _set_up_logging() -> None:
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.setFormatter(_Formatter())
    handler.addFilter(_OwnLines())
