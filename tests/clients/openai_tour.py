"""A tour of the server with OpenAI's Python client."""

import json

import openai
from tour import KEY, PARAMETERS, QUESTION, SCHEMA, URL, fits, free_again, refused, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": PARAMETERS}}


def create(**more):
    return client.chat.completions.create(
        **{"model": "tiny", "messages": QUESTION, "max_tokens": 16, "temperature": 0, **more}
    )


def chat_and_stream():
    whole = create()
    assert whole.usage.completion_tokens == 16 and whole.choices[0].finish_reason == "length"
    chunks = list(create(stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content and said
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def completions():
    whole = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8, temperature=0, echo=True)
    assert whole.choices[0].text.startswith("Once upon a time")


def log_probabilities():
    content = create(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 16 and all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content)


def responses():
    ask = {"model": "tiny", "max_output_tokens": 12, "temperature": 0}
    first = client.responses.create(input="Tell me of a fox.", **ask)
    assert first.output_text and first.status == "incomplete"
    with client.responses.stream(input="Tell me of a fox.", **ask) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert said == first.output_text
    second = client.responses.create(input="And then?", previous_response_id=first.id, **ask)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    error = refused(openai.NotFoundError, lambda: client.responses.retrieve(second.id))
    assert second.id in error.message


def tools():
    forced = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400}
    choice = create(**forced).choices[0]
    message = choice.message
    assert choice.finish_reason == "tool_calls" and len(message.tool_calls) == 1
    call = message.tool_calls[0]
    assert call.function.name == "clock" and json.loads(call.function.arguments)["zone"] in ("UTC", "CET")
    chunks = create(stream=True, **forced)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(part.function.arguments or "" for part in calls) == call.function.arguments
    told = [*QUESTION, message, {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
    assert create(messages=told, tools=[TOOL]).choices[0].message.role == "assistant"


def tools_of_responses():
    tool = {"type": "function", "name": "clock", "parameters": PARAMETERS, "strict": True}
    ask = {"model": "tiny", "tools": [tool], "temperature": 0, "parallel_tool_calls": False}
    first = client.responses.create(input="Time?", tool_choice="required", max_output_tokens=400, **ask)
    call = next(item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments)["zone"] in ("UTC", "CET")
    told = [{"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]
    ask["tool_choice"] = "none"
    second = client.responses.create(input=told, previous_response_id=first.id, max_output_tokens=8, **ask)
    assert second.output_text


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    assert fits(create(response_format=form, max_tokens=400).choices[0].message.content)
    form = {"format": {"type": "json_schema", "name": "animal", "schema": SCHEMA, "strict": True}}
    response = client.responses.create(model="tiny", input="A fox?", text=form, max_output_tokens=400)
    assert fits(response.output_text)


def embeddings():
    data = client.embeddings.create(model="tiny", input=["a fox", "a hen"]).data
    assert len(data) == 2 and abs(sum(x * x for x in data[0].embedding) - 1) < 1e-4


def cancel():
    stream = create(stream=True, max_tokens=800, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(iter(stream))
    stream.close()
    free_again()


def models():
    assert [model.id for model in client.models.list()] == ["tiny"]


def errors():
    assert "temperature" in refused(openai.BadRequestError, lambda: create(temperature=-1)).message
    assert refused(openai.BadRequestError, lambda: create(messages=[])).param == "messages"
    refused(openai.NotFoundError, lambda: client.models.retrieve("none"))
    stranger = client.with_options(api_key="wrong")
    refused(openai.AuthenticationError, lambda: stranger.models.list())


run(
    "openai, Python",
    [
        chat_and_stream, completions, log_probabilities, responses, tools, tools_of_responses, schema, embeddings,
        cancel, models, errors,
    ],
)
