// openai for Node.
import OpenAI from "openai";
import { VERSION } from "openai/version";
import {
  BROKEN_MESSAGE, DESERTED, EXPECTED, LINE, LONG, POOR_KEY, QUESTION,
  TOKENS, abandoned, check, equal, finish, raised, willBreak,
} from "./checks.mjs";

const named = new Function("OpenAI", `${LINE}; return client;`)(OpenAI);
const client = named.withOptions({ maxRetries: 0 });
const ask = { model: "sim", messages: [{ role: "user", content: QUESTION }], max_tokens: TOKENS };
const chat = EXPECTED.chat;
const text = chat.choices[0].message.content;
const counts = ({ prompt_tokens, completion_tokens, total_tokens }) => [prompt_tokens, completion_tokens, total_tokens];

async function whole() {
  const answer = await client.chat.completions.create(ask);
  equal("chat: text", answer.choices[0].message.content, text);
  equal("chat: finish", answer.choices[0].finish_reason, "length");
  equal("chat: usage", counts(answer.usage), counts(chat.usage));
  check("chat: ids", answer._request_id && answer.id.includes(answer._request_id), answer);
  const completion = await client.completions.create({ model: "sim", prompt: QUESTION, max_tokens: TOKENS });
  equal("completion: text", completion.choices[0].text, EXPECTED.completion.choices[0].text);
  const { data } = await client.embeddings.create({ model: "sim", input: ["one", "another"], encoding_format: "float" });
  equal("embeddings", data.map((one) => one.embedding), EXPECTED.embeddings.data.map((one) => one.embedding));
  equal("models", (await client.models.list()).data.map((model) => model.id), process.env.MODELS.split(" "));
}

async function streamed() {
  const chunks = [];
  const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) chunks.push(chunk);
  equal("stream: text", chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), text);
  equal("stream: usage", counts(chunks.at(-1).usage), counts(chat.usage));
  equal("stream: one id", new Set(chunks.map((chunk) => chunk.id)).size, 1);
  const helper = client.chat.completions.stream(ask);
  equal("stream helper: text", (await helper.finalChatCompletion()).choices[0].message.content, text);
}

async function responses() {
  const expected = EXPECTED.responses.output[0].content[0].text;
  const body = { model: "sim", input: QUESTION, max_output_tokens: TOKENS };
  equal("responses: text", (await client.responses.create(body)).output_text, expected);
  let read = "";
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    read += event.type === "response.output_text.delta" ? event.delta : "";
  }
  equal("responses, streamed: text", read, expected);
}

async function tools() {
  const answer = await client.chat.completions.create({
    ...ask, tools: [EXPECTED.tool_definition], tool_choice: { type: "function", function: { name: "note" } },
  });
  equal("tools: call", answer.choices[0].message.tool_calls[0].function, EXPECTED.tool.choices[0].message.tool_calls[0].function);
}

async function errors() {
  const asks = (of, more) => () => of.chat.completions.create({ ...ask, ...more });
  let error = await raised("bad key", OpenAI.AuthenticationError, asks(client.withOptions({ apiKey: "sk-bad" })));
  if (error) equal("bad key: members", [error.status, error.code, error.type], [401, "invalid_api_key", "authentication_error"]);
  error = await raised("bad model", OpenAI.NotFoundError, asks(client, { model: "nope" }));
  if (error) check("bad model: message", error.message.includes("The model `nope` does not exist") && error.requestID, error);
  error = await raised("bad value", OpenAI.BadRequestError, asks(client, { temperature: -1 }));
  if (error) equal("bad value: param", error.param, "temperature");
  const poor = asks(client.withOptions({ apiKey: POOR_KEY }));
  error = await raised("used up", OpenAI.RateLimitError, () => poor().then(poor));
  if (error) equal("used up: code", error.code, "rate_limit_exceeded");
  error = await raised("no engines", OpenAI.InternalServerError, asks(client.withOptions({ baseURL: `${DESERTED}/v1` })));
  if (error) check("no engines: code", ["prefill_failed", "no_prefiller", "no_decoder", "decode_failed"].includes(error.code), error);
}

async function breaks() {
  await willBreak("/v1/chat/completions", "break for openai-node");
  const messages = [{ role: "user", content: "break for openai-node" }];
  const read = [];
  const error = await raised("broken stream", OpenAI.APIError, async () => {
    for await (const chunk of await client.chat.completions.create({ ...ask, messages, max_tokens: 60, stream: true })) read.push(chunk);
  });
  if (error) check("broken stream: message and code", error.message.includes(BROKEN_MESSAGE) && error.code === "decode_failed", error);
  check("broken stream: what came before", read.length > 1, read);
}

async function responseBreaks() {
  const input = "break a response for openai-node";
  await willBreak("/v1/responses", input);
  const numbers = [];
  const error = await raised("broken response", OpenAI.APIError, async () => {
    for await (const event of await client.responses.create({ model: "sim", max_output_tokens: 60, stream: true, input })) numbers.push(event.sequence_number);
  });
  if (error) check("broken response: message and code", error.message.includes(BROKEN_MESSAGE) && error.code === "decode_failed", error);
  equal("broken response: what came before", numbers, numbers.map((_, at) => at));
  check("broken response: some came before", numbers.length > 1, numbers);
}

// fetch() forgets what was not read yet when a connection breaks, and with it our error: but an error it is.
async function breaksUnread() {
  const content = "break for openai-node, which reads slowly";
  await willBreak("/v1/chat/completions", content);
  const error = await raised("broken stream, read slowly", Error, async () => {
    for await (const chunk of await client.chat.completions.create({ ...ask, messages: [{ role: "user", content }], max_tokens: 60, stream: true })) {
      check("broken stream, read slowly: a chunk", chunk.id);
      await new Promise((done) => setTimeout(done, 100));
    }
  });
  if (error) check("broken stream, read slowly: message", /before it was complete/.test(error.message), error);
}

async function leaves() {
  const stream = await client.chat.completions.create({ ...ask, max_tokens: LONG, stream: true });
  const chunks = stream[Symbol.asyncIterator]();
  for (let read = 0; read < 5; read += 1) check("left stream: a chunk", (await chunks.next()).value.id);
  await abandoned("left stream", () => stream.controller.abort());
  const whole = new AbortController();
  const answer = client.chat.completions.create({ ...ask, max_tokens: LONG }, { signal: whole.signal });
  const ended = raised("left whole answer", OpenAI.APIUserAbortError, () => answer);
  await new Promise((done) => setTimeout(done, 500));
  await abandoned("left whole answer", () => whole.abort());
  await ended;
}

await finish("openai-node", VERSION, [whole, streamed, responses, tools, errors, breaks, responseBreaks, breaksUnread, leaves]);
