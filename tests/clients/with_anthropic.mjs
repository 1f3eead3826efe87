// Anthropic's client for Node, on /v1/messages.
import Anthropic from "@anthropic-ai/sdk";
import { readFileSync } from "node:fs";
import {
  BROKEN_MESSAGE, DESERTED, EXPECTED, LINE, LONG, POOR_KEY, QUESTION,
  TOKENS, abandoned, check, equal, finish, raised, willBreak,
} from "./checks.mjs";

const named = new Function("Anthropic", `${LINE}; return client;`)(Anthropic);
const client = named.withOptions({ maxRetries: 0 });
const ask = { model: "sim", messages: [{ role: "user", content: QUESTION }], max_tokens: TOKENS };
const message = EXPECTED.messages;
const text = message.content[0].text;

// Tokens of the prompt and of the answer. Whole answers tell cached tokens apart, streams don't (vLLM 0.32).
const counts = ({ input_tokens, cache_read_input_tokens, output_tokens }) => [input_tokens + (cache_read_input_tokens ?? 0), output_tokens];

function compare(name, answer) {
  equal(`${name}: text`, answer.content[0].text, text);
  equal(`${name}: stop reason`, answer.stop_reason, message.stop_reason);
  equal(`${name}: usage`, counts(answer.usage), counts(message.usage));
  check(`${name}: id`, answer.id && answer.role === "assistant", answer);
}

async function whole() {
  compare("create", await client.messages.create(ask));
  compare("create, beta", await client.beta.messages.create(ask));
  const { response } = await client.messages.create(ask, { headers: { "X-Request-Id": "client-9" } }).withResponse();
  equal("raw answer: request id", response.headers.get("x-request-id"), "client-9");
}

async function streamed() {
  const stream = client.messages.stream(ask);
  let read = "";
  stream.on("text", (piece) => { read += piece; });
  compare("stream, whole", await stream.finalMessage());
  equal("stream: text", read, text);
}

async function errors() {
  const asks = (of, more) => () => of.messages.create({ ...ask, ...more });
  let error = await raised("bad key", Anthropic.AuthenticationError, asks(client.withOptions({ apiKey: "sk-bad" })));
  if (error) equal("bad key: members", [error.error.error.type, error.error.error.code], ["authentication_error", "invalid_api_key"]);
  error = await raised("bad model", Anthropic.NotFoundError, asks(client, { model: "nope" }));
  if (error) check("bad model: message", error.message.includes("The model `nope` does not exist"), error);
  error = await raised("bad value", Anthropic.BadRequestError, asks(client, { max_tokens: -1 }));
  if (error) check("bad value: message", error.message.includes("max_tokens must be at least 1"), error);
  const poor = asks(client.withOptions({ apiKey: POOR_KEY }));
  await raised("used up", Anthropic.RateLimitError, () => poor().then(poor));
  error = await raised("no engines", Anthropic.InternalServerError, asks(client.withOptions({ baseURL: DESERTED })));
  if (error) check("no engines: code", ["prefill_failed", "no_prefiller", "no_decoder", "decode_failed"].includes(error.error.error.code), error);
}

async function breaks() {
  await willBreak("/v1/messages", "break for anthropic-node");
  const messages = [{ role: "user", content: "break for anthropic-node" }];
  const read = [];
  const error = await raised("broken stream", Anthropic.APIError, async () => {
    for await (const event of await client.messages.create({ ...ask, messages, max_tokens: 60, stream: true })) read.push(event);
  });
  if (error) check("broken stream: message", error.message.includes(BROKEN_MESSAGE), error);
  check("broken stream: what came before", read.length > 1, read);
}

async function leaves() {
  const stream = await client.messages.create({ ...ask, max_tokens: LONG, stream: true });
  const events = stream[Symbol.asyncIterator]();
  for (let read = 0; read < 5; read += 1) check("left stream: an event", (await events.next()).value.type);
  await abandoned("left stream", () => stream.controller.abort());
}

const { version } = JSON.parse(readFileSync(new URL("./node_modules/@anthropic-ai/sdk/package.json", import.meta.url)));
await finish("anthropic-node", version, [whole, streamed, errors, breaks, leaves]);
