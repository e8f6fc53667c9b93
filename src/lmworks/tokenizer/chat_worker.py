"""The process that renders chat templates: run as a script by chat_template.py, never imported.

Chat templates are programs from strangers. They run here in Jinja's sandbox, which keeps them from
Python's internals, and in a process with a bound on memory and time, which the sandbox lacks: a few
nested loops or `"x" * 10**9` are all it takes. Needs nothing but the standard library and Jinja.

Frames both ways: 4 bytes of size, little-endian, then JSON. Request: {template, variables}. Answer:
{text} or {error}.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MEMORY_BYTES = 512 << 20
CPU_S = 5
OUTPUT_CHARS = 16 << 20


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model writes; its text is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

    def parse(self, parser: Any) -> Any:
        """The body alone."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def make_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates, without Python's `lipsum` and such."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    del environment.globals["lipsum"]
    return environment


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    """How templates refuse a conversation."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    """The local time, for templates that tell the model the date."""
    return datetime.now().strftime(form)


def render(environment: Any, request: dict[str, Any]) -> str:
    """The text of one request."""
    parts, size = [], 0
    for part in environment.from_string(request["template"]).generate(**request["variables"]):
        size += len(part)
        if size > OUTPUT_CHARS:
            raise ValueError(f"it wrote more than {OUTPUT_CHARS} characters")
        parts.append(part)
    return "".join(parts)


def answer(environment: Any, request: dict[str, Any]) -> dict[str, str]:
    """What to send back."""
    try:
        return {"text": render(environment, request)}
    except MemoryError:
        return {"error": f"it took more than {MEMORY_BYTES >> 20} MB"}
    except RecursionError:
        return {"error": "it nests too deeply"}
    except jinja2.TemplateError as err:
        return {"error": f"{err.message}"}
    except Exception as err:  # the template is a program: anything may go wrong in it
        return {"error": f"{type(err).__name__}: {err}"}


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(int.from_bytes(head, "little"))


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    environment = make_environment()
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + CPU_S, hard))
        # Halves of characters, which JSON can hold, become question marks.
        text = json.dumps(answer(environment, json.loads(frame)), ensure_ascii=False)
        data = text.encode("utf-8", "replace")
        sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
