// Shows /status.json, every two seconds. Names of engines and models and ids of requests are others' words: everything is put
// in as text, and no string becomes markup anywhere in this file, nor in engines.js and try.js, which it uses.
'use strict';

const EVERY_MS = 2000;
const PATIENCE_MS = 8000;
// Rates are of this time; sparklines of all samples that are kept.
const RATE_SAMPLES = 6;
const SAMPLES = 60;
// Screen readers hear of changes at most so often.
const NEWS_MS = 6000;
const FORMAT = 2;

// One set of words for engines, roles and the gateway.
const STATES = {
  unknown: ['unknown', 'warn'], up: ['up', 'good'], degraded: ['degraded', 'warn'], down: ['down', 'bad'], draining: ['draining', 'quiet'],
};
const WHY = {
  only: 'the only one', cached: 'less to compute', sooner: 'free sooner', alike: 'as good as the next', policy: 'policy or sharing',
};
const OUTCOMES = {ok: 'good', client_gone: 'quiet', retried: 'quiet', gone: 'quiet', part: 'quiet', engine: 'warn'};
const STANDINGS = {leads: 'good', follows: 'good', alone: 'warn', unconnected: 'bad'};
const VERDICTS = {answered: 'good', partial: 'good', off: 'quiet', busy: 'warn', timed_out: 'warn', refused: 'bad', unreachable: 'bad'};

// In memory, and nowhere else.
let key = null;
let paused = false;
let timer = 0;
let asking = null;
let staleSince = null;
let lastRead = null;
let samples = [];
let statesBefore = null;
let newsAt = 0;
let lastShown = null;
let filter = '';

const $ = id => document.getElementById(id);
const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1});
const clock = new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit', second: '2-digit'});

const count = n => n < 100000 ? whole.format(n) : short.format(n);
const time = ms => clock.format(new Date(ms));

function duration(ms) {
  if (ms < 0.05) return '0 ms';
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor(ms / 1000) % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Nodes

function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

function el(name, className) {
  const node = document.createElement(name);
  if (className) node.className = className;
  return node;
}

function pill(node, [word, kind]) {
  text(node, word);
  if (node.dataset.kind !== kind) node.dataset.kind = kind;
}

// Rows stay as long as what they show: focus, open details and selections survive a look.
function rows(table, items, keyOf, fill) {
  const body = table.tBodies[0];
  const labels = Array.from(table.tHead.rows[0].cells, cell => cell.textContent);
  const known = new Map(Array.from(body.rows, row => [row.dataset.key, row]));
  let place = 0;
  const seen = new Map();
  for (const item of items) {
    let name = keyOf(item);
    const again = seen.get(name) || 0;
    seen.set(name, again + 1);
    if (again) name += `#${again}`;
    let row = known.get(name);
    if (row) known.delete(name);
    else row = newRow(table, name, labels);
    fill(row, item);
    row.hidden = filter !== '' && !row.textContent.toLowerCase().includes(filter);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    place += 1;
  }
  for (const gone of known.values()) gone.remove();
  const shown = Array.from(body.rows).some(row => !row.hidden);
  if (!shown) {
    const row = body.insertRow();
    row.dataset.key = ' none';
    row.setAttribute('role', 'row');
    const cell = row.insertCell();
    cell.setAttribute('role', 'cell');
    cell.className = 'none wide';
    cell.colSpan = labels.length;
    text(cell, filter && items.length ? 'No row contains that.' : 'None.');
  }
}

function newRow(table, name, labels) {
  const row = el('tr');
  row.dataset.key = name;
  row.setAttribute('role', 'row');
  labels.forEach((label, at) => {
    const cell = el(at === 0 ? 'th' : 'td', table.tHead.rows[0].cells[at].className);
    if (at === 0) {
      cell.scope = 'row';
      cell.setAttribute('role', 'rowheader');
    } else {
      cell.dataset.label = label;
      cell.setAttribute('role', 'cell');
    }
    row.append(cell);
  });
  return row;
}

// A line and a smaller one under it.
function two(cell, first, second, className) {
  if (!cell.firstChild) cell.append(el('span', className), el('span', 'sub'));
  text(cell.firstChild, first);
  text(cell.lastChild, second || '');
}

// Decisions

function candidate(item, it) {
  if (!item.firstChild) item.append(el('b'), document.createTextNode(''));
  text(item.firstChild, it.instance);
  const restore = it.restore_ms > 0 ? `, fetches ${duration(it.restore_ms)}` : '';
  const hit = it.predicted_tokens ? `has ${count(it.predicted_tokens)} tokens, ` : '';
  item.lastChild.data = `: ${hit}begins in ${duration(it.backlog_ms)}, computes ${duration(it.prefill_ms)}${restore}`;
}

function why(cell, decision) {
  let details = cell.firstChild;
  if (!details) {
    details = el('details');
    details.append(el('summary'), el('span', 'id sub'), el('ul'));
    cell.append(details);
    cell.classList.add('wide');
  }
  const waited = decision.waited_ms >= 1 ? `, waited ${duration(decision.waited_ms)}` : '';
  text(details.firstChild, `${WHY[decision.why] || decision.why}${waited}`);
  text(details.children[1], decision.id);
  const list = details.lastChild;
  const all = [decision.winner, ...decision.next_best];
  while (list.children.length > all.length) list.lastChild.remove();
  all.forEach((it, at) => candidate(list.children[at] || list.appendChild(el('li')), it));
}

function outcome(cell, decision) {
  if (!cell.firstChild) {
    cell.append(el('span', 'pill'), el('span', 'sub'));
    cell.classList.add('line');
  }
  const end = decision.outcome;
  if (!end) {
    pill(cell.firstChild, ['under way', 'quiet']);
    return;
  }
  // A stream that broke has the status that it began with.
  const ours = OUTCOMES[end.reason] === undefined && !(end.status >= 400 && end.status < 500);
  const kind = OUTCOMES[end.reason] || (ours ? 'bad' : 'warn');
  pill(cell.firstChild, [end.reason === 'ok' ? 'ok' : end.reason.replaceAll('_', ' '), kind]);
  const tokens = end.output_tokens ? `, ${count(end.output_tokens)} tokens` : '';
  text(cell.lastChild, `${end.status ? `${end.status}, ` : ''}${duration(end.total_ms)}${tokens}`);
}

function pair(cell, decision) {
  if (!cell.firstChild) {
    const arrow = el('span', 'arrow');
    arrow.setAttribute('aria-hidden', 'true');
    text(arrow, ' → ');
    const then = el('span', 'hidden');
    text(then, ', then ');
    cell.append(el('span'), arrow, then, el('span'));
    cell.classList.add('wide', 'line');
  }
  text(cell.firstChild, decision.winner.instance);
  text(cell.lastChild, decision.decoder || 'no decoder yet');
}

function fillDecision(row, decision) {
  const [when, request, where, reason, prompt, predicted, reported, end] = row.cells;
  text(when, time(decision.at_unix_ms));
  when.classList.add('line');
  if (!request.firstChild) request.append(el('span', 'id cut'));
  text(request.firstChild, decision.id);
  request.classList.add('wide');
  pair(where, decision);
  why(reason, decision);
  text(prompt, `${decision.exact ? '' : '≈ '}${count(decision.prompt_tokens)}`);
  text(predicted, count(decision.winner.predicted_tokens));
  text(reported, decision.cached_tokens === null ? '–' : count(decision.cached_tokens));
  outcome(end, decision);
}

// The rest of the page

function spark(id, values) {
  const most = Math.max(...values, 1e-9);
  const first = SAMPLES - values.length;
  const points = values.map((value, at) => `${(100 * (first + at) / (SAMPLES - 1)).toFixed(1)},${(23 - 22 * value / most).toFixed(1)}`);
  $(id).firstElementChild.setAttribute('points', points.join(' '));
}

function showRequests(now) {
  const {requests} = now;
  const last = samples[samples.length - 1];
  // Another process counts from 0.
  if (last && (requests.ended < last.ended || now.now_unix_ms < last.at)) samples = [];
  samples.push({at: now.now_unix_ms, ended: requests.ended, inflight: requests.inflight});
  if (samples.length > SAMPLES) samples.shift();
  const rate = (from, to) => to.at > from.at ? 1000 * (to.ended - from.ended) / (to.at - from.at) : 0;
  const newest = samples[samples.length - 1];
  const rateNow = samples.length > 1 ? rate(samples[Math.max(0, samples.length - RATE_SAMPLES)], newest) : null;
  text($('inflight'), count(requests.inflight));
  text($('rate'), rateNow === null ? '–' : rateNow < 100 ? rateNow.toFixed(1) : count(rateNow));
  text($('queued'), `${count(requests.queued)}, ${count(requests.waiting)}`);
  showRecent(now.recent);
  showLimit(now.loads);
  spark('spark-inflight', samples.map(sample => sample.inflight));
  spark('spark-rate', samples.slice(1).map((sample, at) => rate(samples[at], sample)));
  const {names, history, unfound} = now.beliefs;
  const places = unfound.map(source => source === 'pool' ? 'the pool' : 'KV events').join(' and ');
  text($('unfound'), places && `of what was stored nothing is found in ${places}: see the log`);
  text($('beliefs'), names && history ? 'names and history' : names ? 'names alone' : history ? 'history alone' : 'load alone');
}

// The role with the largest load for its engines, and what it would take; of several fleets the one that is loaded most.
function showLimit(loads) {
  const limits = loads.filter(it => it.limits).sort((one, other) => other.saturation - one.saturation);
  const most = limits[0];
  text($('limit'), most ? `${most.role}, ${Math.round(100 * most.saturation)} %` : 'none: no load');
  const others = most ? loads.filter(it => it !== most && it.fleet === most.fleet).map(it => `${it.role} ${Math.round(100 * it.saturation)} %`) : [];
  text($('limit-why'), most ? [...(most.fleet ? [most.fleet] : []), `needs ${count(most.engines_needed)}, has ${count(most.engines)}`, ...others].join('; ') : '');
}

// What the gateway counted in the last minutes.
function showRecent(recent) {
  const seconds = Math.round(recent.over_ms / 1000);
  const over = seconds > 0 ? `${seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`}` : '';
  for (const node of document.querySelectorAll('.over')) text(node, over);
  text($('ttft'), recent.ttft_p50_ms === null ? '–' : `${duration(recent.ttft_p50_ms)}, ${duration(recent.ttft_p95_ms)}`);
  const tokens = recent.output_tokens_per_s;
  text($('tokens'), tokens === null ? '–' : tokens < 100 ? tokens.toFixed(1) : count(tokens));
  text($('failed'), count(recent.failed));
  text($('failed-all'), `of ${count(recent.ended)}`);
}

function showPools(pools) {
  $('pool-card').hidden = pools.length === 0;
  rows($('pools'), pools, pool => pool.kind, (row, pool) => {
    const [kind, verdict, took, when] = row.cells;
    text(kind, pool.kind);
    if (!verdict.firstChild) verdict.append(el('span', 'pill'));
    const last = pool.last;
    pill(verdict.firstChild, last ? [last.verdict.replaceAll('_', ' '), VERDICTS[last.verdict] || 'quiet'] : ['not asked yet', 'quiet']);
    text(took, last ? duration(last.took_ms) : '–');
    text(when, last ? time(last.at_unix_ms) : '–');
  });
}

// Others are there as they were last heard; of this gateway the page has the numbers elsewhere.
function showGateways(now) {
  const shares = now.fleets ? now.fleets.map(it => ({fleet: it.name, share: it.share})) : [{fleet: '', share: now.share}];
  const all = shares.filter(it => it.share).flatMap(({fleet, share}) => [{fleet, id: share.id, here: share.standing},
    ...share.others.map(other => ({fleet, ...other}))]);
  $('gateways-card').hidden = all.length === 0;
  rows($('gateways'), all, it => `${it.fleet} ${it.id}`, (row, it) => {
    const [who, standing, heard, ...counts] = row.cells;
    two(who, it.here ? `${it.id} (this one)` : it.id, it.fleet, 'id');
    if (!standing.firstChild) standing.append(el('span', 'pill'));
    const word = it.here || (it.leads ? 'leads' : 'follows');
    pill(standing.firstChild, [word, STANDINGS[word] || 'quiet']);
    text(heard, it.here ? '–' : duration(it.silent_ms));
    const numbers = [it.waiting, it.prefills, it.answers, it.answer_tokens];
    counts.forEach((cell, at) => text(cell, it.here ? '–' : count(numbers[at])));
  });
}

// What changed since the last look, in a sentence; screen readers hear that and nothing else of the numbers.
function tellChanges(now) {
  const states = new Map(now.engines.map(engine => [`${engine.role} ${engine.instance}`, (STATES[engine.state] || [engine.state])[0]]));
  const state = (STATES[now.gateway.state] || [now.gateway.state])[0];
  states.set('the gateway', state);
  const at = Date.now();
  if (statesBefore && at - newsAt < NEWS_MS) return;
  const changed = [];
  if (statesBefore) {
    for (const [name, word] of states) if (statesBefore.get(name) !== word) changed.push(`${name} is ${word}`);
    for (const name of statesBefore.keys()) if (!states.has(name)) changed.push(`${name} has left`);
  }
  statesBefore = states;
  if (changed.length === 0) return;
  newsAt = at;
  text($('news'), changed.length > 3 ? `${changed.length} engines changed their state` : changed.join('; '));
}

function modelsOf(now) {
  const names = new Set(now.engines.flatMap(engine => engine.models));
  if (names.size === 0 && now.gateway.model) names.add(now.gateway.model);
  return names.size > 0 ? Array.from(names).sort() : ['MODEL'];
}

const MOVES = {
  draining: 'finishes its requests',
  switching: 'is told its role',
  probing: 'is asked if it is there',
  kept: 'stays as it was',
  lost: 'is in neither role',
};

function showMoves(moves, asleep) {
  $('moves').hidden = moves.length + asleep.length === 0;
  const told = moves.map(it => `${it.instance}, on its way from ${it.from} to ${it.to}, ${MOVES[it.step] || it.step}${it.cause ? `: ${it.cause}` : ''}.`);
  const resting = asleep.map(it => `${it.instance} (${it.roles.join(', ')}) is asleep by order.`);
  text($('moves'), told.concat(resting).join(' '));
}

function show(now) {
  const {gateway} = now;
  showTry(now);
  pill($('state'), STATES[gateway.state] || [gateway.state, 'quiet']);
  $('not-ready').hidden = !gateway.not_ready;
  text($('not-ready'), gateway.not_ready ? `Not ready: ${gateway.not_ready}.` : '');
  text($('version'), gateway.version);
  text($('uptime'), duration(gateway.uptime_ms));
  text($('dialect'), gateway.dialect);
  const models = modelsOf(now).filter(name => name !== 'MODEL');
  text($('model'), models.length > 3 ? `${models.slice(0, 3).join(', ')} and ${models.length - 3} more` : models.join(', ') || 'not known yet');
  text($('config'), gateway.config.join(', ') || 'no file');
  const down = now.engines.filter(engine => engine.state === 'down').length;
  document.title = `${down ? `${down} down · ` : ''}pd-proxy`;
  showRequests(now);
  showEngines(now.engines);
  $('left-out').hidden = now.engines_left_out === 0;
  text($('left-out'), `${count(now.engines_left_out)} more engines are not shown.`);
  showMoves(now.moves || [], now.asleep || []);
  showGateways(now);
  showPools(now.pools);
  text($('decisions').caption.querySelector('.count'), now.decisions.length ? `${now.decisions.length}, newest first` : '');
  rows($('decisions'), now.decisions, it => `${it.at_unix_ms} ${it.id} ${it.winner.instance}`, fillDecision);
  tellChanges(now);
}

// Asking

function fresh(at) {
  staleSince = null;
  $('stale').hidden = true;
  text($('updated'), `${paused ? 'paused at' : 'as of'} ${time(at)}`);
}

function stale(reason) {
  if (staleSince === null) staleSince = lastRead === null ? Date.now() : lastRead;
  const message = `Stale since ${time(staleSince)}: ${reason}`;
  if ($('stale').hidden) text($('news'), message);
  $('stale').hidden = false;
  text($('stale'), message);
}

function wantKey() {
  text($('key-wrong'), key === null ? '' : 'The gateway does not take this key.');
  key = null;
  $('main').hidden = true;
  $('forget').hidden = true;
  $('stale').hidden = true;
  $('tools').hidden = true;
  $('skip').hidden = true;
  pill($('state'), ['locked', 'quiet']);
  if ($('ask').hidden) {
    $('ask').hidden = false;
    $('key').focus();
  }
}

async function look() {
  const abort = new AbortController();
  asking = abort;
  const limit = setTimeout(() => abort.abort(), PATIENCE_MS);
  try {
    const headers = key === null ? {} : {'X-API-Key': key};
    const answer = await fetch('status.json', {headers, cache: 'no-store', credentials: 'omit', redirect: 'error', signal: abort.signal});
    if (answer.status === 401) {
      wantKey();
      return;
    }
    if (!answer.ok) throw new Error(`the gateway answers ${answer.status}`);
    const now = await answer.json();
    if (now.format !== FORMAT) throw new Error('the gateway is another release: load the page again');
    lastRead = Date.now();
    $('ask').hidden = true;
    $('main').hidden = false;
    $('tools').hidden = false;
    $('skip').hidden = false;
    $('forget').hidden = key === null;
    fresh(lastRead);
    lastShown = now;
    show(now);
  } catch (error) {
    if (asking === abort) stale(error instanceof TypeError || error.name === 'AbortError' ? 'the gateway does not answer' : error.message);
  } finally {
    clearTimeout(limit);
    if (asking === abort) {
      asking = null;
      plan(EVERY_MS);
    }
  }
}

// One look at a time. None while nobody can see it, while it is paused, or while a key is wanted.
function plan(inMs) {
  clearTimeout(timer);
  if (paused || document.hidden || !$('ask').hidden) return;
  timer = setTimeout(look, inMs);
}

function lookNow() {
  if (asking === null) plan(0);
}

$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', String(paused));
  if (lastRead !== null && staleSince === null) fresh(lastRead);
  if (paused) clearTimeout(timer);
  else lookNow();
});
$('filter').addEventListener('input', () => {
  filter = $('filter').value.trim().toLowerCase();
  if (lastShown) {
    showEngines(lastShown.engines);
    rows($('decisions'), lastShown.decisions, it => `${it.at_unix_ms} ${it.id} ${it.winner.instance}`, fillDecision);
  }
});
$('forget').addEventListener('click', () => {
  key = null;
  wantKey();
});
$('ask').addEventListener('submit', event => {
  event.preventDefault();
  key = $('key').value;
  $('key').value = '';
  $('ask').hidden = true;
  look().then(() => {
    if (!$('main').hidden) $('main').focus();
  });
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) clearTimeout(timer);
  else lookNow();
});
for (const table of document.querySelectorAll('table')) {
  table.setAttribute('role', 'table');
  table.tHead.setAttribute('role', 'rowgroup');
  table.tHead.rows[0].setAttribute('role', 'row');
  for (const cell of table.tHead.rows[0].cells) cell.setAttribute('role', 'columnheader');
  table.tBodies[0].setAttribute('role', 'rowgroup');
  if (table.classList.contains('engines')) makeSortable(table);
}
startTry();
lookNow();
