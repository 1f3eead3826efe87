// What every Node client's file needs, as checks.py has it for Python.
import { isDeepStrictEqual, inspect } from "node:util";

export const { GATEWAY, KEY, POOR_KEY, DESERTED, LINE } = process.env;
const ENGINES = process.env.ENGINES.split(" ");
export const EXPECTED = JSON.parse(process.env.EXPECTED);
export const QUESTION = EXPECTED.question;
export const TOKENS = EXPECTED.tokens;
export const LONG = Number(process.env.LONG ?? 4000);
export const BROKEN_MESSAGE = "the answer ended before it was complete";
const SETTLE_MS = 5000;

let good = 0;
const wrong = [];

export function check(name, holds, seen = "") {
  if (holds) {
    good += 1;
    return;
  }
  wrong.push(name);
  console.log(`WRONG  ${name}: ${String(typeof seen === "string" ? seen : inspect(seen)).slice(0, 800)}`);
}

export function equal(name, seen, expected) {
  check(name, isDeepStrictEqual(seen, expected), `${inspect(seen)} is not ${inspect(expected)}`);
}

/** The error of `kind` that `work` raises, or undefined, which is wrong. */
export async function raised(name, kind, work) {
  try {
    await work();
  } catch (error) {
    check(`${name}: ${kind.name}`, error instanceof kind, error);
    return error instanceof kind ? error : undefined;
  }
  check(`${name}: ${kind.name}`, false, "no error");
}

async function ask(url, body) {
  const answer = await fetch(url, {
    method: body ? "POST" : "GET",
    headers: { authorization: `Bearer ${KEY}` },
    body: body && JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}

/** What the gateway and the engines still have to do; empty when they are idle. */
async function stillOpen() {
  const { instances } = await ask(`${GATEWAY}/instances`);
  const ledgers = await Promise.all(ENGINES.map((engine) => ask(`${engine}/sim/ledger`)));
  return [
    ...instances.filter((one) => one.requests || one.held_tokens),
    ...ledgers.filter((one) => one.running || one.waiting || one.pinned_handoffs),
  ];
}

/** `leave` hangs up on an answer under way; afterwards nobody works on it. */
export async function abandoned(name, leave) {
  check(`${name}: it was under way`, (await stillOpen()).length > 0);
  await leave();
  const end = Date.now() + SETTLE_MS;
  let left = await stillOpen();
  while (left.length && Date.now() < end) {
    await new Promise((done) => setTimeout(done, 50));
    left = await stillOpen();
  }
  check(`${name}: nothing is left open`, !left.length, left);
}

/** The decoder breaks off the next answer at `path` to a prompt with this text, in the middle of its stream. */
export async function willBreak(path, text) {
  await ask(`${ENGINES[1]}/sim/faults`, { path, contains: text, times: 1, what: { kind: "end_after_events", events: 6 } });
}

/** Runs all, also where some raise, and ends the process. */
export async function finish(client, version, works) {
  for (const work of works) {
    try {
      await work();
    } catch (error) {
      check(work.name, false, error);
    }
  }
  if (wrong.length) console.log(`client ${client} ${version}: ${wrong.length} of ${good + wrong.length} checks WRONG`);
  else console.log(`client ${client} ${version}: ${good} checks ok`);
  process.exit(wrong.length ? 1 : 0);
}
