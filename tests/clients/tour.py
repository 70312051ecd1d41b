"""What the tours of the Python clients have in common: where the server is, and steps one after the other."""

import json
import os
import sys
import time
import traceback
import urllib.request

URL = os.environ["KVAS_URL"]
KEY = os.environ["KVAS_KEY"]

QUESTION = [{"role": "user", "content": "Tell me of a fox."}]
PARAMETERS = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
# The small model likes white space between the parts of a JSON text: what fits one of these takes up to 400 tokens.
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "hen"]}, "legs": {"enum": [2, 4]}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


def fits(text):
    """Whether a text is JSON of SCHEMA."""
    found = json.loads(text)
    return set(found) == {"animal", "legs"} and found["animal"] in ("fox", "hen") and found["legs"] in (2, 4)


def slots():
    request = urllib.request.Request(f"{URL}/slots", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def free_again():
    """Waits until no slot is busy, as it has to be soon after a client has left."""
    for _ in range(500):
        if not any(slot["is_processing"] for slot in slots()):
            return
        time.sleep(0.02)
    raise AssertionError(f"a slot is still busy: {slots()}")


def refused(kind, ask):
    """The error of this class that asking gives."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


def run(client, steps):
    """Every step; what fails is said, and the exit code is 1."""
    failed = 0
    for step in steps:
        try:
            step()
            print(f"ok      {client}: {step.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {client}: {step.__name__}\n{traceback.format_exc()}")
    sys.exit(1 if failed else 0)
