// The AI SDK, which chat pages in Node are made with.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, jsonSchema, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { BROKEN_MESSAGE, EXPECTED, GATEWAY, LINE, LONG, QUESTION, TOKENS, abandoned, check, equal, finish, raised, willBreak } from "./checks.mjs";

const client = new Function("createOpenAICompatible", `${LINE}; return client;`)(createOpenAICompatible);
const ask = { model: client("sim"), prompt: QUESTION, maxOutputTokens: TOKENS, maxRetries: 0 };
const chat = EXPECTED.chat;
const text = chat.choices[0].message.content;

async function whole() {
  const answer = await generateText(ask);
  equal("generateText: text", answer.text, text);
  equal("generateText: finish", answer.finishReason, "length");
  equal("generateText: usage", [answer.usage.inputTokens, answer.usage.outputTokens], [chat.usage.prompt_tokens, chat.usage.completion_tokens]);
  check("generateText: ids", answer.response.id.startsWith("chatcmpl-") && answer.response.headers["x-request-id"], answer.response);
  const { embeddings } = await embedMany({ model: client.embeddingModel("sim"), values: ["one", "another"], maxRetries: 0 });
  equal("embeddings", embeddings, EXPECTED.embeddings.data.map((one) => one.embedding));
}

async function streamed() {
  const answer = streamText(ask);
  let read = "";
  for await (const piece of answer.textStream) read += piece;
  equal("streamText: text", read, text);
  equal("streamText: finish", await answer.finishReason, "length");
}

async function tools() {
  const note = tool({ inputSchema: jsonSchema(EXPECTED.tool_definition.function.parameters) });
  const { toolCalls } = await generateText({ ...ask, tools: { note }, toolChoice: { type: "tool", toolName: "note" } });
  const expected = JSON.parse(EXPECTED.tool.choices[0].message.tool_calls[0].function.arguments);
  equal("tools: call", toolCalls.map((call) => [call.toolName, call.input]), [["note", expected]]);
}

async function errors() {
  const other = createOpenAICompatible({ name: "other", baseURL: `${GATEWAY}/v1`, apiKey: "sk-bad" });
  let error = await raised("bad key", APICallError, () => generateText({ ...ask, model: other("sim") }));
  if (error) equal("bad key: status and message", [error.statusCode, error.message], [401, "the API key is not known"]);
  error = await raised("bad model", APICallError, () => generateText({ ...ask, model: client("nope") }));
  if (error) check("bad model: message", error.statusCode === 404 && error.message.includes("does not exist"), error);
}

async function breaks() {
  await willBreak("/v1/chat/completions", "break for ai-sdk");
  const answer = streamText({ ...ask, prompt: "break for ai-sdk", maxOutputTokens: 60, onError() {} });
  const parts = [];
  // After the error the end of the connection is one more.
  await raised("broken stream", APICallError, async () => {
    for await (const part of answer.fullStream) parts.push(part);
  });
  const error = parts.find((part) => part.type === "error");
  check("broken stream: message", error && error.error.message === BROKEN_MESSAGE, parts.at(-1));
  check("broken stream: what came before", parts.filter((part) => part.type === "text-delta").length > 1, parts);
}

async function leaves() {
  const left = new AbortController();
  const answer = streamText({ ...ask, maxOutputTokens: LONG, abortSignal: left.signal, onError() {} });
  const pieces = answer.textStream[Symbol.asyncIterator]();
  for (let read = 0; read < 5; read += 1) check("left stream: a piece", !(await pieces.next()).done);
  await abandoned("left stream", () => left.abort());
}

const { version } = JSON.parse(readFileSync(new URL("./node_modules/ai/package.json", import.meta.url)));
await finish("ai-sdk", version, [whole, streamed, tools, errors, breaks, leaves]);
