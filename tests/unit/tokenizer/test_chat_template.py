"""Chat templates render as transformers renders them; hostile ones are stopped."""

import time
from typing import Any

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.chat_template import ChatTemplate

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are <b>kind</b> & brief."},
    {"role": "user", "content": " Hello, wörld! \n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- if loop.index0 > ns.last_query_index %}{{- 'late' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{% generation %}{{ 'x' }}{% endgeneration %}
"""
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "llama2": LLAMA2, "llama3": LLAMA3, "qwen3": QWEN3}
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": ["<", 1, None]}}}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}, {"enable_thinking": False}])
def test_text_equals_the_peers(name, add_generation_prompt, extra):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    [theirs], _ = utils.render_jinja_template(
        conversations=[TALK],
        chat_template=TEMPLATES[name],
        add_generation_prompt=add_generation_prompt,
        **TOKENS,
        **extra,
    )
    ours = ChatTemplate(TEMPLATES[name], TOKENS).render(
        TALK, add_generation_prompt=add_generation_prompt, **extra
    )
    assert ours == theirs


def test_a_template_may_refuse_a_conversation():
    with pytest.raises(DataError, match="chat template: Conversation roles must alternate"):
        ChatTemplate(LLAMA2, TOKENS).render(TALK[:1] + TALK[2:])


def test_the_process_is_used_again_after_an_error():
    template = ChatTemplate("{{ messages[5].role }}{{ messages[0].content + 1 }}")
    with pytest.raises(DataError):
        template.render(TALK)
    worker = template._worker
    with pytest.raises(DataError):
        template.render(TALK)
    assert template._worker is worker


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages|map(attribute='__class__')|list)[0].__subclasses__() }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ '{0.__class__.__init__}'.format(messages) }}",
        "{{ namespace(__class__=1).__class__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ lipsum(n=1000) }}",
        "{{ 1 / 0 }}",
        "{% for %}",
        "{{",
    ],
)
def test_internals_are_out_of_reach(source):
    try:
        text = ChatTemplate(source).render(TALK)
    except DataError:
        return
    assert text in ("", "None"), text


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ 'x'.ljust(10**10) }}",
        "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}{{ ns.s }}",
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ '%10000000000d' % 1 }}",
    ],
)
def test_memory_is_bounded(source):
    with pytest.raises(DataError, match="chat template: "):
        ChatTemplate(source).render(TALK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{{ 10**(10**10) }}",
    ],
)
def test_time_is_bounded(source):
    start_s = time.monotonic()
    with pytest.raises(DataError, match="chat template: "):
        ChatTemplate(source).render(TALK)
    assert time.monotonic() - start_s < 60  # 5 CPU seconds, whatever else the machine does


def test_a_stopped_process_is_replaced():
    template = ChatTemplate("{{ 'x' * n }}")
    with pytest.raises(DataError):
        template.render([], n=10**10)
    assert template.render([], n=3) == "xxx"
    template.close()
    assert template.render([], n=2) == "xx"


def test_a_huge_template_is_refused():
    with pytest.raises(DataError, match="characters; at most"):
        ChatTemplate("x" * 2_000_000)


def test_values_that_are_not_json_are_refused():
    with pytest.raises(ConfigError, match="must be JSON values"):
        ChatTemplate("x").render([{"role": "user", "content": object()}])


def test_halves_of_characters_do_not_break_it():
    assert ChatTemplate("{{ messages[0].content }}").render([{"content": "\ud800"}]) == "?"
