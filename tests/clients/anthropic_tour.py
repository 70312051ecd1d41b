"""A tour of the server with Anthropic's Python client."""

import anthropic
from tour import KEY, PARAMETERS, QUESTION, SCHEMA, URL, fits, free_again, refused, run

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
TOOL = {"name": "clock", "description": "The time.", "input_schema": PARAMETERS}
ASK = {"model": "tiny", "messages": QUESTION, "max_tokens": 16}


def create(**more):
    return client.messages.create(**{**ASK, "extra_body": {"temperature": 0}, **more})


def chat_and_stream():
    whole = create()
    assert whole.content[0].text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 16
    with client.messages.stream(**ASK, extra_body={"temperature": 0}) as stream:
        said = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert said == whole.content[0].text == last.content[0].text and last.stop_reason == "max_tokens"
    assert last.usage.output_tokens == 16 and last.usage.cache_read_input_tokens > 0


def stop():
    text = create().content[0].text
    ended = create(stop_sequences=[text[8:12]])
    assert ended.stop_reason == "stop_sequence" and ended.stop_sequence == text[8:12]


def count():
    counted = client.messages.count_tokens(model="tiny", messages=QUESTION).input_tokens
    usage = create().usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def tools():
    choice = {"type": "any", "disable_parallel_tool_use": True}
    forced = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 400}
    message = create(**forced)
    use = next(block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use" and use.name == "clock" and use.input["zone"] in ("UTC", "CET")
    with client.messages.stream(**{**ASK, **forced}, extra_body={"temperature": 0}) as stream:
        streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert streamed.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "noon"}
    told = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert create(messages=told, tools=[TOOL], tool_choice={"type": "none"}).content[0].text


def schema():
    form = {"output_format": {"type": "json_schema", "schema": SCHEMA}}
    assert fits(create(max_tokens=400, extra_body=form).content[0].text)


def cancel():
    stream = create(stream=True, max_tokens=800, extra_body={"ignore_eos": True})
    for _ in range(4):
        next(iter(stream))
    stream.close()
    free_again()


def models():
    assert [model.id for model in client.models.list()] == ["tiny"]


def errors():
    error = refused(anthropic.BadRequestError, lambda: create(messages=[]))
    assert error.body["error"]["type"] == "invalid_request_error" and "messages" in error.body["error"]["message"]
    refused(anthropic.NotFoundError, lambda: client.models.retrieve("none"))
    stranger = client.with_options(api_key="wrong")
    error = refused(anthropic.AuthenticationError, lambda: stranger.messages.create(**ASK))
    assert error.body["error"]["type"] == "authentication_error"


run("anthropic, Python", [chat_and_stream, stop, count, tools, schema, cancel, models, errors])
