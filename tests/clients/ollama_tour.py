"""A tour of the server with Ollama's Python client."""

import ollama
from tour import KEY, PARAMETERS, QUESTION, SCHEMA, URL, fits, free_again, refused, run

client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
OPTIONS = {"num_predict": 16, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": PARAMETERS}}


def chat_and_stream():
    whole = client.chat("tiny", QUESTION, options=OPTIONS)
    assert whole.message.content and whole.done_reason == "length" and whole.eval_count == 16
    assert whole.total_duration >= whole.eval_duration > 0
    said = "".join(part.message.content for part in client.chat("tiny", QUESTION, options=OPTIONS, stream=True))
    assert said == whole.message.content


def generate():
    whole = client.generate("tiny", "Tell me of a fox.", options=OPTIONS)
    parts = client.generate("tiny", "Tell me of a fox.", options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == whole.response and whole.response
    assert client.generate("tiny", "Once upon", raw=True, options=OPTIONS).response


def tools():
    call = {"function": {"name": "clock", "arguments": {"zone": "UTC"}}}
    told = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "clock", "content": "noon"}]
    assert client.chat("tiny", told, tools=[TOOL], options=OPTIONS).message.role == "assistant"


def schema():
    options = {"num_predict": 400, "temperature": 0}
    assert fits(client.chat("tiny", QUESTION, format=SCHEMA, options=options).message.content)
    assert fits(client.generate("tiny", "A fox?", format=SCHEMA, options=options).response)


def embeddings():
    vectors = client.embed("tiny", ["a fox", "a hen"]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4


def cancel():
    options = {"num_predict": 800, "ignore_eos": True}
    parts = client.chat("tiny", QUESTION, options=options, stream=True)
    for _ in range(3):
        next(parts)
    parts.close()
    free_again()


def models():
    assert [model.model for model in client.list().models] == ["tiny"]
    assert client.show("tiny").details.quantization_level == "Q4_0"
    assert client.ps().models[0].context_length > 0


def errors():
    error = refused(ollama.ResponseError, lambda: client.chat("tiny", QUESTION, options={"temperature": -1}))
    assert error.status_code == 400 and "temperature" in error.error
    assert refused(ollama.ResponseError, lambda: ollama.Client(host=URL).list()).status_code == 401


run("ollama, Python", [chat_and_stream, generate, tools, schema, embeddings, cancel, models, errors])
