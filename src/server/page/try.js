// The box to try a request: sent from here where this listener takes clients' requests, else a command to paste. What engines answer is put in as text.
'use strict';

let trying = null;
let told = false;

function requestOf() {
  const message = {role: 'user', content: $('try-prompt').value};
  return {model: $('try-model').value, messages: [message], max_tokens: Number($('try-tokens').value) || 1};
}

function showTry(now) {
  const {requests, gateway} = now;
  const asked = requests.ended + requests.inflight > 0;
  text($('start-why'), asked ? '' : 'Nothing has been asked yet.');
  // Open at first where there is nothing else to see.
  if (!told && !asked) $('start').open = true;
  told = true;
  const names = modelsOf(now);
  const select = $('try-model');
  if (Array.from(select.options, it => it.value).join('\n') !== names.join('\n')) {
    const before = select.value;
    select.replaceChildren(...names.map(name => {
      const option = el('option');
      option.value = name;
      text(option, name);
      return option;
    }));
    if (names.includes(before)) select.value = before;
  }
  $('send').hidden = !gateway.takes_requests;
  showCommand(gateway);
}

function showCommand(gateway) {
  const port = gateway.takes_requests || !gateway.clients_port ? location.host : `${location.hostname}:${gateway.clients_port}`;
  const body = JSON.stringify(requestOf()).replaceAll("'", "'\\''");
  text($('curl'), `curl ${location.protocol}//${port}/v1/chat/completions -H 'content-type: application/json' -d '${body}'`);
  text($('curl-where'), gateway.takes_requests ? 'The same as a command:' : 'Clients have a listener of their own; as a command:');
}

// Reads the events of a stream; their texts are shown as they come.
async function readAnswer(answer, began) {
  const reader = answer.body.getReader();
  const words = new TextDecoder();
  let rest = '', first = null, events = 0;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    const lines = (rest + words.decode(value, {stream: true})).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ') || line.includes('[DONE]')) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices && event.choices[0] && event.choices[0].delta;
      const more = piece ? (piece.reasoning_content || piece.reasoning || '') + (piece.content || '') : '';
      if (!more) continue;
      if (first === null) first = performance.now() - began;
      events += 1;
      $('answer').append(document.createTextNode(more));
    }
  }
  return first === null ? 'no text' : `first text after ${duration(first)}, ${count(events)} events in ${duration(performance.now() - began)}`;
}

async function tryNow() {
  trying = new AbortController();
  text($('send'), 'Stop');
  text($('answer'), '');
  $('answer').hidden = $('answer-end').hidden = false;
  text($('answer-end'), 'under way');
  const began = performance.now();
  let end;
  try {
    const answer = await fetch('v1/chat/completions', {
      method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({...requestOf(), stream: true}),
      cache: 'no-store', credentials: 'omit', redirect: 'error', signal: trying.signal,
    });
    if (answer.ok) {
      end = await readAnswer(answer, began);
    } else {
      text($('answer'), (await answer.text()).slice(0, 2000));
      end = `status ${answer.status}`;
    }
  } catch (error) {
    end = error.name === 'AbortError' ? 'stopped' : error instanceof TypeError ? 'the gateway does not answer' : error.message;
  }
  trying = null;
  text($('send'), 'Send');
  text($('answer-end'), end);
  text($('news'), `The answer: ${end}`);
}

function startTry() {
  $('try').addEventListener('submit', event => {
    event.preventDefault();
    if (lastShown && !lastShown.gateway.takes_requests) return;
    if (trying) trying.abort();
    else tryNow();
  });
  $('try').addEventListener('input', () => lastShown && showCommand(lastShown.gateway));
}
