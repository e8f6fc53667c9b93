"""Chat templates: the Jinja text by which a model wants messages written into its prompt.

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}], add_generation_prompt=True)

The text is what transformers' `apply_chat_template` gives. Templates are programs from strangers:
they run sandboxed in a process of their own (chat_worker.py), with bounds on time, memory and
output; it starts with the first rendering, takes 0.1 s to do so, and ends with the ChatTemplate.
"""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from lmworks.base.errors import ConfigError, DataError

MAX_TEMPLATE_CHARS: Final = 1 << 20
_WORKER: Final = Path(__file__).with_name("chat_worker.py")
_MAX_ERROR_CHARS: Final = 500


class ChatTemplate:
    """A template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are texts by the name that templates know them by: bos_token, ..."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise DataError(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS}"
            )
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self._worker: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each a mapping with role and content.

        Args:
            messages: the conversation so far.
            add_generation_prompt: end with what tells the model to answer.
            tools: JSON schemas of functions that the model may call.
            variables: what else the template knows (enable_thinking, date_string, ...).

        Raises:
            DataError: the template refuses these messages, is not valid, or takes too long.
        """
        values = {
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.special_tokens,
            **variables,
        }
        try:
            request = json.dumps({"template": self.source, "variables": values})
        except (TypeError, ValueError) as err:
            raise ConfigError(f"messages for a chat template must be JSON values ({err})") from None
        reply = self._ask(request.encode())
        if "error" in reply:
            raise DataError(f"chat template: {reply['error']:.{_MAX_ERROR_CHARS}}")
        return reply["text"]

    def close(self) -> None:
        """End the process that renders; the next rendering starts another."""
        with self._lock:
            self._stop()

    def _ask(self, request: bytes) -> dict[str, str]:
        with self._lock:
            worker = self._started()
            stdin, stdout = worker.stdin, worker.stdout
            assert stdin is not None
            assert stdout is not None
            try:
                stdin.write(len(request).to_bytes(4, "little") + request)
                stdin.flush()
                size = int.from_bytes(_read(stdout, 4), "little")
                reply: dict[str, str] = json.loads(_read(stdout, size))
            except (OSError, EOFError):
                self._stop()
                return {"error": "it took too much time or memory"}
            except BaseException:
                self._stop()  # an interrupt came between: the next answer would be this one's
                raise
            return reply

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._worker is None or self._worker.poll() is not None:
            self._stop()
            self._worker = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            weakref.finalize(self, _end, self._worker)
        return self._worker

    def _stop(self) -> None:
        if self._worker is not None:
            _end(self._worker)
            self._worker = None


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _end(worker: "subprocess.Popen[bytes]") -> None:
    for stream in (worker.stdin, worker.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:
                continue  # what was still to be written has no reader any more
    worker.kill()
    worker.wait()
