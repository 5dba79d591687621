"""An agent of the OpenHands SDK whose terminal is in a sandbox of Warren, with a scripted model.

warren serve &
python examples/adapters/openhands_agent.py
"""

import json
import tempfile

from openhands.sdk import Agent, Conversation, Message, TextContent
from openhands.sdk.event import ObservationEvent
from openhands.sdk.llm import MessageToolCall
from openhands.sdk.testing import TestLLM

from warren.integrations.openhands import WarrenWorkspace

COMMANDS = ["printf 'cold\\nwide\\n' > sea.txt", "sort -r sea.txt"]


def call(command: str) -> Message:
    arguments = json.dumps({"command": command})
    tool = MessageToolCall(id=command, name="warren_terminal", arguments=arguments, origin="completion")
    return Message(role="assistant", content=[TextContent(text="")], tool_calls=[tool])


def show(event: object) -> None:
    if isinstance(event, ObservationEvent):
        print(event.observation.text)


ending = Message(role="assistant", content=[TextContent(text="The poem is turned around.")])
llm = TestLLM.from_messages([*map(call, COMMANDS), ending])
with WarrenWorkspace(environment="base") as workspace, tempfile.TemporaryDirectory() as folder:
    agent = Agent(llm=llm, tools=[workspace.terminal()])
    conversation = Conversation(agent, workspace=folder, callbacks=[show], visualizer=None)
    conversation.send_message("Turn the poem around.")
    conversation.run()
    conversation.close()
