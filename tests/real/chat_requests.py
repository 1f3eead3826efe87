"""Made-up chat requests for `chat_forms.py`: conversations that mostly hold together, with members of all shapes that clients send."""

import json

WORDS = "Hello world, what is the weather in Zürich today? Find two flights. Größe 北京 今天天气 не знаю データ 🙂 🇩🇪 e\u0301 naïve 1234567 3.14 don't I'LL".split()
MARKS = {
    "deepseek": "<｜User｜> <｜Assistant｜> <think> </think> <｜end▁of▁sentence｜> ｜DSML｜ <｜DSML｜invoke> <tool_result> <｜System｜> <｜action｜> {schemas} {dsml}".split(),
    "gpt_oss": "<|start|> <|end|> <|message|> <|channel|> <|call|> <|return|> <|constrain|>json analysis to=functions.f # Tools".split(),
    "mistral": "<s> </s> [INST] [/INST] [TOOL_CALLS] [THINK] [/THINK] [ARGS] [SYSTEM_PROMPT] [MODEL_SETTINGS] <SPECIAL_99>".split(),
}
SPACES = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000"]
# A PNG of 16 pixels by 16, all black.
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAAAAAA6mKC9AAAADUlEQVR4nGNgGAXIAAABEAABoJMRpQAAAABJRU5ErkJggg=="
NAMES = ["lookup", "get_weather", "f", "a-b", "Tool_9", "x" * 64]
ODD_NAMES = ["a b", "ä", "a.b", "x" * 65, "", "f/g"]
TYPES = ["string", "number", "integer", "boolean", "null", "object", "array"]


class Requests:
    """Requests for one form, by a generator of random numbers."""

    def __init__(self, draw, form):
        self.draw, self.form = draw, form
        self.marks = MARKS[next(family for family in MARKS if form.startswith(family))]
        self.calls = 0
        # One in so many answers thinks: Mistral's older versions refuse all that do.
        self.thoughts = 40 if form in ("mistral_v3", "mistral_v7", "mistral_v11") else 3

    def chance(self, one_in):
        return self.draw.randrange(one_in) == 0

    def text(self):
        draw = self.draw
        kind = draw.randrange(12)
        if kind == 0:
            return draw.choice(["", " ", "\n", "a ", " b", "\n a \n", "c\u00a0 "])
        if kind == 1:
            return json.dumps(self.value(2), ensure_ascii=draw.choice([True, False]))
        if kind == 2 and self.chance(3):
            return "x-anthropic-billing-header: cc_version=1; cch=5;" + draw.choice(["", "\n", "\nYou help."])
        words = draw.choices(WORDS + self.marks if self.chance(3) else WORDS, k=draw.randrange(1, 14))
        text = "".join(word + draw.choice([" ", " ", " ", *SPACES]) for word in words)
        return text if self.chance(3) else text.strip()

    def value(self, depth):
        draw = self.draw
        kind = draw.randrange(9 if depth else 6)
        if kind == 0:
            return self.text() if depth else draw.choice(WORDS)
        if kind == 1:
            return draw.choice([0, 1, -7, 42, 123456789, 2**53, -0])
        if kind == 2:
            return draw.choice([0.5, 1.0, -2.25, 100000.0, 1e-3, 3.14159])
        if kind in (3, 4):
            return draw.choice([True, False, None])
        if kind == 5:
            return draw.choice(WORDS)
        if kind == 6:
            return [self.value(depth - 1) for _ in range(draw.randrange(4))]
        return {draw.choice(["q", "city", "n", "größe", "a b", "", '"k"']): self.value(depth - 1) for _ in range(draw.randrange(4))}

    def arguments(self):
        draw = self.draw
        value = {draw.choice(["q", "city", "days", "ü", "list"]): self.value(2) for _ in range(draw.randrange(4))}
        text = json.dumps(value, ensure_ascii=draw.choice([True, False]), separators=draw.choice([None, (",", ":")]))
        if self.chance(12):
            return draw.choice(["", "{}", '{"a": ', "[1]", '"x"', "null", "7", " " + text + " ", '{"a": 1, "a": 2}', '{"n": 1e20}'])
        return text

    def schema(self, depth):
        draw = self.draw
        schema = {}
        if self.chance(3):
            schema["description"] = self.text()
        if self.chance(6):
            schema["title"] = draw.choice(WORDS)
        if self.chance(5):
            schema["default"] = self.value(1)
        if self.chance(8):
            schema["examples"] = [self.value(0) for _ in range(draw.randrange(3))]
        if self.chance(8):
            schema["nullable"] = draw.choice([True, False])
        kind = draw.choice(TYPES)
        if self.chance(10):
            schema["type"] = draw.sample(TYPES, draw.randrange(1, 3))
        elif not self.chance(10):
            schema["type"] = kind
        if kind == "string" and self.chance(3):
            schema["enum"] = draw.choice([["a", "b"], ["C"], ["x", 1, None]])
        if kind == "array" and depth and not self.chance(4):
            schema["items"] = self.schema(depth - 1)
        if kind == "object" and depth:
            schema |= self.members(depth - 1)
        if depth and self.chance(8):
            schema[draw.choice(["oneOf", "anyOf", "allOf"])] = [self.schema(depth - 1) for _ in range(draw.randrange(1, 4))]
        if self.chance(12):
            schema[draw.choice(["minimum", "x-more", "additionalProperties"])] = draw.choice([1, 5])
        items = list(schema.items())
        draw.shuffle(items)
        return dict(items)

    def members(self, depth):
        names = self.draw.sample(["q", "city", "days", "größe", "odd name", "unit"], self.draw.randrange(4))
        found = {"properties": {name: self.schema(depth) for name in names}}
        if not self.chance(3):
            found["required"] = [name for name in names if self.chance(2)]
        return found

    def tool(self):
        function = {"name": self.draw.choice(ODD_NAMES if self.chance(40) else NAMES)}
        if not self.chance(4):
            function["description"] = None if self.chance(8) else self.text()
        if not self.chance(6):
            function["parameters"] = self.draw.choice([None, {}, {"type": "object", "properties": {}}]) if self.chance(4) else {"type": "object", **self.members(3)}
        if self.chance(6):
            function["strict"] = self.draw.choice([True, False])
        tool = {"type": "function", "function": function}
        return dict(reversed(tool.items())) if self.chance(3) else tool

    def content(self, role):
        draw = self.draw
        if self.chance(4):
            parts = [{"type": "text", "text": self.text()} for _ in range(draw.randrange(1, 4))]
            if role == "assistant" and self.chance(12):
                parts.append({"type": "refusal", "refusal": self.text()})
            if self.chance(self.thoughts if self.form in ("mistral_v13", "mistral_v15") else 40) and role in ("assistant", "system") or self.chance(90):
                thought = {"type": "thinking", "thinking": self.text()}
                if self.chance(2):
                    thought["closed"] = draw.choice([True, False])
                parts.insert(draw.randrange(len(parts) + 1), thought)
            if self.chance(30):
                parts.append(draw.choice([{"type": "input_text", "text": "t"}, "plain", {"type": "text"}, {"text": "t"}]))
            if self.form.endswith("_images") and (self.chance(2) if role == "user" else self.chance(60)):
                for _ in range(draw.randrange(1, 3)):
                    parts.insert(draw.randrange(len(parts) + 1), {"type": "image_url", "image_url": {"url": IMAGE}})
            return [] if self.chance(40) else parts
        return self.text()

    def ident(self):
        self.calls += 1
        if self.chance(8):
            return self.draw.choice(["null", "", "x", "call_0123456789abcdef", "ab cd-ef!", "toolu_01A"])
        return f"call{self.calls:05}"

    def call(self):
        function = {"name": self.draw.choice(ODD_NAMES if self.chance(60) else NAMES), "arguments": self.arguments()}
        return {"id": self.ident(), "type": "function", "function": dict(reversed(function.items())) if self.chance(3) else function}

    def answer(self):
        """An answer, and the results of its calls."""
        draw = self.draw
        message = {"role": "assistant", "content": self.content("assistant")}
        if self.chance(self.thoughts):
            message[draw.choice(["reasoning", "reasoning_content"])] = self.text()
            if self.chance(10):
                message |= {"reasoning": self.text(), "reasoning_content": self.text()}
        if not self.chance(3):
            return [message]
        calls = [self.call() for _ in range(draw.randrange(1, 4))]
        message["tool_calls"] = calls
        if not self.chance(3):
            message["content"] = draw.choice([None, ""])
            if self.chance(3):
                del message["content"]
        results = [self.result(call) for call in calls]
        if self.chance(3):
            draw.shuffle(results)
        if self.chance(12):
            results = results[:-1] if self.chance(2) else results + results[:1]
        return [message, *results, *([] if self.chance(4) else self.plain_answer())]

    def plain_answer(self):
        message = {"role": "assistant", "content": self.content("assistant")}
        if self.chance(self.thoughts):
            message["reasoning"] = self.text()
        return [message]

    def result(self, call):
        message = {"role": "tool", "tool_call_id": call["id"], "content": self.content("tool")}
        if self.chance(5):
            message["name"] = call["function"]["name"]
        if self.chance(40):
            del message["tool_call_id"]
        return message

    def conversation(self):
        draw = self.draw
        messages = []
        if self.chance(2):
            messages.append({"role": draw.choice(["system", "system", "developer"]), "content": self.content("system")})
        for _ in range(draw.randrange(4)):
            messages.append(self.question())
            messages += self.answer()
        if not (messages and self.chance(6)):
            messages.append(self.question())
        if self.chance(8) and messages:
            at = draw.randrange(len(messages))
            role = draw.choice(["system", "developer", "user", "assistant", "tool", "latest_reminder", "critic"])
            odd = [messages[:at] + messages[at + 1 :], messages[:at] + [messages[at]] + messages[at:], messages[:at] + [{"role": role, "content": self.content(role)}] + messages[at:]]
            messages = draw.choice(odd)
        return messages

    def question(self):
        message = {"role": "user", "content": self.content("user")}
        if self.form in ("deepseek_v4", "deepseek_v41") and self.chance(12):
            message["task"] = self.draw.choice(["action", "query", "authority", "domain", "title", "read_url", "cook"])
        if self.chance(20):
            message["name"] = "Ann"
        return message

    def body(self):
        draw = self.draw
        body = {"messages": self.conversation()}
        if self.chance(2):
            body["tools"] = [self.tool() for _ in range(draw.randrange(1, 4))]
            if self.chance(4):
                body["tool_choice"] = draw.choice(["auto", "required"])
        if self.chance(4):
            body["reasoning_effort"] = draw.choice(["none", "minimal", "low", "medium", "high", "xhigh", "max"])
        if self.chance(3) and not (self.form.startswith("mistral") and not self.chance(20)):
            body["chat_template_kwargs"] = self.variables()
        last = body["messages"][-1]["role"] if body["messages"] else ""
        if last == "assistant" and not self.chance(4) or self.chance(40):
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif self.chance(15):
            body["add_generation_prompt"] = draw.choice([True, False])
        if self.chance(30):
            body["add_special_tokens"] = draw.choice([True, False])
        if self.chance(20):
            body["response_format"] = {"type": "json_object"}
        return body

    def variables(self):
        draw = self.draw
        known = {
            "thinking": [True, False, True, False, None, 0, "yes"],
            "enable_thinking": [True, False, None],
            "drop_thinking": [True, False],
            "reasoning_effort": ["low", "high", "max", "none", 33, 0, 101, 50.0, True],
            "own": [1],
        }
        return {name: draw.choice(known[name]) for name in draw.sample(list(known), draw.randrange(4))}
