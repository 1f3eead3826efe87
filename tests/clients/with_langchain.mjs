// LangChain for JavaScript: chat completions and the Responses API.
import { createRequire } from "node:module";
import { ChatOpenAI } from "@langchain/openai";
import { BROKEN_MESSAGE, EXPECTED, LINE, QUESTION, TOKENS, check, equal, finish, raised, willBreak } from "./checks.mjs";

const VERSION = createRequire(import.meta.url)("@langchain/openai/package.json").version;
const make = (more) => new Function("ChatOpenAI", "more", `${LINE.replace("({", "({ ...more, ")}; return client;`)(ChatOpenAI, more);
const chats = make({ maxTokens: TOKENS, maxRetries: 0 });
const long = { maxTokens: 60, maxRetries: 0 };

async function read(client, question) {
  let text = "";
  for await (const chunk of await client.stream(question)) text += chunk.text;
  return text;
}

async function whole() {
  equal("chat: text", (await chats.invoke(QUESTION)).text, EXPECTED.chat.choices[0].message.content);
}

async function streamed() {
  equal("streamed: text", await read(chats, QUESTION), EXPECTED.chat.choices[0].message.content);
}

async function breaks() {
  for (const [path, more] of [["/v1/chat/completions", {}], ["/v1/responses", { useResponsesApi: true }]]) {
    const question = `break for langchain-js at ${path}`;
    await willBreak(path, question);
    const error = await raised(`broken stream at ${path}`, Error, () => read(make({ ...long, ...more }), question));
    if (error) check(`broken stream at ${path}: message`, error.message.includes(BROKEN_MESSAGE), error);
  }
}

await finish("langchain-js", VERSION, [whole, streamed, breaks]);
