// The tables of engines: what is in a row, and the order of the rows. Names are others' words, and put in as text.
'use strict';

const DETAILS = {
  warming: 'warming up', in_doubt: 'failed a moment ago', on_trial: 'tried with one request', other_model: 'serves another model',
  key_refused: 'asked again at each probe',
  no_partner: 'no partner of its release',
};

function engineState(cell, engine) {
  if (!cell.firstChild) cell.append(el('span', 'pill'), el('span', 'sub'));
  pill(cell.firstChild, STATES[engine.state] || [engine.state, 'quiet']);
  const more = [];
  if (engine.cause) more.push(engine.cause);
  if (DETAILS[engine.detail]) more.push(DETAILS[engine.detail]);
  if (engine.detail === 'warming') more.push(`${Math.round(engine.share * 100)} % of its share`);
  if (engine.detail === 'resting') more.push(`next try in ${duration(engine.rest_ms)}`);
  if (engine.failures > 1) more.push(`${engine.failures} failures in a row`);
  text(cell.lastChild, more.join(', '));
}

function share(cell, part, of) {
  if (!cell.firstChild) {
    const bar = el('span', 'bar');
    bar.setAttribute('aria-hidden', 'true');
    bar.append(el('i'));
    cell.append(el('span'), bar);
  }
  const ratio = of > 0 ? Math.min(part / of, 1) : 0;
  text(cell.firstChild, of > 0 ? `${Math.round(ratio * 100)} %` : '–');
  cell.lastChild.hidden = of === 0;
  cell.lastChild.firstChild.style.width = `${Math.round(ratio * 100)}%`;
  cell.title = of > 0 ? `${count(part)} of ${count(of)} tokens` : '';
}

function fillEngine(row, engine) {
  const cells = row.cells;
  const models = engine.models.join(', ') + (engine.models_more ? ` and ${engine.models_more} more` : '');
  two(cells[0], engine.instance, models);
  engineState(cells[1], engine);
  text(cells[2], count(engine.running));
  const error = engine.last_error;
  two(cells[cells.length - 1], error ? error.reason : '–', error ? `at ${time(error.at_unix_ms)}` : '');
  cells[cells.length - 1].classList.add('line');
  if (engine.role === 'prefill') {
    text(cells[3], engine.backlog_ms === null ? '–' : duration(engine.backlog_ms));
    text(cells[4], count(engine.work_tokens));
    two(cells[5], count(engine.leases), engine.leases ? `${count(engine.held_tokens)} tokens` : '');
    share(cells[6], engine.predicted_tokens, engine.prompt_tokens);
    share(cells[7], engine.cached_tokens, engine.prompt_tokens);
  } else {
    text(cells[3], count(engine.work_tokens));
    two(cells[4], count(engine.beyond.requests), engine.beyond.tokens ? `${count(engine.beyond.tokens)} tokens` : '');
  }
}

// What a column is sorted by; the first click on its head puts large numbers and the beginning of the alphabet first.
const SORTS = {
  instance: engine => engine.instance, state: engine => gravity(engine), running: engine => engine.running, backlog: engine => engine.backlog_ms,
  work: engine => engine.work_tokens, held: engine => engine.held_tokens, others: engine => engine.beyond.requests,
  predicted: engine => ratioOf(engine.predicted_tokens, engine), reported: engine => ratioOf(engine.cached_tokens, engine),
  error: engine => engine.last_error && engine.last_error.at_unix_ms,
};
const ratioOf = (part, engine) => engine.prompt_tokens > 0 ? part / engine.prompt_tokens : null;
// By table: the column and the direction that were chosen.
const sorted = {};

// None is last in either direction, and engines that are equal keep their order.
function compare(one, other, by, down) {
  const [a, b] = [by(one), by(other)];
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === 'string' ? a.localeCompare(b, 'en', {numeric: true}) : a - b;
  return down ? -order : order;
}

function chooseSort(table, name, head) {
  const now = sorted[table.id];
  const down = name !== 'instance' && name !== 'state';
  // Twice the other way round, three times as before: trouble first.
  if (!now || now.name !== name) sorted[table.id] = {name, down};
  else if (now.down === down) now.down = !down;
  else delete sorted[table.id];
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute('aria-sort');
  const chosen = sorted[table.id];
  if (chosen) head.setAttribute('aria-sort', chosen.down ? 'descending' : 'ascending');
  if (lastShown) showEngines(lastShown.engines);
}

// The name of a column becomes a button.
function makeSortable(table) {
  for (const head of table.tHead.rows[0].cells) {
    const button = el('button', 'sort');
    button.type = 'button';
    text(button, head.textContent);
    head.textContent = '';
    head.append(button);
    button.addEventListener('click', () => chooseSort(table, head.dataset.sort, head));
  }
}

// Trouble first; engines of one state keep their order.
const GRAVITY = ['down', 'unknown', 'draining', 'up'];
const gravity = engine => (GRAVITY.indexOf(engine.state) + GRAVITY.length + 1) % (GRAVITY.length + 1);

function showEngines(all) {
  for (const role of ['prefill', 'decode', 'encode']) {
    const engines = all.filter(engine => engine.role === role).sort((one, other) => gravity(one) - gravity(other));
    const chosen = sorted[role];
    if (chosen) engines.sort((one, other) => compare(one, other, SORTS[chosen.name], chosen.down));
    const by = new Map();
    for (const engine of engines) {
      const [word] = STATES[engine.state] || [engine.state];
      by.set(word, (by.get(word) || 0) + 1);
    }
    text($(role).caption.querySelector('.count'), Array.from(by, ([word, n]) => `${n} ${word}`).join(', '));
    rows($(role), engines, engine => engine.instance, fillEngine);
    if (role === 'encode') $('encoders').hidden = engines.length === 0;
  }
}
